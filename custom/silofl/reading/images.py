"""Read images and label maps and check them: finite numbers, declared labels, and one grid for both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError, UnreadableError
from silofl.reading.access import list_files, open_error
from silofl.reading.decoded import Decoded
from silofl.reading.formats import decode, decode_segmentation
from silofl.reading.header import find_segmentation
from silofl.reading.image import Image
from silofl.reading.segments import number_by_names, read_dicom_segments, read_segments

# Of label numbers, which are kept as int32.
SMALLEST = np.iinfo(np.int32).min
LARGEST = np.iinfo(np.int32).max
# A scale as 1/255, rounded to 32 bits, leaves a label nearly whole; interpolation does not.
LABEL_ROUNDING = 1e-3
RENUMBER = "save it with the study's numbers"


class Background(Protocol):
    """What padding becomes: values below ``below`` become it, and NaN becomes ``nan``; None changes nothing."""

    @property
    def below(self) -> float | None:
        """What every lower value becomes."""

    @property
    def nan(self) -> float | None:
        """What NaN becomes."""


def read_image(
    path: Path, name: str | None = None, index: int | None = None, background: Background | None = None
) -> Image:
    """Read PNG, JPEG, TIFF, BMP, GIF, NIfTI, MHA, NRRD, a DICOM series folder, or one image or window of an npz file.

    Args:
        path: The file, or the folder of a DICOM series.
        name: What messages call it; the file's name when not given.
        index: Which one of an npz file's array ``images`` (N, H, W) or (N, H, W, 3), or ``windows`` (N, C, T).
        background: What padding becomes; None leaves it as it is stored.

    Raises:
        DataError: It is missing, unreadable, truncated, corrupt, of an unknown form, empty, or not finite.
    """
    name = name or path.name
    decoded = _decode(path, name, index, is_label=False)
    array = decoded.array.astype(np.uint8) if decoded.array.dtype == bool else decoded.array
    if background is not None:
        array = _replace_background(array, background)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = np.count_nonzero(~np.isfinite(array))
        raise UnreadableError(
            f"{name} holds {count} NaN or infinite intensities; repair or remove it, or, where NaN is background, set "
            "the study's data.background to {nan: 0}",
            "not finite",
        )
    dtype_max = int(np.iinfo(array.dtype).max) if array.dtype.kind in "iu" else None
    is_binary = decoded.is_binary or decoded.array.dtype == bool
    return Image(array, decoded.affine, 1 if is_binary else dtype_max, decoded.is_window, decoded.has_contrasts)


def _replace_background(array: NDArray[Any], background: Background) -> NDArray[Any]:
    """Return an image with what padding becomes; a value is rounded to the image's type."""
    if background.nan is not None and array.dtype.kind == "f":
        array = np.where(np.isnan(array), array.dtype.type(background.nan), array)
    if background.below is not None and (is_below := array < background.below).any():
        array = array.copy()
        array[is_below] = background.below
    return array


def read_label(
    path: Path,
    name: str | None = None,
    index: int | None = None,
    labels: Mapping[int, str] | None = None,
    image: Image | None = None,
) -> Image:
    """Read a label map; the same formats as `read_image`, one channel of whole numbers, and a DICOM segmentation.

    Where the header names segments, as 3D Slicer's and DICOM's do, each gets the number of the label of its name, in
    whatever layer it lies.

    Args:
        path: The file, or the folder of a DICOM series.
        name: What messages call it; the file's name when not given.
        index: Which label map of an npz file's array ``labels``.
        labels: The labels by number; None leaves the numbers as they are stored.
        image: Its image, on whose grid a DICOM segmentation is laid.

    Returns:
        An image with array int32 of shape (1, rows, columns) or (1, X, Y, Z).

    Raises:
        DataError: As `read_image`, or the channels differ, a value is not a whole number, or a segment is none of the
            labels.
    """
    name = name or path.name
    if segmentation := find_segmentation(path):
        decoded = _decode_segmentation(segmentation, name, image)
        segments = read_dicom_segments(segmentation, name)
    else:
        decoded = _decode(path, name, index, is_label=True)
        segments = read_segments(path, name)
    array = decoded.array
    if len(array) > 1 and not segments:
        if not (array == array[:1]).all():
            raise DataError(f"{name} holds {len(array)} channels that differ; save one label number a pixel")
        array = array[:1]
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            # Not "<": NaN and infinity are no numbers of labels either.
            is_odd = ~(np.abs(array - np.round(array)) <= LABEL_ROUNDING)
        if is_odd.any():
            number = array[is_odd].flat[0]
            raise DataError(f"{name} holds {number}, no whole label; save it as integers, without interpolation")
        array = np.round(array)
    # The least and the greatest take a tenth of the time of looking at each.
    if array.min(initial=0) < SMALLEST or array.max(initial=0) > LARGEST:
        beyond = array[(array < SMALLEST) | (array > LARGEST)]
        raise DataError(f"{name} holds the label {beyond[0]}, beyond {SMALLEST} to {LARGEST}; renumber its labels")
    return Image(number_by_names(array, segments, labels, name), decoded.affine, None)


def check_values(label: Image, labels: Mapping[int, str], name: str, remedy: str = RENUMBER) -> None:
    """Refuse a label map that holds numbers which are not declared.

    Args:
        labels: The labels by number; 0 is the background.
        name: What messages call the label map.
        remedy: What to do about such a label map.

    Raises:
        DataError: A value is neither 0 nor a label's number; the message names the values.
    """
    # In the order in which they lie, without a copy.
    numbers = label.array.ravel(order="K")
    low = int(numbers.min(initial=0))
    high = int(numbers.max(initial=0))
    if high - low <= len(labels) and {0, *labels}.issuperset(range(low, high + 1)):
        return
    is_undeclared = np.isin(numbers, [0, *labels], invert=True)
    if is_undeclared.any():
        undeclared = np.unique(numbers[is_undeclared]).tolist()
        declared = ", ".join(["0 (background)", *(f"{number} ({text})" for number, text in sorted(labels.items()))])
        shown = ", ".join(map(str, undeclared[:8]))
        if len(undeclared) > 8:
            shown += ", ..."
        raise DataError(f"{name} holds {shown}, but the labels are {declared}; {remedy}")


def _decode_segmentation(path: Path, name: str, image: Image | None) -> Decoded:
    if image is None or image.affine is None or len(image.spatial_shape) != 3:
        raise DataError(
            f"{name} is a DICOM segmentation, and its image is no volume with places in mm; save it in the form of its "
            "image"
        )
    _check_opens(path, name)
    return decode_segmentation(path, name, image.spatial_shape, image.affine)


def _check_opens(path: Path, name: str) -> None:
    """Refuse what may not be read, which decoders report as a broken file."""
    try:
        for member in list_files(path):
            member.open("rb", buffering=0).close()
    except OSError as error:
        raise open_error(name, error) from None


def _decode(path: Path, name: str, index: int | None, is_label: bool) -> Decoded:
    _check_opens(path, name)
    decoded = decode(path, name, index, is_label)
    if decoded.array.size == 0 or decoded.array.dtype.kind not in "biuf":
        form = f"{decoded.array.dtype} of shape {decoded.array.shape}"
        raise DataError(f"{name} holds no numbers ({form}); export it again")
    return decoded
