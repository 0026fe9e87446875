"""Intervals over patients: 95 % of what a number is when as many patients are drawn again, with replacement.

Efron and Tibshirani, An Introduction to the Bootstrap, Chapman & Hall 1993, chapter 13. All cases of a patient are
drawn together: they are no independent evidence.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

# Percent of the resamples outside on each side.
OUTSIDE = 2.5
RESAMPLES, SEED = 1000, 0
# Fewer say nothing of others.
LEAST_UNITS = 6
Interval = tuple[float, float]
Rows = NDArray[np.intp]


def draw_resamples(units: Sequence[Hashable]) -> list[Rows]:
    """Return the rows of each resample; none of fewer than `LEAST_UNITS` units.

    Args:
        units: The unit, as the patient, of each row.
    """
    members: dict[Hashable, list[int]] = {}
    for row, unit in enumerate(units):
        members.setdefault(unit, []).append(row)
    rows = [np.array(found, dtype=np.intp) for found in members.values()]
    if len(rows) < LEAST_UNITS:
        return []
    random = np.random.default_rng(SEED)
    draws = random.integers(len(rows), size=(RESAMPLES, len(rows)))
    return [np.concatenate([rows[unit] for unit in drawn]) for drawn in draws]


def find_interval(statistic: Callable[[Rows], float], resamples: Sequence[Rows]) -> Interval | None:
    """Return the ends of a number's 95 % interval.

    None without resamples, and where all give the same: equal patients show no spread, which is not that there is none.

    Args:
        statistic: The number for some rows; NaN where it is not defined.
        resamples: Of `draw_resamples`.
    """
    found = np.array([statistic(rows) for rows in resamples])
    known = found[np.isfinite(found)]
    if not len(known):
        return None
    low, high = np.percentile(known, (OUTSIDE, 100 - OUTSIDE)).tolist()
    return (low, high) if low < high else None
