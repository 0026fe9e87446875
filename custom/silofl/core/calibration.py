"""Calibration: whether a model that is 80 % sure is right in 80 of 100 cases.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599:

    ECE = sum over bins of (cases in the bin / all cases) |share that is right - mean confidence|

Of few cases it is above 0 even where confidences are right, as much as chance moves the shares: 0.15 of 20 cases. It
says something only beside that.
"""

import numpy as np
from numpy.typing import NDArray

from silofl.core.intervals import OUTSIDE, Estimate

BINS = 10
DRAWS, SEED = 1000, 0


def expected_calibration_error(confidences: NDArray[np.float64], is_right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error, ECE, over ten equally wide ranges of confidence.

    Args:
        confidences: Probability of the class that was answered, shape (N,), in [0, 1].
        is_right: Whether that is the true one, shape (N,).
    """
    numbers = _number_bins(confidences)
    error = 0.0
    for number in np.unique(numbers):
        rows = numbers == number
        accuracy = float(is_right[rows].mean())
        confidence = float(confidences[rows].mean())
        error += int(rows.sum()) * abs(accuracy - confidence)
    return error / len(confidences)


def calibrated_error(confidences: NDArray[np.float64]) -> Estimate:
    """Return the ECE that as many cases of a perfectly calibrated model show, with the interval of 95 % of such models.

    Whether each answer is right is drawn with its own confidence, 1000 times.

    Args:
        confidences: As for `expected_calibration_error`.
    """
    # A seed of its own: the same test gives the same interval whatever was drawn before.
    random = np.random.default_rng(SEED)
    numbers = _number_bins(confidences)
    errors = np.empty(DRAWS)
    for draw in range(DRAWS):
        gaps = (random.random(len(confidences)) < confidences) - confidences
        errors[draw] = np.abs(np.bincount(numbers, gaps)).sum() / len(confidences)
    low, high = np.quantile(errors, (OUTSIDE, 1 - OUTSIDE)).tolist()
    return Estimate(float(errors.mean()), (low, high), len(confidences))


def _number_bins(confidences: NDArray[np.float64]) -> NDArray[np.intp]:
    # A probability of 1 belongs to the last bin.
    return np.minimum((confidences * BINS).astype(np.intp), BINS - 1)
