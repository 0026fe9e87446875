"""How far the models of a super model disagree about a case: where they do, an answer deserves a second look."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Disagreement:
    """What the single models say beside the answer of all.

    Attributes:
        models: Their names.
        shares: Segmentation: share of the models that label a pixel otherwise than the answer, float32 on the label
            map's grid.
        mean: Mean of it where the answer or a model has a label; None where none has.
        ranges: Classification: name of a class, or finding -> the lowest and the highest probability of a model.
    """

    models: Sequence[str]
    shares: NDArray[np.float32] | None = None
    mean: float | None = None
    ranges: dict[str, tuple[float, float]] | None = None


def share_others(answer: NDArray, said: Iterable[NDArray]) -> NDArray[np.float32]:
    """Return the share of the models that label each pixel otherwise than the answer.

    Args:
        said: Those of each model, of the same shape; one model's at a time, since a volume's are large.
    """
    others, count = np.zeros(answer.shape, np.float32), 0
    for count, labels in enumerate(said, start=1):  # noqa: B007 - how many there were
        others += labels != answer
    return others / np.float32(count)


def average_where_labelled(shares: NDArray[np.float32], label_map: NDArray) -> float | None:
    """Return the mean share where the answer has a label, or a model another one; None where none has."""
    found = shares[(label_map > 0) | (shares > 0)]
    return float(found.mean()) if found.size else None
