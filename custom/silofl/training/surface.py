"""Surface distances of label maps by case: HD95 and the surface Dice, in mm where the files state the voxels' size.

Huttenlocher et al., "Comparing Images Using the Hausdorff Distance", IEEE TPAMI 1993; Nikolov et al., "Clinically
Applicable Segmentation of Head and Neck Anatomy for Radiotherapy", JMIR 2021, arXiv:1809.04430. Computed by MONAI.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silofl.data.parts import Spacing
from silofl.data.volumes import Array
from silofl.training.metrics import group_positions, mask_labels

# How far apart two surfaces may be, in mm or in pixels, for the surface Dice to count them as the same.
TOLERANCE = 2.0
Distances = tuple[float, float]
Unit = Literal["mm", "pixels"]
PIXELS = (1.0, 1.0, 1.0)


def surface_by_case(
    predictions: Array,
    targets: Array,
    cases: Sequence[str],
    regions: Sequence[Sequence[int]],
    spacings: Mapping[str, Spacing],
) -> dict[str, Distances | None]:
    """Return (HD95, surface Dice) of each case, means over its regions; None where they are not defined.

    HD95 is the larger of both directions' 95th percentile of the distances from one surface to the other; the surface
    Dice is the share of both surfaces that lies within `TOLERANCE` of the other. Neither is defined where a region is
    in truth or prediction alone, nor in a case without any.

    Args:
        predictions: Label maps, N slices (N, H, W) or whole volumes.
        targets: Label maps of the same shape.
        cases: The case of each slice, or volume.
        regions: The labels of each region that counts, without background.
        spacings: Case -> the size of its voxels; where it lacks one, its pixels and the distance of its slices are 1.
    """
    by_case: dict[str, Distances | None] = {}
    for case, rows in group_positions(cases).items():
        predicted = np.asarray(predictions[rows])
        truth = np.asarray(targets[rows])
        pairs = []
        is_defined = True
        for labels in regions:
            pair = (mask_labels(predicted, labels), mask_labels(truth, labels))
            is_there = [bool(mask.any()) for mask in pair]
            # A region that is neither in truth nor predicted does not count.
            if any(is_there):
                pairs.append(pair)
                is_defined = is_defined and all(is_there)
        by_case[case] = None
        if pairs and is_defined:
            by_case[case] = _mean_distances(pairs, _order_spacing(truth, spacings.get(case, PIXELS)))
    return by_case


def surface_numbers(by_case: Mapping[str, Distances | None], unit: Unit) -> dict[str, Any]:
    """Return the numbers that leave the site, means over the cases in which the distances are defined."""
    known = [distances for distances in by_case.values() if distances is not None]
    hd95, dice = np.mean(known, axis=0).tolist() if known else (None, None)
    return {
        "hd95": hd95,
        "surface_dice": dice,
        "unit": unit,
        "num_cases": len(known),
        "num_undefined": len(by_case) - len(known),
    }


def _order_spacing(maps: NDArray[Any], spacing: Spacing) -> Spacing:
    """Return the voxels' size along the axes of slices (N, H, W) or of one volume (1, X, Y, Z)."""
    x, y, z = spacing
    return (z, x, y) if maps.ndim == 3 else spacing


def _mean_distances(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]], sizes: Spacing) -> Distances:
    # One region at a time: MONAI holds many numbers for each voxel of every region that it is given.
    measures = [_measure_region(predicted, truth, sizes) for predicted, truth in pairs]
    hd95 = torch.stack([distance for distance, _ in measures]).mean()
    dice = torch.stack([share for _, share in measures]).mean()
    return float(hd95), float(dice)


def _measure_region(predicted: NDArray[Any], truth: NDArray[Any], sizes: Spacing) -> tuple[Tensor, Tensor]:
    # Imported here because it takes seconds, which no classification needs.
    from monai.metrics.hausdorff_distance import compute_hausdorff_distance
    from monai.metrics.surface_dice import compute_surface_dice

    # A picture is an area: as a volume of one slice, all of its pixels would be surface. A whole volume is one already.
    slices = slice(None) if len(truth) > 1 else 0
    answer, target = [torch.from_numpy(mask[slices][None, None]) for mask in (predicted, truth)]
    spacing = list(sizes[-(answer.ndim - 2) :])
    with warnings.catch_warnings():
        # MONAI warns of an option that it sets itself.
        warnings.simplefilter("ignore", FutureWarning)
        hd95 = compute_hausdorff_distance(answer, target, True, percentile=95, spacing=spacing)
        dice = compute_surface_dice(answer, target, [TOLERANCE], True, spacing=spacing)
    return hd95[0, 0], dice[0, 0]
