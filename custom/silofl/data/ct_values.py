"""How the values of CT are distributed in the labelled voxels of a site's patients, in shares of bins of 16 HU.

nnU-Net (Isensee et al., Nature Methods 18, 2021) clips CT to percentiles of the foreground of all training cases; here
each site tells shares by bin, of which none is of few patients.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from silofl.data.targets import find_labelled

# The edges are Hounsfield units, also with 1024 too much; what lies outside counts in the end bins.
EDGES = np.arange(-1024, 4096 + 1, 16.0)
NUM_BINS = len(EDGES) - 1

# Whether a patient is known, and the name.
Patient = tuple[bool, str]


def count_values(pixels: np.ndarray, label: np.ndarray | None) -> NDArray[np.float64]:
    """Return how many labelled voxels lie in each bin; all voxels without a label map.

    Args:
        pixels: (1, X, Y, Z).
        label: Of the same shape.
    """
    values = pixels if label is None else pixels[find_labelled(label)]
    return np.histogram(values.clip(EDGES[0], EDGES[-1]), EDGES)[0].astype(np.float64)


def share_values(counts: Mapping[Patient, Sequence[NDArray[np.float64]]], least: int) -> NDArray[np.float64] | None:
    """Return the share of each bin in the voxels of all patients, each with the mean of the own cases.

    What lies in a bin of too few patients counts in the nearest bin of enough, so that nobody's least or largest value
    is seen.

    Args:
        counts: Patient -> `count_values` of each case.
        least: Patients, known by name, that a bin must be of.

    Returns:
        Shape (NUM_BINS,); None where no bin is of so many.
    """
    # A patient whom nobody knows by name adds to the shares, but holds no bin.
    total = np.zeros(NUM_BINS)
    holders = np.zeros(NUM_BINS, int)
    for (is_known, _), of_cases in counts.items():
        mean = np.mean(of_cases, axis=0)
        total += mean
        holders += is_known & (mean > 0)
    shared = np.flatnonzero((total > 0) & (holders >= least))
    if not len(shared):
        return None
    nearest = shared[np.abs(np.arange(NUM_BINS)[:, None] - shared).argmin(axis=1)]
    shares: NDArray[np.float64] = np.bincount(nearest, weights=total, minlength=NUM_BINS) / total.sum()
    return shares
