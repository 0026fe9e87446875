"""Calibration: whether a model that is 80 % sure is right in 80 of 100 cases.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599:

    ECE = sum over bins of (cases in the bin / all cases) |share that is right - mean confidence|

Of few cases it is above 0 even where confidences are right, as much as chance moves the shares: 0.15 of 20 cases. It
says something only beside that.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.core.intervals import OUTSIDE, Estimate

BINS = 10
DRAWS, SEED = 1000, 0


@dataclass(frozen=True)
class ReliabilityBin:
    """The cases whose confidence lies in one of equally wide ranges.

    Attributes:
        low: Lower end of the range.
        num_cases: At least 1.
        confidence: Mean probability of the class that was answered.
        accuracy: Share of the cases whose answer is right.
    """

    low: float
    num_cases: int
    confidence: float
    accuracy: float


def group_by_confidence(confidences: NDArray[np.float64], is_right: NDArray[np.bool_]) -> list[ReliabilityBin]:
    """Return the bins that hold a case, the least sure first.

    Args:
        confidences: Probability of the class that was answered, shape (N,), in [0, 1].
        is_right: Whether that is the true one, shape (N,).
    """
    numbers = _number_bins(confidences)
    return [
        ReliabilityBin(number / BINS, len(rows), float(confidences[rows].mean()), float(is_right[rows].mean()))
        for number in range(BINS)
        if len(rows := np.flatnonzero(numbers == number))
    ]


def expected_calibration_error(bins: list[ReliabilityBin]) -> float:
    """Return the expected calibration error, ECE, of all cases of some bins."""
    total = sum(one.num_cases for one in bins)
    return sum(one.num_cases * abs(one.accuracy - one.confidence) for one in bins) / total


def calibrated_error(confidences: NDArray[np.float64]) -> Estimate:
    """Return the ECE that as many cases of a perfectly calibrated model show, with the interval of 95 % of such models.

    Whether each answer is right is drawn with its own confidence, 1000 times.

    Args:
        confidences: As for `group_by_confidence`.
    """
    random, numbers = np.random.default_rng(SEED), _number_bins(confidences)
    errors = np.empty(DRAWS)
    for draw in range(DRAWS):
        gaps = (random.random(len(confidences)) < confidences) - confidences
        errors[draw] = np.abs(np.bincount(numbers, gaps)).sum() / len(confidences)
    low, high = np.quantile(errors, (OUTSIDE, 1 - OUTSIDE)).tolist()
    return Estimate(float(errors.mean()), (low, high), len(confidences))


def _number_bins(confidences: NDArray[np.float64]) -> NDArray[np.intp]:
    # A probability of 1 belongs to the last bin.
    return np.minimum((confidences * BINS).astype(np.intp), BINS - 1)
