"""Lay a label map onto its image voxel by voxel: axes turned, and a cropped map padded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.reading.dicom_files import read_elements
from silofl.reading.dicom_planes import THICKNESS, first_grid, read_planes
from silofl.reading.header import find_segmentation, read_dicom_element, read_header
from silofl.reading.image import (
    GRID_TOLERANCE_MM,
    SAME_VOXEL,
    Image,
    check_affine,
    check_grid,
    corners,
    is_at_zero,
    is_identity,
    is_same_grid,
)
from silofl.reading.raw_volume import LPS_TO_RAS

# Frames of a segmentation lie further apart than its image's slices where none was drawn for some.
MOST_STEPS = 1.5


def lay_on_image(label: Image, image: Image, name: str, files: Sequence[Path]) -> Image:
    """Return a label map with the voxels of its image.

    Axes in another order or direction are turned, and a map of a part of the image is padded with background. No voxel
    is interpolated.

    Args:
        name: What messages call the label map.
        files: The files of both, whose headers must state how the axes lie before any is turned.

    Raises:
        DataError: A voxel of the map is none of the image's, or it was drawn on a series of thicker slices.
    """
    if segmentation := find_segmentation(files[0]) if files else None:
        _check_frame_of_reference(files, name)
        _check_frames(segmentation, files[1], image, name)
    is_same = label.spatial_shape == image.spatial_shape and is_same_grid(label, image)
    if label.affine is None or image.affine is None or is_same:
        check_grid(label, image, name, "its image")
        return label
    check_affine(label.affine, name)
    check_affine(image.affine, f"the image of {name}")
    is_whole = sorted(label.spatial_shape) == sorted(image.spatial_shape)
    without_place = _find_placeless(label, image, files, is_part=not is_whole)
    if (is_whole or without_place is None) and all(read_header(file).has_orientation for file in files):
        voxels = match_voxels(label.affine, label.spatial_shape, image.affine, image.spatial_shape)
        if voxels is not None:
            laid = np.zeros((1, *image.spatial_shape), label.array.dtype)
            view_voxels(laid[0], voxels, label.spatial_shape)[...] = label.array[0]
            return replace(label, array=laid, affine=image.affine)
    if without_place and label.spatial_shape == image.spatial_shape:
        called = f"the image of {name}" if without_place is image else name
        raise DataError(
            f"{called} states no place in its header; where the mask was drawn voxel on voxel, give it the place of "
            "the other (SimpleITK: CopyInformation)"
        )
    how = ", as nibabel.processing.resample_from_to(mask, image, order=0) does"
    check_grid(label, image, name, "its image", "" if without_place else how)
    return label


def _find_placeless(label: Image, image: Image, files: Sequence[Path], is_part: bool) -> Image | None:
    """Return the one of two different grids whose header states no place; None where both state one.

    Programs that know none write the identity, in NIfTI's world or DICOM's, or sizes of voxels beside the place 0. Two
    with the latter have it in common, and a part of an image that begins at 0, as 3D Slicer saves it, states its own.
    """
    for number, grid in enumerate((label, image)):
        has_place = not files or read_header(files[number]).has_place
        if not has_place or is_identity(grid):
            return grid
    at_zero = [grid for grid in (label, image) if is_at_zero(grid)]
    if len(at_zero) != 1 or (is_part and at_zero[0] is image):
        return None
    return at_zero[0]


def _check_frame_of_reference(files: Sequence[Path], name: str) -> None:
    """Refuse a DICOM segmentation that was drawn on another scan: places in mm are those of one frame alone."""
    if len({read_dicom_element(file, "FrameOfReferenceUID") for file in files} - {None}) > 1:
        raise DataError(
            f"{name} was drawn in another frame of reference than its image's (FrameOfReferenceUID); name the series "
            "on which it was drawn"
        )


def _check_frames(segmentation: Path, file: Path, image: Image, name: str) -> None:
    """Refuse a DICOM segmentation of slices that lie further apart than its image's: those between were not drawn.

    A file need not have a frame for a slice without a segment, so that frames alone do not tell how far slices lay
    apart: the series that it refers to does, or the distance or the thickness that it states.
    """
    if image.affine is None:
        return
    header = read_elements(segmentation)
    drawn_on = {str(series.get("SeriesInstanceUID")) for series in header.get("ReferencedSeriesSequence") or []}
    image_series = read_dicom_element(file, "SeriesInstanceUID")
    if image_series in drawn_on:
        return
    planes = list(read_planes(header))
    grids = np.array([first_grid([plane]) for plane in planes], dtype=np.float64)
    normal = grids[0, :, 2]
    gaps = np.diff(np.unique(np.round(grids[:, :, 3] @ normal, 3)))
    # Along the normal of frames, which a scan that was sheared by its gantry's tilt does not follow.
    slices = np.abs(normal @ (LPS_TO_RAS @ image.affine)[:3, :3]).max()
    distance, thickness = (float(planes[0][key] or 0) for key in THICKNESS)
    apart = distance or thickness
    if image_series and drawn_on and gaps.size:
        apart = max(apart, gaps.min())
    if min([apart, *gaps]) > MOST_STEPS * slices:
        raise DataError(
            f"{name} was drawn on slices {apart:g} mm apart, and those of its image are {slices:g} mm apart; name the "
            "series on which it was drawn"
        )


def match_voxels(
    affine: NDArray[np.float64],
    shape: Sequence[int],
    image_affine: NDArray[np.float64],
    image_shape: Sequence[int],
) -> NDArray[np.int64] | None:
    """Return which voxel of an image each voxel of a grid is; None where one of them is none.

    Args:
        affine: The grid's voxel indices to millimetres, (4, 4).
        shape: Its size.
        image_affine: Those of the image.
        image_shape: The size of the image.

    Returns:
        Voxel indices to the image's, (3, 4): an order of the axes, their directions and the place of the first voxel.
    """
    exact = np.linalg.solve(image_affine, affine)[:3]
    rounded = np.round(exact)
    turn = np.abs(rounded[:, :3])
    ends = corners(shape)
    # The difference of two affine maps is affine: it is largest at a corner.
    apart = (exact - rounded) @ ends
    reached = rounded @ ends
    is_turned = (turn.sum(axis=0) == 1).all() and (turn.sum(axis=1) == 1).all()
    is_near = np.abs(apart).max() <= SAME_VOXEL and np.abs(image_affine[:3, :3] @ apart).max() <= GRID_TOLERANCE_MM
    is_within = (reached.min(axis=1) >= 0).all() and (reached.max(axis=1) < image_shape).all()
    if not (is_turned and is_near and is_within):
        return None
    return rounded.astype(np.int64)


def view_voxels(target: NDArray[Any], voxels: NDArray[np.int64], shape: Sequence[int]) -> NDArray[Any]:
    """Return the part of an array of the image's size that a grid covers, with the axes of the grid; a view."""
    turn = voxels[:, :3]
    axes = np.abs(turn).argmax(axis=0)
    view = target.transpose(axes)
    for axis, size in enumerate(shape):
        start = voxels[axes[axis], 3]
        sign = turn[axes[axis], axis]
        low = min(start, start + sign * (size - 1))
        view = view[(slice(None),) * axis + (slice(low, low + size),)]
        # A slice with a step of -1 could not end at the first voxel, so the axis is turned round afterwards.
        if sign < 0:
            view = np.flip(view, axis)
    return view
