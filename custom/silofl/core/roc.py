"""The ROC curve: its area with an interval, the comparison of two models, and the sensitivity at a specificity.

DeLong, DeLong and Clarke-Pearson, Comparing the Areas under Two or More Correlated Receiver Operating Characteristic
Curves, Biometrics 1988; by ranks as in Sun and Xu, Fast Implementation of DeLong's Algorithm, IEEE Signal Processing
Letters 2014; of patients with several cases as in Obuchowski, Nonparametric Analysis of Clustered ROC Curve Data,
Biometrics 1997, which is DeLong's where each has one.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.core.intervals import ROUNDING, Interval, find_interval, number_units

# Of the normal distribution: 95 % lie within so many deviations.
NORMAL_95 = 1.959963984540054
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Area:
    """The area under a ROC curve.

    Attributes:
        value: The probability that a positive case has a higher score than a negative one; equal scores count half.
        interval: Its 95 % interval, within [0, 1]; None where the units show no spread, unless the area is 0 or 1.
    """

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class RocPoint:
    """A threshold at and above which a case is called positive.

    Attributes:
        threshold: Of the score; None where no case may be called positive.
        sensitivity: Share of the positive cases that are called so.
        specificity: Share of the negative cases that are not.
    """

    threshold: float | None
    sensitivity: float
    specificity: float


def measure_auroc(
    scores: Floats, is_positive: NDArray[np.bool_], units: Sequence[Hashable] | None = None
) -> Area | None:
    """Return the area under the ROC curve, with an interval of DeLong's variance; None without cases of both kinds.

    The interval is that of `find_interval`, by the units of the rarer kind: within two of DeLong's deviations lies the
    true area too rarely, and never where all cases are told apart.

    Args:
        scores: Of each case, shape (N,).
        is_positive: Whether a case is one of the class, shape (N,).
        units: The patient of each case; each case is a patient of its own where None.
    """
    if is_positive.all() or not is_positive.any():
        return None
    areas, covariance = measure_areas(scores[None], is_positive, units)
    numbers = number_units(range(len(scores)) if units is None else units)
    num_units = min(len(np.unique(numbers[is_positive])), len(np.unique(numbers[~is_positive])))
    area = float(areas[0])
    variance = 0.0 if covariance is None else float(covariance[0, 0])
    return Area(area, find_interval(area, variance, num_units, num_units))


def measure_areas(
    scores: Floats, is_positive: NDArray[np.bool_], units: Sequence[Hashable] | None = None
) -> tuple[Floats, Floats | None]:
    """Return the areas of several models' scores and their covariance, of fewer than two units of a kind None.

    With V10 of a positive case the share of negative ones below it, V01 of a negative case the share of positive ones
    above it, and D10, D01 the sums over a unit of V10 - area and V01 - area, for P positive and N negative cases:

        S10 = I10 / ((I10 - 1) P) D10 D10',  S01 = I01 / ((I01 - 1) N) D01 D01',  S11 = I / (I - 1) D10 D01'
        covariance = S10 / P + S01 / N + (S11 + S11') / (P N)

    where I10, I01 and I count the units with a positive case, with a negative one, and all.

    Args:
        scores: Shape (models, N).
        is_positive: Shape (N,), with positive and negative cases.
        units: As for `measure_auroc`.
    """
    from scipy.stats import rankdata

    num_positive = int(is_positive.sum())
    num_negative = len(is_positive) - num_positive
    ranks = rankdata(scores, axis=1)
    # A rank among all less the rank among one's own kind counts the cases of the other kind below.
    above = (ranks[:, is_positive] - rankdata(scores[:, is_positive], axis=1)) / num_negative
    below = 1 - (ranks[:, ~is_positive] - rankdata(scores[:, ~is_positive], axis=1)) / num_positive
    areas = above.mean(axis=1)
    numbers = number_units(range(len(is_positive)) if units is None else units)
    units_10 = len(np.unique(numbers[is_positive]))
    units_01 = len(np.unique(numbers[~is_positive]))
    all_units = len(np.unique(numbers))
    if min(units_10, units_01) < 2:
        return areas, None
    d10 = np.stack([np.bincount(numbers[is_positive], row, all_units) for row in above - areas[:, None]])
    d01 = np.stack([np.bincount(numbers[~is_positive], row, all_units) for row in below - areas[:, None]])
    s10 = units_10 / ((units_10 - 1) * num_positive) * d10 @ d10.T
    s01 = units_01 / ((units_01 - 1) * num_negative) * d01 @ d01.T
    s11 = all_units / (all_units - 1) * d10 @ d01.T
    return areas, s10 / num_positive + s01 / num_negative + (s11 + s11.T) / (num_positive * num_negative)


def find_operating_point(scores: Floats, is_positive: NDArray[np.bool_], specificity: float) -> RocPoint | None:
    """Return the point of most sensitivity at a specificity, the most specific of equals; None without both kinds.

    Args:
        scores: Of each case, shape (N,).
        is_positive: Whether a case is one of the class, shape (N,).
        specificity: The least that is wanted, in [0, 1].
    """
    if is_positive.all() or not is_positive.any():
        return None
    thresholds = np.unique(scores)[::-1]

    def share_called(of_kind: Floats) -> Floats:
        counts = len(of_kind) - np.searchsorted(np.sort(of_kind), thresholds)
        # A first threshold, which no case reaches, calls none.
        return np.concatenate([[0], counts]) / len(of_kind)

    sensitivities = share_called(scores[is_positive])
    specificities = 1 - share_called(scores[~is_positive])
    is_allowed = specificities >= specificity - ROUNDING
    # The first of equals: thresholds fall.
    best = int(np.argmax(np.where(is_allowed, sensitivities, -1)))
    threshold = float(thresholds[best - 1]) if best else None
    return RocPoint(threshold, float(sensitivities[best]), float(specificities[best]))


def find_predictive_values(sensitivity: float, specificity: float, prevalence: float) -> tuple[float, float]:
    """Return the positive and the negative predictive value, by Bayes' theorem; NaN where none is called so.

    Args:
        sensitivity: Share of those with the condition who are called so.
        specificity: Share of those without it who are not.
        prevalence: Share of all who have it, in (0, 1).
    """
    right = sensitivity * prevalence
    false_alarms = (1 - specificity) * (1 - prevalence)
    silent = specificity * (1 - prevalence)
    missed = (1 - sensitivity) * prevalence
    positive = right / (right + false_alarms) if right + false_alarms else math.nan
    return positive, silent / (silent + missed) if silent + missed else math.nan
