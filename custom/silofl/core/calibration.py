"""Calibration: whether a model that is 80 % sure is right in 80 of 100 cases.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599:

    ECE = sum over bins of (cases in the bin / all cases) |share that is right - mean confidence|
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 10


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
    # A probability of 1 belongs to the last bin.
    numbers = np.minimum((confidences * BINS).astype(int), BINS - 1)
    return [
        ReliabilityBin(number / BINS, len(rows), float(confidences[rows].mean()), float(is_right[rows].mean()))
        for number in range(BINS)
        if len(rows := np.flatnonzero(numbers == number))
    ]


def expected_calibration_error(bins: list[ReliabilityBin]) -> float:
    """Return the expected calibration error, ECE, of all cases of some bins."""
    total = sum(one.num_cases for one in bins)
    return sum(one.num_cases * abs(one.accuracy - one.confidence) for one in bins) / total
