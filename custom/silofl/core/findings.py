"""A set of findings as one number: a target of several labels is then an integer, as that of one class is.

Finding k counts 2^k: findings 0 and 3 together are 9, and none at all is 0.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor

Outputs = TypeVar("Outputs", "Tensor", NDArray[Any])

NO_FINDING = "none"
# An int64 holds no more.
MOST_FINDINGS = 62


def pack_findings(numbers: Iterable[int]) -> int:
    """Return the set of some findings, each given once."""
    return sum(1 << number for number in numbers)


def list_findings(packed: int) -> list[int]:
    """Return the numbers of the findings in a set: what `pack_findings` was given, in their order."""
    return [number for number in range(packed.bit_length()) if packed >> number & 1]


def unpack_findings(sets: ArrayLike, count: int) -> NDArray[np.bool_]:
    """Return whether each of ``count`` findings is in each set, shape (N, count).

    Args:
        sets: Shape (N,).
        count: The number of findings that the study knows.
    """
    return (np.asarray(sets, dtype=np.int64)[:, None] >> np.arange(count) & 1).astype(bool)


def pack_rows(is_found: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the set of findings of each row (N, count), as `unpack_findings` reads it."""
    return np.asarray((is_found.astype(np.int64) << np.arange(is_found.shape[1])).sum(axis=1), np.int64)


def decide_findings(probabilities: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the set of findings above one half for each row of probabilities (N, findings)."""
    return pack_rows(probabilities > 0.5)


def name_findings(packed: int, labels: Mapping[int, str]) -> str:
    """Return the names of a set of findings as tables have them, ``effusion|nodule``; none of an empty one."""
    return join_findings(labels[number] for number in list_findings(packed))


def join_findings(names: Iterable[str]) -> str:
    """Return names of findings as tables have them; a word for none."""
    return "|".join(names) or NO_FINDING


def name_absence(finding: str) -> str:
    """Return what tables call the cases without a finding."""
    return f"no {finding}"


def sort_labels(seen: Iterable[str], names: Mapping[str, str]) -> list[str]:
    """Return labels in the order of the study's, a finding beside its absence; first what is none, as a region.

    Args:
        names: What a label is seen as -> its name, in the study's order.
    """
    positions: dict[str, int] = {}
    for key, name in names.items():
        # A label that is met again keeps its first position.
        positions.setdefault(key, len(positions))
        positions.setdefault(name_absence(name), len(positions))
    return sorted(dict.fromkeys(seen), key=lambda label: positions.get(label, -1))


def most_likely(outputs: Outputs, threshold: float = 0.0) -> Outputs:
    """Return the label of each pixel or image: the largest output, or whether the only one is above the threshold.

    Args:
        outputs: A model's answers, (N, outputs, ...), as a tensor or an array.
        threshold: 0 for logits, 0.5 for probabilities.
    """
    if outputs.shape[1] == 1:
        return outputs[:, 0] > threshold
    labels: Outputs = outputs.argmax(1)
    return labels
