"""Lay a label map onto its image voxel by voxel: axes turned, a cropped map padded, and resampled only on request."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.data.header import check_affine, find_segmentation, is_dicom, read_frame_of_reference, read_header
from silofl.data.images import GRID_TOLERANCE_MM, SAME_VOXEL, Image, check_grid, corners, is_same_grid, overlaps
from silofl.errors import DataError


def lay_on_image(label: Image, image: Image, name: str, files: Sequence[Path]) -> Image:
    """Return a label map with the voxels of its image.

    Axes in another order or direction are turned, and a map of a part of the image is padded with background. No voxel
    is interpolated.

    Args:
        label: The label map.
        image: Its image.
        name: What messages call the label map.
        files: The files of both, whose headers must state how the axes lie before any is turned.

    Raises:
        DataError: A voxel of the map is none of the image's.
    """
    check_frame_of_reference(files, name)
    is_placed = label.affine is not None and image.affine is not None
    is_same = label.spatial_shape == image.spatial_shape and is_same_grid(label, image)
    if is_placed and not is_same and all(read_header(file).has_orientation for file in files):
        _check_affines(label, image, name)
        place = match_voxels(label.affine, label.spatial_shape, image)
        if place is not None:
            laid = np.zeros((1, *image.spatial_shape), label.array.dtype)
            view_voxels(laid[0], place, label.spatial_shape)[...] = label.array[0]
            return replace(label, array=laid, affine=image.affine)
    check_grid(label, image, name, "its image", ", or import with --resample-masks" if is_placed else "")
    return label


def _check_affines(label: Image, image: Image, name: str) -> None:
    for affine, called in ((label.affine, name), (image.affine, f"the image of {name}")):
        check_affine(affine, called)


def check_frame_of_reference(files: Sequence[Path], name: str) -> None:
    """Refuse a DICOM segmentation that was drawn on another scan: places in mm are those of one frame alone.

    Args:
        files: The label map, then its image.
        name: What messages call the label map.

    Raises:
        DataError: Both state a frame of reference, and these differ.
    """
    if files and find_segmentation(files[0]) and all(map(is_dicom, files)):
        frames = {read_frame_of_reference(file) for file in files} - {None}
        if len(frames) > 1:
            raise DataError(
                f"{name} must be drawn on its image, not in another frame of reference (FrameOfReferenceUID); name the "
                "series on which it was drawn"
            )


def match_voxels(affine: NDArray[np.float64], shape: Sequence[int], image: Image) -> NDArray[np.int64] | None:
    """Return which voxel of an image each voxel of a grid is; None where one of them is none.

    Args:
        affine: The grid's voxel indices to millimetres, (4, 4).
        shape: Its size.
        image: The image, with a grid of its own.

    Returns:
        Voxel indices to the image's, (3, 4): an order of the axes, their directions and the place of the first voxel.
    """
    exact = np.linalg.solve(image.affine, affine)[:3]
    place = np.round(exact)
    turn = np.abs(place[:, :3])
    ends = corners(shape)
    # The difference of two affine maps is affine: it is largest at a corner.
    apart, reached = (exact - place) @ ends, place @ ends
    is_turned = (turn.sum(axis=0) == 1).all() and (turn.sum(axis=1) == 1).all()
    is_near = np.abs(apart).max() <= SAME_VOXEL and np.abs(image.affine[:3, :3] @ apart).max() <= GRID_TOLERANCE_MM
    is_within = (reached.min(axis=1) >= 0).all() and (reached.max(axis=1) < image.spatial_shape).all()
    return place.astype(np.int64) if is_turned and is_near and is_within else None


def view_voxels(target: NDArray, place: NDArray[np.int64], shape: Sequence[int]) -> NDArray:
    """Return the part of an array of the image's size that a grid covers, with the axes of the grid; a view."""
    turn = place[:, :3]
    axes = np.abs(turn).argmax(axis=0)
    view = target.transpose(axes)
    for axis, size in enumerate(shape):
        first, sign = place[axes[axis], 3], turn[axes[axis], axis]
        low = min(first, first + sign * (size - 1))
        along = slice(low, low + size)
        part = view[(slice(None),) * axis + (along,)]
        view = part if sign > 0 else np.flip(part, axis)
    return view


def resample_to_image(label: Image, image: Image, name: str) -> Image:
    """Return a label map on its image's grid, each voxel with the label of the nearest one; background beyond them.

    Args:
        label: The label map.
        image: Its image.
        name: What messages call the label map.

    Raises:
        DataError: They do not overlap, or one has no grid.
    """
    from scipy.ndimage import affine_transform

    if label.affine is None or image.affine is None:
        check_grid(label, image, name, "its image")
        return label
    _check_affines(label, image, name)
    if not overlaps(label, image):
        raise DataError(
            f"{name} must overlap with its image; it lies beside it: correct the position in its header, or leave the "
            "case out"
        )
    back = np.linalg.solve(label.affine, image.affine)
    # Without "grid" the outer half of the voxels at the edge would be background.
    found = affine_transform(label.array[0], back, output_shape=image.spatial_shape, order=0, mode="grid-constant")
    return replace(label, array=found[None], affine=image.affine)
