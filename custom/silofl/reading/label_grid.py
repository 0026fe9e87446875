"""Lay a label map onto its image voxel by voxel: axes turned, a cropped map padded, and resampled only on request."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
    overlaps,
)
from silofl.reading.raw_volume import LPS_TO_RAS

# Frames of a segmentation lie further apart than its image's slices where none was drawn for some.
MOST_STEPS = 1.5


def lay_on_image(label: Image, image: Image, name: str, files: Sequence[Path], is_resampled: bool = False) -> Image:
    """Return a label map with the voxels of its image.

    Axes in another order or direction are turned, and a map of a part of the image is padded with background. No voxel
    is interpolated, but where resampling was asked for: then each has the label of the nearest one.

    Args:
        name: What messages call the label map.
        files: The files of both, whose headers must state how the axes lie before any is turned.
        is_resampled: Whether the map may lie on any other grid that its header states.

    Raises:
        DataError: A voxel of the map is none of the image's, or it was drawn on a series of thicker slices; where it is
            resampled, a header states no place, or they lie beside one another.
    """
    if segmentation := find_segmentation(files[0]) if files else None:
        _check_frame_of_reference(files, name)
        _check_frames(segmentation, files[1], image, name)
    is_placed = label.affine is not None and image.affine is not None
    if not is_placed or (label.spatial_shape == image.spatial_shape and is_same_grid(label, image)):
        check_grid(label, image, name, "its image")
        return label
    check_affine(label.affine, name)
    check_affine(image.affine, f"the image of {name}")
    is_whole = sorted(label.spatial_shape) == sorted(image.spatial_shape)
    without_place = _find_placeless(label, image, files, is_part=not is_whole and not is_resampled)
    if (is_whole or without_place is None) and all(read_header(file).has_orientation for file in files):
        place = match_voxels(label.affine, label.spatial_shape, image)
        if place is not None:
            laid = np.zeros((1, *image.spatial_shape), label.array.dtype)
            view_voxels(laid[0], place, label.spatial_shape)[...] = label.array[0]
            return replace(label, array=laid, affine=image.affine)
    if without_place and (is_resampled or label.spatial_shape == image.spatial_shape):
        _refuse_placeless(label, image, name, without_place)
    if is_resampled:
        return _resample(label, image, name)
    check_grid(label, image, name, "its image", "" if without_place else ", or import with --resample-masks")
    return label


def _find_placeless(label: Image, image: Image, files: Sequence[Path], is_part: bool) -> Image | None:
    """Return the one of two different grids whose header states no place; None where both state one.

    Programs that know none write the identity, in NIfTI's world or DICOM's, or sizes of voxels beside the place 0. Two
    with the latter have it in common, and a part of an image that begins at 0, as 3D Slicer saves it, states its own.
    """
    pairs = list(zip((label, image), map(read_header, files), strict=False)) or [(label, None), (image, None)]
    for one, header in pairs:
        if (header and not header.has_place) or is_identity(one):
            return one
    at_zero = [one for one in (label, image) if is_at_zero(one)]
    return at_zero[0] if len(at_zero) == 1 and not (is_part and at_zero[0] is image) else None


def _refuse_placeless(label: Image, image: Image, name: str, lacking: Image) -> None:
    """Refuse the one of two whose header states no place, and say how it gets the other's."""
    own, other, called = ("image", "mask", f"the image of {name}") if lacking is image else ("mask", "image", name)
    if label.spatial_shape != image.spatial_shape:
        remedy = "export it again from the program in which the mask was drawn"
    else:
        how = f"SimpleITK: {own}.CopyInformation({other})"
        remedy = f"where the mask was drawn voxel on voxel, give it the place of its {other} ({how})"
    raise DataError(f"{called} must state a place in its header, which states none; {remedy}")


def _check_frame_of_reference(files: Sequence[Path], name: str) -> None:
    """Refuse a DICOM segmentation that was drawn on another scan: places in mm are those of one frame alone."""
    if len({read_dicom_element(one, "FrameOfReferenceUID") for one in files} - {None}) > 1:
        raise DataError(
            f"{name} must be drawn on its image, not in another frame of reference (FrameOfReferenceUID); name the "
            "series on which it was drawn"
        )


def _check_frames(segmentation: Path, file: Path, image: Image, name: str) -> None:
    """Refuse a DICOM segmentation of slices that lie further apart than its image's: those between were not drawn.

    A file need not have a frame for a slice without a segment, so that frames alone do not tell how far slices lay
    apart: the series that it refers to does, or the distance or the thickness that it states.
    """
    if image.affine is None:
        return
    header = read_elements(segmentation)
    drawn_on = {str(one.get("SeriesInstanceUID")) for one in header.get("ReferencedSeriesSequence") or []}
    own = read_dicom_element(file, "SeriesInstanceUID")
    if own in drawn_on:
        return
    planes = list(read_planes(header))
    grids = np.array([first_grid([plane]) for plane in planes], dtype=np.float64)
    normal = grids[0, :, 2]
    gaps = np.diff(np.unique(np.round(grids[:, :, 3] @ normal, 3)))
    # Along the normal of frames, which a scan that was sheared by its gantry's tilt does not follow.
    slices = np.abs(normal @ (LPS_TO_RAS @ image.affine)[:3, :3]).max()
    stated, thick = (float(planes[0][key] or 0) for key in THICKNESS)
    apart = stated or thick
    if own and drawn_on and gaps.size:
        apart = max(apart, gaps.min())
    if min([apart, *gaps]) > MOST_STEPS * slices:
        raise DataError(
            f"{name} must have a frame for each slice of its image, {slices:g} mm apart, not for slices {apart:g} mm "
            "apart; name the series on which it was drawn"
        )


def match_voxels(affine: NDArray[np.float64], shape: Sequence[int], image: Image) -> NDArray[np.int64] | None:
    """Return which voxel of an image each voxel of a grid is; None where one of them is none.

    Args:
        affine: The grid's voxel indices to millimetres, (4, 4).
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


def _resample(label: Image, image: Image, name: str) -> Image:
    """Return a label map on its image's grid, each voxel with the label of the nearest one; background beyond them."""
    from scipy.ndimage import affine_transform

    if not overlaps(label, image):
        raise DataError(
            f"{name} must overlap with its image; it lies outside of it: correct the position in its header, or leave "
            "the case out"
        )
    back = np.linalg.solve(label.affine, image.affine)
    # Without "grid" the outer half of the voxels at the edge would be background.
    found = affine_transform(label.array[0], back, output_shape=image.spatial_shape, order=0, mode="grid-constant")
    return replace(label, array=found[None], affine=image.affine)


def find_beside(label: Image, image: Image) -> NDArray[np.integer]:
    """Return the numbers of the labelled voxels whose middles lie beside an image, (n,)."""
    voxels = np.nonzero(label.array[0])
    places = (np.linalg.solve(image.affine, label.affine) @ np.stack([*voxels, np.ones_like(voxels[0])]))[:3]
    # A voxel reaches half of its size beyond its middle.
    is_within = (places >= -0.5) & (places <= np.array(image.spatial_shape)[:, None] - 0.5)
    return label.array[0][voxels][~is_within.all(axis=0)]
