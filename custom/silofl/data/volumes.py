"""Volumes of different sizes in place of one array, and the patches that a network sees of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from silofl.data.targets import find_labelled
from silofl.study.data_settings import PatchSettings

if TYPE_CHECKING:
    from torch import Tensor

# A volume that is recognised as a whole is seen by so many slices, each of so many pixels a side.
SLICES = 3
SIDE = 96


@dataclass(frozen=True)
class Volumes:
    """Arrays of different sizes, one an example, which may lie in one memory map; used like the array of all of them.

    Attributes:
        arrays: Each (C, X, Y, Z), an image, or (X, Y, Z), a label map.
    """

    arrays: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, flat: np.ndarray, shapes: Sequence[Sequence[int]]) -> Volumes:
        """Cut a flat array into volumes, without a copy.

        Raises:
            ValueError: The shapes do not fill the array.
        """
        arrays = []
        start = 0
        for shape in shapes:
            end = start + math.prod(shape)
            # A slice that ends behind the array is too short for its shape, which reshape refuses.
            arrays.append(flat[start:end].reshape(shape))
            start = end
        if start != len(flat):
            raise ValueError("the shapes differ from the array")
        return cls(tuple(arrays))

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.arrays)

    @overload
    def __getitem__(self, rows: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, rows: slice | Sequence[int] | np.ndarray) -> Volumes: ...

    def __getitem__(self, rows: int | slice | Sequence[int] | np.ndarray) -> np.ndarray | Volumes:
        """Return one volume by its number, or several as such a row again."""
        if isinstance(rows, int | np.integer):
            return self.arrays[rows]
        return Volumes(self.arrays[rows] if isinstance(rows, slice) else tuple(self.arrays[row] for row in rows))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Return volumes of one size as one array; a case has one volume, and so one size."""
        return np.stack(self.arrays).astype(dtype or self.arrays[0].dtype, copy=False)

    @property
    def ndim(self) -> int:
        """Axes of the array of all: one more than a volume has; without any, those of label maps."""
        return 1 + max((array.ndim for array in self.arrays), default=3)


Array = np.ndarray | Volumes


def concatenate_parts(parts: Sequence[Array]) -> Array:
    """Return the examples of several parts as one."""
    if isinstance(parts[0], Volumes):
        return Volumes(tuple(array for part in parts for array in part))
    return np.concatenate(parts)


class PatchSampler:
    """Draws patches of volumes, some around a voxel of a label: MONAI's RandCropByPosNegLabel.

    Args:
        patches: Their size and how they are drawn.
        seed: The same seed draws the same patches from the same volumes.
    """

    def __init__(self, patches: PatchSettings, seed: int) -> None:
        # MONAI is imported here because it takes seconds, which studies without patches need not wait.
        from monai.transforms.croppad.array import RandCropByPosNegLabel, SpatialCrop

        share = patches.foreground
        self._size = patches.size
        self._compute_slices = SpatialCrop.compute_slices
        self._cropper = RandCropByPosNegLabel(patches.size, pos=share, neg=1 - share, num_samples=1, allow_smaller=True)
        self._cropper.set_random_state(seed=int(np.random.SeedSequence(seed).generate_state(1)[0]))

    @property
    def generator(self) -> np.random.RandomState:
        """What the patches are drawn with."""
        return self._cropper.R

    def draw(self, image: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a patch of an image (C, X, Y, Z), and of its label map (X, Y, Z).

        A volume that is smaller is padded with zeros on both sides, as MONAI's sliding window does.
        """
        with warnings.catch_warnings():
            # MONAI warns of a volume without a label, whose patches then lie anywhere.
            warnings.simplefilter("ignore", UserWarning)
            # An array serves as well as the tensor that MONAI names.
            labelled: Any = find_labelled(target)[None]
            self._cropper.randomize(labelled)
        # MONAI moves the centre where the patch would reach over the border.
        (center,) = filter(None, self._cropper.centers or ())
        slices = self._compute_slices(roi_center=center, roi_size=self._size)
        return pad_to_size(image[(slice(None), *slices)], self._size), pad_to_size(target[slices], self._size)


def pad_to_size(array: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Return an array (..., X, Y, Z) with zeros on both sides where it is smaller than a size."""
    widths = [(0, 0)] * (array.ndim - len(size))
    for wanted, side in zip(size, array.shape[-len(size) :], strict=True):
        lack = max(0, wanted - side)
        # The odd voxel goes behind, as with MONAI.
        widths.append((lack // 2, lack - lack // 2))
    # Padding by nothing would still copy.
    return np.pad(array, widths) if np.any(widths) else array


def central_slices(image: np.ndarray) -> NDArray[np.float32]:
    """Return the slices in the middle of the last axis of an image (C, X, Y, Z), resized: (SLICES, C, SIDE, SIDE).

    They stand for the volume where it is recognised as a whole; one with fewer slices gives one several times.
    """
    import torch

    start = image.shape[-1] // 2 - SLICES // 2
    # Only these slices are copied: a memory map may be of a whole volume, and not writable.
    slices = image[..., max(start, 0) : start + SLICES].copy()
    return resize_central_slices(torch.from_numpy(slices)).numpy()


def resize_central_slices(image: Tensor) -> Tensor:
    """Return the same of a tensor, by operations of torch alone."""
    import torch
    from torch.nn.functional import interpolate

    depth = image.shape[-1]
    chosen = (torch.arange(SLICES, device=image.device) + (depth // 2 - SLICES // 2)).clamp(0, depth - 1)
    slices = image.index_select(3, chosen).permute(3, 0, 1, 2).contiguous()
    return interpolate(slices, (SIDE, SIDE), mode="bilinear", antialias=True)
