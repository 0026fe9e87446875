"""Numbers with intervals over patients: 95 % of what they are when as many patients are drawn again, with replacement.

Efron and Tibshirani, An Introduction to the Bootstrap, Chapman & Hall 1993, chapter 13. All cases of a patient are
drawn together: they are no independent evidence.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Percent of the resamples outside on each side.
OUTSIDE = 2.5
RESAMPLES, SEED = 1000, 0
# Fewer say nothing of others.
LEAST_UNITS = 6
# Of sums and quotients that are shares.
ROUNDING = 1e-9
Interval = tuple[float, float]
Rows = NDArray[np.int32]
Floats = NDArray[np.float64]
Statistic = Callable[[Rows], float]


@dataclass(frozen=True)
class Estimate:
    """A number over cases, with its interval over patients.

    Attributes:
        value: The number; null where no case counts.
        interval: Ends of its 95 % interval; null where fewer than 6 patients count, or where all give the same.
        num_cases: Cases that count.
    """

    value: float | None
    interval: Interval | None
    num_cases: int


class Sample:
    """Cases, and the patients that are drawn again.

    Args:
        units: The unit, as the patient, of each case.
    """

    def __init__(self, units: Sequence[Hashable]) -> None:
        numbers: dict[Hashable, int] = {}
        self.numbers = np.array([numbers.setdefault(unit, len(numbers)) for unit in units], dtype=np.intp)
        # Half as large as the numbers that NumPy takes by itself: of many cases they are most of the memory.
        members = [np.flatnonzero(self.numbers == number).astype(np.int32) for number in range(len(numbers))]
        draws = np.random.default_rng(SEED).integers(max(len(members), 1), size=(RESAMPLES, len(members)))
        is_enough = len(members) >= LEAST_UNITS
        self.resamples = [np.concatenate([members[unit] for unit in drawn]) for drawn in draws] if is_enough else []

    def estimate(self, statistic: Statistic, is_counted: NDArray[np.bool_]) -> Estimate:
        """Return a number over all cases, with its interval.

        Args:
            statistic: The number of some rows, NaN where it is not defined; resamples where it is not do not count.
            is_counted: The cases that count, shape (N,).
        """
        value = statistic(np.arange(len(self.numbers), dtype=np.int32))
        if not np.isfinite(value):
            return Estimate(None, None, 0)
        is_enough = len(np.unique(self.numbers[is_counted])) >= LEAST_UNITS
        found = np.array([statistic(rows) for rows in self.resamples] if is_enough else [])
        return Estimate(float(value), _find_interval(found), int(is_counted.sum()))

    def mean(self, values: Floats) -> Estimate:
        """Return the mean of the cases' values (N,); NaN of a case that does not count."""
        is_counted = np.isfinite(values)
        return self.ratio(np.where(is_counted, values, 0.0), is_counted.astype(np.float64), is_counted)

    def ratio(self, parts: Floats, wholes: Floats, is_counted: NDArray[np.bool_] | None = None) -> Estimate:
        """Return the sum of the cases' parts by the sum of their wholes, both (N,); a whole of 0 does not count.

        Args:
            parts: Of each case, as its lesions that were found.
            wholes: Of each case, as its lesions.
            is_counted: The cases that count; those with a whole, where None.
        """

        def divide(rows: Rows) -> float:
            total = wholes[rows].sum()
            return float(parts[rows].sum() / total) if total else np.nan

        return self.estimate(divide, wholes > 0 if is_counted is None else is_counted)


def _find_interval(found: Floats) -> Interval | None:
    known = found[np.isfinite(found)]
    if not len(known):
        return None
    low, high = np.percentile(known, (OUTSIDE, 100 - OUTSIDE)).tolist()
    # Equal patients show no spread, which is not that there is none; nor is the rounding of sums one.
    return (low, high) if high - low > ROUNDING else None
