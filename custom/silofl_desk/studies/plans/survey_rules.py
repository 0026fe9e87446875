"""Spacing, patch and window of a study by a survey of its hospitals: three rules after nnU-Net.

Isensee et al., nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation, Nature Methods
18, 2021. There the fingerprint of every training case is known; here each hospital tells medians, and of CT shares.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError
from silofl.base.files import read_json
from silofl.base.settings import parse
from silofl.core.outliers import BEYOND, Range, cap_claims, find_far_ranges
from silofl.data.ct_values import EDGES
from silofl.data.inventory import Inventory

# The networks halve every side of a patch four times.
SIDE_STEP = 16
# A patch has at most as many voxels as this cube: two cores train it, and a GPU of 8 GB.
MOST_VOXELS = 96**3
# CT is clipped to these percentiles of its labelled voxels.
PERCENTILES = (0.5, 99.5)
# Of fewer sites nobody can say whose values are unlike the others'.
LEAST_SITES = 3
DIGITS = 3


@dataclass(frozen=True)
class Surveyed:
    """A survey's hospitals with what each counts.

    Attributes:
        sites: Site -> its inventory.
        weights: Site -> its patients, at most 3 times the others' median and fewer than all others' together: alone no
            site sets a median, whatever it says.
    """

    sites: Mapping[str, Inventory]
    weights: Mapping[str, float]


def read_survey(path: Path) -> Surveyed:
    """Read survey.json of a run in a network, or what ``silofl survey --json`` printed.

    Raises:
        ConfigError: The file holds no survey, or one without a hospital.
    """
    sites = read_json(path).get("sites")
    if not isinstance(sites, dict) or not sites:
        raise ConfigError(f"{path} holds no survey of any hospital. Take survey.json, or silofl survey --json.")
    inventories = {site: parse(Inventory, values, f"{path}: {site}") for site, values in sites.items()}
    return Surveyed(inventories, weigh_sites(inventories))


def weigh_sites(inventories: Mapping[str, Inventory]) -> dict[str, float]:
    """Return site -> what it counts, as `Surveyed` has it."""
    capped = cap_claims({site: inventory.patients for site, inventory in inventories.items()}, BEYOND)
    if len(capped) < LEAST_SITES:
        return capped
    total = sum(capped.values())
    return {site: max(1.0, min(weight, total - weight - 1)) for site, weight in capped.items()}


def choose_spacing(survey: Surveyed) -> list[float]:
    """Return the median spacing of the hospitals in mm, along the body's axes.

    Raises:
        ConfigError: No hospital's files state one.
    """
    spacings = {}
    for site, inventory in survey.sites.items():
        if inventory.spacing_mm is not None:
            spacings[site] = inventory.spacing_mm
    if not spacings:
        raise ConfigError("The survey has no spacing. Leave --survey out, or survey hospitals with volumes.")
    return [float(f"{side:.{DIGITS}g}") for side in _find_median(survey, spacings)]


def choose_patch(survey: Surveyed, spacing: list[float]) -> list[int]:
    """Return the patch in the proportions of the median volume on that grid, of at most `MOST_VOXELS`.

    The side that is shortest in relation to the volume grows first, as long as it does not exceed the volume.
    """
    shapes = {}
    for site, inventory in survey.sites.items():
        # Without a spacing nobody knows how large a volume is on the grid.
        if inventory.spacing_mm is not None:
            shapes[site] = np.multiply(inventory.shape, inventory.spacing_mm) / spacing
    shape = _find_median(survey, shapes)
    sides = [SIDE_STEP] * len(shape)
    while True:
        growing = []
        for axis, side in enumerate(sides):
            voxels = math.prod(sides) // side * (side + SIDE_STEP)
            if side < shape[axis] and voxels <= MOST_VOXELS:
                growing.append(axis)
        if not growing:
            return sides
        sides[min(growing, key=lambda axis: sides[axis] / shape[axis])] += SIDE_STEP


def choose_window(survey: Surveyed) -> dict[str, Any] | None:
    """Return the options of ScaleIntensityRange for CT; None where the hospitals do not all have CT.

    Values are clipped to `PERCENTILES` of all hospitals' labelled voxels, and scaled by their mean and deviation. A
    hospital whose values lie far from all others' does not count: a converter may have left out the rescale intercept.
    """
    shares: dict[str, NDArray[np.float64]] = {}
    ranges: dict[str, Range] = {}
    for site, inventory in survey.sites.items():
        if not inventory.ct_shares:
            return None
        shares[site] = np.array(inventory.ct_shares)
        ranges[site] = _find_percentiles(shares[site])
    far = find_far_ranges(ranges, LEAST_SITES)
    weighed = []
    for site, values in shares.items():
        if site not in far:
            weighed.append(survey.weights[site] * values / values.sum())
    pooled = np.sum(weighed, axis=0)
    low, high = _find_percentiles(pooled)
    middles = (EDGES[:-1] + EDGES[1:]) / 2
    mean = np.average(middles, weights=pooled)
    deviation = np.sqrt(np.average((middles - mean) ** 2, weights=pooled))
    # All values may lie in one bin.
    deviation = max(float(deviation), EDGES[1] - EDGES[0])
    scaled = [round(float(edge - mean) / deviation, 4) for edge in (low, high)]
    return {"a_min": round(low), "a_max": round(high), "b_min": scaled[0], "b_max": scaled[1], "clip": True}


def _find_median(survey: Surveyed, values: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return by axis the median over sites, each with its weight."""
    weights = [survey.weights[site] for site in values]
    rows = np.array(list(values.values()), dtype=np.float64)
    return np.quantile(rows, 0.5, axis=0, weights=weights, method="inverted_cdf")


def _find_percentiles(shares: NDArray[np.float64]) -> Range:
    """Return the values at `PERCENTILES` of a distribution by bins."""
    below = np.concatenate([[0], shares.cumsum()])
    low, high = np.interp(np.array(PERCENTILES) / 100 * below[-1], below, EDGES)
    return float(low), float(high)
