"""Volumes of different sizes in place of one array, and the patches that a network sees of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike, NDArray

from silofl.data.targets import find_labelled
from silofl.study.data_settings import PatchSettings

if TYPE_CHECKING:
    from torch import Tensor

# Of a volume that is recognised as a whole: its slices, and their pixels along each axis.
SLICES, SIDE = 3, 96


@dataclass(frozen=True)
class Volumes:
    """Arrays of different sizes, one an example, which may lie in one memory map; used like the array of all of them.

    Attributes:
        arrays: Each (C, X, Y, Z), an image, or (X, Y, Z), a label map.
    """

    arrays: tuple[NDArray, ...]

    @classmethod
    def of(cls, flat: NDArray, shapes: Sequence[Sequence[int]]) -> Volumes:
        """Cut a flat array into volumes, without a copy.

        Raises:
            ValueError: The shapes do not fill the array.
        """
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
        if ends[-1] != len(flat):
            raise ValueError("the shapes differ from the array")
        pieces = zip(ends[:-1], ends[1:], shapes, strict=True)
        return cls(tuple(flat[start:end].reshape(shape) for start, end, shape in pieces))

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Iterator[NDArray]:
        return iter(self.arrays)

    def __getitem__(self, rows: int | slice | Sequence[int]) -> NDArray | Volumes:
        """Return one volume by its number, or several as such a row again."""
        if isinstance(rows, slice):
            return Volumes(self.arrays[rows])
        return self.arrays[rows] if np.ndim(rows) == 0 else Volumes(tuple(self.arrays[row] for row in rows))

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> NDArray:
        """Return volumes of one size as one array; a case has one volume, and so one size."""
        return np.stack(self.arrays).astype(dtype or self.arrays[0].dtype, copy=False)

    @property
    def ndim(self) -> int:
        """Axes of the array of all: one more than a volume has; without any, those of label maps."""
        return 1 + max((array.ndim for array in self.arrays), default=3)


Array = NDArray | Volumes


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
        # Imported here: it takes seconds, which studies without patches need not wait.
        from monai.transforms import RandCropByPosNegLabel, SpatialCrop

        share = patches.foreground
        self._size, self._slices = patches.size, SpatialCrop.compute_slices
        self._cropper = RandCropByPosNegLabel(patches.size, pos=share, neg=1 - share, num_samples=1, allow_smaller=True)
        self._cropper.set_random_state(seed=int(np.random.SeedSequence(seed).generate_state(1)[0]))

    @property
    def generator(self) -> np.random.RandomState:
        """What the patches are drawn with."""
        return self._cropper.R

    def draw(self, image: NDArray, target: NDArray) -> tuple[NDArray, NDArray]:
        """Return a patch of an image (C, X, Y, Z), and of its label map (X, Y, Z).

        A volume that is smaller is padded with zeros on both sides, as MONAI's sliding window does.
        """
        with warnings.catch_warnings():
            # MONAI warns of a volume without a label, whose patches then lie anywhere.
            warnings.simplefilter("ignore", UserWarning)
            self._cropper.randomize(find_labelled(target)[None])
        place = self._slices(roi_center=self._cropper.centers[0], roi_size=self._size)
        return pad_to_size(image[(slice(None), *place)], self._size), pad_to_size(target[place], self._size)


def pad_to_size(array: NDArray, size: Sequence[int]) -> NDArray:
    """Return an array (..., X, Y, Z) with zeros on both sides where it is smaller than a size."""
    lacking = [max(0, wanted - found) for wanted, found in zip(size, array.shape[-len(size) :], strict=True)]
    if not any(lacking):
        return array
    widths = [(lack // 2, lack - lack // 2) for lack in lacking]
    return np.pad(array, [*[(0, 0)] * (array.ndim - len(size)), *widths])


def central_slices(image: NDArray) -> NDArray[np.float32]:
    """Return the slices in the middle of the last axis of an image (C, X, Y, Z), resized: (SLICES, C, SIDE, SIDE).

    They stand for the volume where it is recognised as a whole; one with fewer slices gives one several times.
    """
    import torch

    # A copy of these alone: a memory map may be of a whole volume, and not writable.
    first = image.shape[-1] // 2 - SLICES // 2
    return resize_central_slices(torch.from_numpy(image[..., max(first, 0) : first + SLICES].copy())).numpy()


def resize_central_slices(image: Tensor) -> Tensor:
    """Return the same of a tensor, by operations of torch alone."""
    import torch
    from torch.nn.functional import interpolate

    depth = image.shape[-1]
    chosen = (torch.arange(SLICES, device=image.device) + (depth // 2 - SLICES // 2)).clamp(0, depth - 1)
    slices = image.index_select(3, chosen).permute(3, 0, 1, 2).contiguous()
    return interpolate(slices, (SIDE, SIDE), mode="bilinear", antialias=True)
