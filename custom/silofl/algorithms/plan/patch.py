"""The input of a network and how the network halves it, after the median image and a budget of memory: nnU-Net's rules.

Isensee et al., nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation, Nature Methods
18, 2021, Supplementary Note on automated method configuration. There a network of its own is made for the data. Here
that is MONAI's DynUNet; the other networks halve every side as often as they do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silofl.base.errors import ConfigError

# A side is halved where the half has at least 4 voxels, and where its voxels are no coarser than twice the finest.
LEAST_HALVED, COARSE = 8, 2
MOST_HALVINGS = 5
# nnU-Net's channels by level, at most 320.
FEATURES = (32, 64, 128, 256, 320, 320)
LEAST_BATCH = 2
BATCH_SHARE = 0.05
# As `silofl.study.data_settings.Side` has it; a multiple of all divisors.
MOST_SIDE = 512
# BasicUNet halves four times; SwinUNETR's windows need one halving more.
DIVISOR = {"SwinUNETR": 32}
HALVED_FOUR_TIMES = 16

Sizes = NDArray[np.int64]


@dataclass(frozen=True)
class NetworkForm:
    """What a network takes.

    Attributes:
        name: ``unet`` or another of SiloFL's names, or the class in ``monai.networks.nets``.
        features: Channels of its levels from the first on; nnU-Net's where the study does not name them.
        least_side: The shortest side of its input.
    """

    name: str
    features: tuple[int, ...] = FEATURES
    least_side: int = 1

    @classmethod
    def of(cls, name: str, features: tuple[int, ...], is_classifying: bool, dimensions: int) -> NetworkForm:
        """Return the form of a network that answers images of so many dimensions."""
        least = 32 if is_classifying or dimensions == 2 else HALVED_FOUR_TIMES
        least = {"DynUNet": 1, "alexnet": 64}.get(name, max(least, DIVISOR.get(name, 1)))
        return cls(name, features, least)


@dataclass(frozen=True)
class PlannedPatch:
    """The input of a network, and how the network halves it.

    Attributes:
        size: Voxels by axis.
        strides: By level of the network, from the first, which is not halved; shape (levels, axes).
        kernels: Sides of the convolutions' kernels, likewise.
        memory: Voxels times features of all levels, for one patch.
    """

    size: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    kernels: tuple[tuple[int, ...], ...]
    memory: float


def halvings(size: ArrayLike, spacing: ArrayLike) -> tuple[list[list[int]], list[list[int]]]:
    """Return strides and kernels of a network's levels, from the first, which has stride 1.

    A side is halved while it has at least 8 voxels and these are less than 2 times as long as the finest of the sides
    that can be halved still, at most 5 times. A kernel has 3 voxels along an axis once its voxels are less than 2 times
    as long as the finest of all, and 1 before.
    """
    sides, lengths = np.array(size, dtype=np.int64), np.array(spacing, dtype=np.float64)
    strides, counts = [np.ones(len(sides), np.int64)], np.zeros(len(sides), np.int64)
    is_near = lengths < COARSE * lengths.min()
    kernels = [np.where(is_near, 3, 1)]
    while (can := (sides >= LEAST_HALVED) & (counts < MOST_HALVINGS)).any():
        stride = np.where(can & (lengths < COARSE * lengths[can].min()), 2, 1)
        sides, lengths, counts = -(-sides // stride), lengths * stride, counts + (stride == 2)
        is_near |= lengths < COARSE * lengths.min()
        strides.append(stride)
        kernels.append(np.where(is_near, 3, 1))
    return [one.tolist() for one in strides], [one.tolist() for one in kernels]


def estimate_memory(size: Sequence[int], strides: Sequence[Sequence[int]], features: Sequence[int]) -> float:
    """Return the voxels times features of all levels of a network for one patch; the last features count on."""
    scales = np.cumprod(strides, axis=0)
    widths = [features[min(level, len(features) - 1)] for level in range(len(strides))]
    return float(sum(width * np.prod(size / scale) for width, scale in zip(widths, scales, strict=True)))


# What nnU-Net's plans for a GPU of 8 GB come to: 2 patches of 128 x 128 x 128 voxels in 6 levels.
BUDGET = LEAST_BATCH * estimate_memory((128,) * 3, [[1] * 3, *[[2] * 3] * 5], FEATURES)


def fit_patch(
    network: NetworkForm, shape: NDArray[np.float64], spacing: NDArray[np.float64], is_square: bool = False
) -> PlannedPatch:
    """Return the largest patch of which two fit into `BUDGET`: the median image, shrunk side by side.

    Sides are rounded up to what the network can halve. While it is too much, the side that is largest in relation to
    the median image, of equal ones the longest, becomes smaller by as much as its halvings need.

    Args:
        network: The network.
        shape: Median voxels by axis on the planned grid.
        spacing: That grid's, by axis.
        is_square: Whether the first two sides must be of one length, the shorter one's, because images are turned.

    Raises:
        ConfigError: Two patches of the least size are too much.
    """
    size, least = np.minimum(shape, MOST_SIDE).astype(np.int64), network.least_side
    while True:
        patch = _round_patch(network, np.maximum(size, least), spacing)
        if LEAST_BATCH * patch.memory <= BUDGET:
            break
        size, steps = np.array(patch.size), np.prod(patch.strides, axis=0)
        relations = [
            (size[i] / shape[i], size[i]) if size[i] > max(least, steps[i]) else (0, 0) for i in range(len(size))
        ]
        axis = max(range(len(size)), key=relations.__getitem__)
        if relations[axis] == (0, 0):
            raise ConfigError(
                "model.features must be such that two patches of the least size fit into the plan's budget of "
                f"{BUDGET:.3g} voxels x features, not {2 * patch.memory:.3g}; lower them"
            )
        size[axis] -= steps[axis]
    if not is_square:
        return patch
    side = min(patch.size[:2])
    return _round_patch(network, np.array([side, side, *patch.size[2:]]), spacing)


def fit_batch_size(patch: PlannedPatch, voxels: float) -> int:
    """Return how many patches make a batch: as many as `BUDGET` allows, and at most 5 % of all voxels; at least 2."""
    most = min(BUDGET / patch.memory, BATCH_SHARE * voxels / math.prod(patch.size))
    return max(LEAST_BATCH, int(most))


def _round_patch(network: NetworkForm, size: Sizes, spacing: NDArray[np.float64]) -> PlannedPatch:
    """Return the patch whose sides are rounded up to what the network can halve."""
    # Up, and so maybe beyond the median image, as in nnU-Net: a side that ends at the median could not be halved as
    # often as the network does. A volume that is smaller than a patch is padded with zeros.
    if network.name == "DynUNet":
        strides, kernels = halvings(size, spacing)
        steps = np.prod(strides, axis=0)
    else:
        steps = np.full(len(size), DIVISOR.get(network.name, HALVED_FOUR_TIMES))
        levels = 1 + int(math.log2(steps[0]))
        strides, kernels = [[1] * len(size), *[[2] * len(size)] * (levels - 1)], [[3] * len(size)] * levels
    sides = tuple((-(-size // steps) * steps).tolist())
    used = estimate_memory(sides, strides, network.features)
    return PlannedPatch(sides, tuple(map(tuple, strides)), tuple(map(tuple, kernels)), used)
