"""Lesions one by one, and how far volumes are from the truth.

A lesion is a connected component of a label, also over edges and corners. The limits of agreement are those of Bland
and Altman, Statistical Methods for Assessing Agreement between Two Methods of Clinical Measurement, The Lancet 1986.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Deviations on either side of the mean difference.
LIMITS = 1.96


@dataclass(frozen=True)
class LesionCounts:
    """The lesions of a case.

    Attributes:
        num_true: Lesions in truth.
        num_found: Those of which at least one voxel is predicted.
        num_false: Predicted lesions without a voxel of a true one.
    """

    num_true: int
    num_found: int
    num_false: int


@dataclass(frozen=True)
class Agreement:
    """How far predicted sizes are from the true ones.

    Attributes:
        bias: Mean of predicted minus true.
        low: Lower limit of agreement: the bias less 1.96 standard deviations of the differences; None of one case.
        high: Upper limit.
    """

    bias: float
    low: float | None
    high: float | None


def count_lesions(prediction: NDArray[np.bool_], truth: NDArray[np.bool_], is_one_volume: bool = True) -> LesionCounts:
    """Count the lesions of a case that were found, and those that are none.

    Args:
        prediction: Slices (n, H, W), or one volume (1, X, Y, Z).
        truth: Of the same shape.
        is_one_volume: Whether slices lie on one another; pictures do not.
    """
    from scipy.ndimage import label

    neighbours = np.ones((3,) * truth.ndim, bool)
    if truth.ndim == 3 and not is_one_volume:
        neighbours[[0, 2]] = False
    true_lesions, num_true = label(truth, neighbours)
    predicted_lesions, num_predicted = label(prediction, neighbours)
    is_hit = prediction & truth
    num_found = len(np.unique(true_lesions[is_hit]))
    # Two predicted lesions may hit the same true one, and one may hit two: both are counted on their own side.
    num_right = len(np.unique(predicted_lesions[is_hit]))
    return LesionCounts(num_true, num_found, num_predicted - num_right)


def measure_agreement(predicted: Sequence[float], true: Sequence[float]) -> Agreement | None:
    """Return Bland and Altman's bias and limits of agreement; None without a case.

    Args:
        predicted: The size that is predicted, one a case.
        true: The true size.
    """
    differences = np.subtract(predicted, true)
    if not len(differences):
        return None
    bias = float(differences.mean())
    if len(differences) == 1:
        return Agreement(bias, None, None)
    margin = LIMITS * float(differences.std(ddof=1))
    return Agreement(bias, bias - margin, bias + margin)
