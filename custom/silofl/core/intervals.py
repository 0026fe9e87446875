"""Numbers with 95 % intervals over patients, made for few of them.

Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 1927, for any number m in [0, 1]:

    (m + t^2 / 2n -+ t sqrt(m (1 - m) / n + t^2 / 4n^2)) / (1 + t^2 / n),    n = m (1 - m) / variance

n is the effective number of patients; t is Student's quantile, as the variance is estimated, by the jackknife (Efron
and Stein, The Jackknife Estimate of Variance, Annals of Statistics 1981): m is computed again without each patient, all
of whose cases are left out together. Where m is 0 or 1 the interval is Clopper and Pearson's (Biometrika 1934). A size
or a difference has Student's interval. ``bench/intervals.py`` measures how often they cover.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

# Share of the intervals that lie above the truth, and below it.
OUTSIDE = 0.025
# Patients are left out in so many groups at most. A value at a threshold that the cases choose needs few: left out one
# by one, hardly a patient moves it.
GROUPS, GROUPS_OF_A_THRESHOLD = 200, 20
# Fewer say nothing of others.
LEAST_UNITS = 6
# Of sums and quotients that are shares.
ROUNDING = 1e-9
Interval = tuple[float, float]
SHARE, DIFFERENCE, SIZE = (0.0, 1.0), (-1.0, 1.0), (0.0, inf)
Rows = NDArray[np.intp]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Statistic = Callable[[Rows], float]


@dataclass(frozen=True)
class Estimate:
    """A number over cases, with its interval over patients.

    Attributes:
        value: The number; null where no case counts.
        interval: Ends of its 95 % interval; null where all patients give the same, unless that is 0 or 1, where a size
            or difference is of one patient, and where a class has one alone.
        num_cases: Cases that count.
    """

    value: float | None
    interval: Interval | None
    num_cases: int


class Sample:
    """Cases, and the patients that they are of.

    Args:
        units: The unit, as the patient, of each case.
    """

    def __init__(self, units: Sequence[Hashable]) -> None:
        self.numbers = number_units(units)

    def estimate(
        self, statistic: Statistic, *kinds: Bools, bounds: Interval = SHARE, num_groups: int = GROUPS
    ) -> Estimate:
        """Return a number over all cases, with its interval.

        Args:
            statistic: The number of some rows, NaN where it is not defined.
            kinds: The cases that count, shape (N,). Of a number that needs several kinds, as cases of a class and
                others, each kind: the one with the fewest patients says how sure the variance is.
            num_groups: The most groups in which patients are left out.
        """
        value = statistic(np.arange(len(self.numbers)))
        if not np.isfinite(value):
            return Estimate(None, None, 0)
        is_counted = np.logical_or.reduce(kinds)
        units, ranks = np.unique(self.numbers[is_counted], return_inverse=True)
        num_units = min(len(np.unique(self.numbers[is_kind])) for is_kind in kinds)
        count = min(len(units), num_groups)
        groups = np.full(len(self.numbers), -1)
        groups[is_counted] = ranks % count
        without_group = [value]
        # Without its only group no case would be left.
        if count > 1:
            without_group = [statistic(np.flatnonzero(groups != group)) for group in range(count)]
        # The jackknife's variance of n groups: (n - 1) / n times the sum of squared deviations.
        variance = float((count - 1) * np.var(without_group))
        interval = find_interval(float(value), variance, num_units, min(num_units, count), bounds)
        return Estimate(float(value), interval, int(is_counted.sum()))

    def mean(self, values: Floats, bounds: Interval = SHARE) -> Estimate:
        """Return the mean of the cases' values (N,) within bounds; NaN of a case that does not count."""
        is_counted = np.isfinite(values)
        return self.ratio(np.where(is_counted, values, 0.0), is_counted.astype(np.float64), bounds)

    def ratio(self, parts: Floats, wholes: Floats, bounds: Interval = SHARE) -> Estimate:
        """Return the sum of the cases' parts by the sum of their wholes, both (N,); a whole of 0 does not count.

        Args:
            parts: Of each case, as its lesions that were found.
            wholes: Of each case, as its lesions.
        """

        def divide(rows: Rows) -> float:
            total = wholes[rows].sum()
            if not total:
                return np.nan
            return float(parts[rows].sum() / total)

        return self.estimate(divide, wholes > 0, bounds=bounds)


def number_units(units: Sequence[Hashable]) -> NDArray[np.intp]:
    """Return the number of each case's unit, from 0 in the order of their first cases."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(unit, len(numbers)) for unit in units], dtype=np.intp)


def find_interval(
    value: float, variance: float, num_units: int, num_groups: int, bounds: Interval = SHARE
) -> Interval | None:
    """Return the 95 % interval of a number; None where there is no spread to tell it by.

    Args:
        num_units: Patients that it is of.
        num_groups: Groups of them that the variance is of.
    """
    if bounds == SHARE and min(value, 1 - value) < ROUNDING:
        # Clopper and Pearson's end, where none of the units, or all of them, are events.
        reach = 1 - OUTSIDE ** (1 / num_units)
        return (0.0, reach) if value < 0.5 else (1 - reach, 1.0)
    # Equal patients show no spread, which is not that there is none; nor is the rounding of sums one.
    if not variance > ROUNDING**2:
        return None
    # Imported here: it takes long, and a run that trains needs it at its end alone.
    from scipy.stats import t

    quantile = float(t.ppf(1 - OUTSIDE, max(num_groups - 1, 1)))
    if bounds != SHARE:
        margin = quantile * sqrt(variance)
        return max(value - margin, bounds[0]), min(value + margin, bounds[1])
    spread = value * (1 - value)
    excess = quantile**2 * variance / spread
    margin = sqrt(excess * (spread + excess / 4))
    return (value + excess / 2 - margin) / (1 + excess), (value + excess / 2 + margin) / (1 + excess)
