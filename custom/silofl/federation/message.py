"""What travels: one flat dictionary of named arrays, and numbers and names beside it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.algorithms.mixing import check_array
from silofl.errors import AggregationError, ConfigError
from silofl.training.site_score import SiteScore, SuperScore


@dataclass(frozen=True)
class Message:
    """A message in either direction.

    Attributes:
        arrays: Name -> array; from a site, differences to what the server sent it.
        meta: Plain numbers, strings, lists and dictionaries.
    """

    arrays: dict[str, NDArray] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(np.asarray(array).nbytes for array in self.arrays.values())

    def failed(self, reason: str) -> Message:
        """Return what a site sends in place of an answer: the round of this task or answer, and why there is none."""
        return Message(meta={"round": self.meta.get("round"), "error": reason})


def check_fits(site: str, received: dict[str, NDArray], sent: dict[str, NDArray]) -> None:
    """Refuse an update that does not fit what the server sent this site; names may be missing, never added.

    Raises:
        AggregationError: Names the site and the key.
    """
    for name, array in received.items():
        if name not in sent:
            raise AggregationError(f"site {site!r} must send only arrays that it was sent; {name!r} is none of them")
        check_array(site, name, array, np.shape(sent[name]))


def check_numbers(site: str, meta: dict[str, Any]) -> None:
    """Refuse an answer to a training task whose numbers cannot be weighed or written down.

    Raises:
        AggregationError: The number of examples, the loss or the drift is none, or not finite.
    """
    count = meta.get("num_examples")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise AggregationError(f"site {site!r} must have at least 1 training example, not {count!r}")
    metrics = meta.get("metrics") or {}
    for name in {"loss": None, "drift": None, **metrics}:
        if name != "validation" and not _is_finite(metrics.get(name)):
            raise AggregationError(f"site {site!r} must send its {name} as a finite number, not {metrics.get(name)!r}")
    check_score(site, "validation", meta)


def check_score(site: str, part: str, meta: dict[str, Any], kind: type[SiteScore] = SiteScore) -> dict[str, Any] | None:
    """Return a site's score on a part of its data; None where that part is empty or was not asked for.

    Raises:
        AggregationError: The value is neither missing nor finite, or the numbers of cases are no counts; a table by
            label or by metric holds anything else, or the tables by label are of other labels.
    """
    score = (meta.get("metrics") or {}).get(part)
    if score is None:
        return None
    value, counts = score.get("value"), [score.get("num_cases"), score.get("num_excluded")]
    if (value is not None and not _is_finite(value)) or not all(isinstance(count, int) for count in counts):
        raise AggregationError(f"site {site!r} must send its {part} as a finite number with counts, not {score}")
    try:
        json.dumps(score, allow_nan=False)
    except (TypeError, ValueError):
        raise AggregationError(f"site {site!r} must send its {part} as plain finite values, not {score}") from None
    _check_tables(site, part, score)
    try:
        kind.from_dict(score, f"the {part} of site {site!r}")
    except ConfigError as error:
        raise AggregationError(str(error)) from None
    return score


def check_super_score(site: str, meta: dict[str, Any], num_thresholds: int) -> dict[str, Any] | None:
    """Return a site's test of a super model; the errors of `check_score`, and one where a part of it is missing."""
    score = check_score(site, "test", meta, SuperScore)
    if score is not None and len(score["by_threshold"]) != num_thresholds:
        raise AggregationError(
            f"site {site!r} must send by_threshold with its test for {num_thresholds} thresholds, not "
            f"{len(score['by_threshold'])}"
        )
    return score


def _check_tables(site: str, part: str, score: dict[str, Any]) -> None:
    for key, is_right in {"labels": _is_finite, "also": _is_finite, "label_cases": _is_count}.items():
        table = score.get(key, {})
        if not isinstance(table, dict) or not all(is_right(value) for value in table.values()):
            kind = "counts" if is_right is _is_count else "finite numbers"
            raise AggregationError(f"site {site!r} must send the {key} of its {part} as {kind} by name, not {table!r}")
    labels = list(score.get("labels", {}))
    counted = list(score.get("label_cases", labels))
    if set(counted) != set(labels):
        raise AggregationError(f"site {site!r} must send the label_cases of its {part} for {labels}, not {counted}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
