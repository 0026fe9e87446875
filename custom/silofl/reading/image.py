"""An image as its file holds it, and whether two lie on the same grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError

# Tools round affines differently: by a tenth of a millimetre, and of a voxel, however small voxels are.
GRID_TOLERANCE_MM, SAME_VOXEL = 0.1, 0.1
SPACING_MM = (0.001, 1000.0)
# Of three axes of length 1; a box has 1, a scan that was sheared by its gantry's tilt more than 0.5.
LEAST_VOLUME = 0.001


@dataclass(frozen=True)
class Image:
    """A picture, a volume or a window of a time series, as stored in its file.

    Attributes:
        array: (C, rows, columns) of a picture, (C, X, Y, Z) of a volume, (C, 1, T) of a window, in the stored type.
        affine: Voxel indices to millimetres (right, front, head), shape (4, 4); None without such a grid.
        dtype_max: The largest value that the stored type can hold, 1 for one bit; None when it is no integer type.
        is_window: Whether the channels are a sensor's, which are never converted between grey and colour.
        has_contrasts: Whether the channels are no colours but images of their own, as a 4D NIfTI holds.
        is_resampled: Whether a contrast was brought to the grid of another.
    """

    array: NDArray[Any]
    affine: NDArray[np.float64] | None
    dtype_max: int | None
    is_window: bool = False
    has_contrasts: bool = False
    is_resampled: bool = False

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Size without channels."""
        return self.array.shape[1:]


def check_affine(affine: NDArray[np.float64], name: str) -> None:
    """Refuse a grid of voxels that no scanner has.

    Args:
        affine: Voxel indices to millimetres, (4, 4).
        name: What messages call the image.

    Raises:
        DataError: A number is not finite, a voxel is not of 0.001 to 1000 mm, or axes are parallel.
    """
    low, high = SPACING_MM
    remedy = "correct its header, or export it again"
    if not np.isfinite(affine).all():
        raise DataError(f"{name} has a position, spacing or direction that is NaN or infinite; {remedy}")
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    if spacing.min() < low or spacing.max() > high:
        shown = " x ".join(f"{size:g}" for size in spacing)
        raise DataError(f"{name} has voxels of {shown} mm, beyond {low:g} to {high:g} mm; {remedy}")
    if abs(np.linalg.det(affine[:3, :3] / spacing)) < LEAST_VOLUME:
        raise DataError(f"{name} has axes that do not point in three directions; {remedy}")


def check_grid(other: Image, image: Image, name: str, what: str, or_else: str = "") -> None:
    """Refuse an array that does not lie voxel on voxel on an image.

    Args:
        other: A label map or another contrast.
        name: What messages call the other.
        what: What they call the image.
        or_else: What may be done besides making the grids one, as the end of the sentence.

    Raises:
        DataError: Sizes or grids differ, or one is a grid that no scanner has.
    """
    if other.spatial_shape != image.spatial_shape:
        raise DataError(
            f"{name} has the size {other.spatial_shape}, and {what} {image.spatial_shape}; export both from the same "
            f"grid{or_else}"
        )
    if other.affine is None or image.affine is None or is_same_grid(other, image):
        return
    check_affine(other.affine, name)
    check_affine(image.affine, what)
    distance = np.abs(_measure_corners(other.affine - image.affine, image)).max()
    # Of small voxels all may lie within a tenth of a millimetre.
    shown = f"{distance:.1f}" if distance > GRID_TOLERANCE_MM else f"{distance:.2g}"
    raise DataError(
        f"{name} lies up to {shown} mm away from {what} (by origin, spacing or axes); resample it to {what}{or_else}"
    )


def is_same_grid(other: Image, image: Image) -> bool:
    """Return whether two grids of one size are the same but for rounding; True where one is no grid in space."""
    if other.affine is None or image.affine is None:
        return True
    apart = _measure_corners(other.affine - image.affine, image)
    return bool(np.abs(apart).max() <= GRID_TOLERANCE_MM) and is_same_voxel(apart, image.affine[:3, :3])


def is_identity(image: Image) -> bool:
    """Return whether a grid's voxels of 1 mm begin at 0, in NIfTI's world or DICOM's: programs write it for none."""
    return image.affine is not None and is_at_zero(image) and np.allclose(np.abs(np.diag(image.affine)), 1)


def is_at_zero(image: Image) -> bool:
    """Return whether a grid states no more than the sizes of voxels: they begin at 0, along the axes of the body."""
    return image.affine is not None and np.allclose(image.affine, np.diag(np.diag(image.affine)))


def is_same_voxel(apart: NDArray[np.float64], axes: NDArray[np.float64]) -> bool:
    """Return whether no distance is more than a tenth of a voxel along any axis.

    Args:
        apart: The distances in millimetres, (3, n).
        axes: The sides of a voxel in millimetres as columns, (3, 3).
    """
    # Along an axis a distance d measures a.d / |a|^2 voxels.
    return bool((np.abs(axes.T @ apart) <= SAME_VOXEL * np.square(axes).sum(axis=0)[:, None]).all())


def _measure_corners(difference: NDArray[np.float64], image: Image) -> NDArray[np.float64]:
    """Return by how many millimetres the corners of two grids of one size differ, (3, 8).

    Args:
        difference: Of their affines. As a map it is affine too, and so largest at a corner.
    """
    apart: NDArray[np.float64] = (difference @ corners(image.spatial_shape))[:3]
    return apart


def overlaps(other: Image, image: Image) -> bool:
    """Return whether two grids meet, by boxes along the axes of the first; True where one is no grid in space."""
    if other.affine is None or image.affine is None:
        return True
    ends = (np.linalg.inv(other.affine) @ image.affine @ corners(image.spatial_shape))[:3]
    # A voxel reaches half of its size beyond its centre.
    return bool((ends.max(axis=1) > -0.5).all() and (ends.min(axis=1) < np.array(other.spatial_shape) - 0.5).all())


def corners(shape: Sequence[int]) -> NDArray[np.int64]:
    """Return the indices of the voxels at the eight corners of a grid, each with a 1: (4, 8)."""
    return np.array(np.meshgrid(*[(0, n - 1) for n in shape], [1])).reshape(4, -1)
