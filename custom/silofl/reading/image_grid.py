"""The grid of an image by its header alone, and the turn that a camera has marked: without decoding a pixel."""

import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.reading.dicom_planes import (
    Plane,
    first_grid,
    is_projection,
    order_frames,
    order_slices,
    read_planes,
    step_between,
)
from silofl.reading.formats import PICTURES
from silofl.reading.header import dicom_headers, is_dicom
from silofl.reading.image import Image, is_same_grid
from silofl.reading.nifti import affine_mm, read_nifti_header
from silofl.reading.raw_volume import LPS_TO_RAS

# EXIF's orientations: 1 is as stored, from 5 on rows have become columns.
STORED, FIRST_TRANSPOSED, HIGHEST = 1, 5, 8
Affine = NDArray[np.float64] | None


def has_grid(path: Path, shape: tuple[int, ...], affine: Affine) -> bool:
    """Return whether an image's header says that it has a grid; False where only decoding can tell.

    Args:
        path: A file or DICOM folder that `silofl.reading.images.read_image` can read.
        shape: Size without channels.
        affine: Voxel indices to millimetres, (4, 4); None of a picture.
    """
    stated = None
    # Whatever a header makes its library raise, decoding says it in a sentence.
    with suppress(Exception):
        stated = _read_grid(path)
    if stated is None or stated[0] != shape:
        return False
    empty = np.empty((1, *shape), np.uint8)
    return is_same_grid(Image(empty, affine, None), Image(empty, stated[1], None))


def is_turned(path: Path) -> bool:
    """Return whether a picture is shown in another way than it is stored, by its tag of orientation (EXIF)."""
    if not path.name.lower().endswith(PICTURES):
        return False
    with suppress(Exception):
        return STORED < _read_picture_header(path)[1] <= HIGHEST
    return False


def find_reoriented(pairs: Iterable[tuple[Path, Path]]) -> list[str]:
    """Return a sentence where images are turned by a tag that their masks lack; nobody knows how these were drawn.

    Args:
        pairs: Each image, and its mask.
    """
    turned = [is_turned(image) and not is_turned(mask) for image, mask in pairs]
    if not any(turned):
        return []
    return [
        f"{sum(turned)} of {len(turned)} images are turned by their camera's tag (EXIF orientation), and their masks "
        "have no such tag; look at one with its mask, and where they do not fit save the images without the tag"
    ]


def _read_grid(path: Path) -> tuple[tuple[int, ...], Affine] | None:
    name = path.name.lower()
    if is_dicom(path):
        return _read_dicom_grid(path)
    if name.endswith((".nii", ".nii.gz")):
        header = read_nifti_header(path)
        shape = (*header.get_data_shape(), 1)
        # Of time points or contrasts decoding tells how many there are.
        return (shape[:3], affine_mm(header)) if set(shape[3:]) <= {1} else None
    if name.endswith(PICTURES):
        return _read_picture_header(path)[0], None
    return None


def _read_dicom_grid(path: Path) -> tuple[tuple[int, ...], Affine] | None:
    headers = list(dicom_headers(path))
    stored: list[Plane] = []
    for header in headers:
        stored += read_planes(header)
    # The frames of one file and the files of a series are ordered as their readers do it.
    order = order_frames(stored) if len(headers) == 1 else order_slices(stored)
    planes = [stored[index] for index in order]
    if is_projection(headers[0], planes):
        return (planes[0]["Rows"], planes[0]["Columns"]), None
    grid = first_grid(planes)
    step = step_between(planes, path.name)
    if grid is None or step is None:
        return None
    matrix = np.eye(4)
    matrix[:3] = grid
    matrix[:3, 2] = step
    return (planes[0]["Columns"], planes[0]["Rows"], len(planes)), LPS_TO_RAS @ matrix


def _read_picture_header(path: Path) -> tuple[tuple[int, int], int]:
    """Return a picture's rows and columns as it is shown, and its orientation."""
    from PIL import ExifTags, Image

    from silofl.reading.pictures import FORMATS

    with warnings.catch_warnings():
        # Of a picture that is too large, which its reader refuses.
        warnings.simplefilter("ignore")
        with Image.open(path, formats=FORMATS) as picture:
            # Not the method of PNG's own class, which decodes the pixels first.
            orientation = int(Image.Image.getexif(picture).get(ExifTags.Base.Orientation, STORED))
            # Of a TIFF the size is that of what is shown.
            is_transposed = FIRST_TRANSPOSED <= orientation <= HIGHEST and picture.format != "TIFF"
            return (picture.size if is_transposed else picture.size[::-1]), orientation
