"""Read images and label maps and check them: finite numbers, declared labels, and one grid for both."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.data.access import list_files, open_error
from silofl.data.decoded import Decoded
from silofl.data.formats import decode, decode_segmentation
from silofl.data.header import check_affine, find_segmentation
from silofl.data.segments import Covered, number_by_names, read_segments
from silofl.errors import DataError, UnreadableError
from silofl.study.data_settings import BackgroundSettings

AS_STORED = BackgroundSettings()
# Tools round affines differently: by a tenth of a millimetre, and of a voxel, however small voxels are.
GRID_TOLERANCE_MM, SAME_VOXEL = 0.1, 0.1
# Of label numbers, which are kept as int32.
SMALLEST, LARGEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max
# A scale as 1/255, rounded to 32 bits, leaves a label nearly whole; interpolation does not.
LABEL_ROUNDING = 1e-3
RENUMBER = "save it with the study's numbers"


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
        covered: Of a label map whose segments overlap: (label, the label that has its voxels) -> how many.
    """

    array: NDArray
    affine: NDArray[np.float64] | None
    dtype_max: int | None
    is_window: bool = False
    has_contrasts: bool = False
    is_resampled: bool = False
    covered: Covered = field(default_factory=Counter)

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Size without channels."""
        return self.array.shape[1:]


def read_image(
    path: Path, name: str | None = None, index: int | None = None, background: BackgroundSettings = AS_STORED
) -> Image:
    """Read PNG, JPEG, TIFF, NIfTI, MHA, NRRD, a DICOM series folder, or one image or window of an npz file.

    Args:
        path: The file, or the folder of a DICOM series.
        name: What messages call it; the file's name when not given.
        index: Which one of an npz file's array ``images`` (N, H, W) or (N, H, W, 3), or ``windows`` (N, C, T).
        background: What padding becomes.

    Raises:
        DataError: It is missing, unreadable, truncated, corrupt, of an unknown form, empty, or not finite.
    """
    name = name or path.name
    decoded = _decode(path, name, index, is_label=False)
    array = decoded.array.astype(np.uint8) if decoded.array.dtype == bool else decoded.array
    array = _replace_background(array, background)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = np.count_nonzero(~np.isfinite(array))
        raise UnreadableError(
            f"{name} must hold finite intensities, not {count} NaN or infinite ones; repair or remove it, or, "
            "where NaN is background, set the study's data.background to {nan: 0}",
            "not finite",
        )
    dtype_max = int(np.iinfo(array.dtype).max) if array.dtype.kind in "iu" else None
    is_binary = decoded.is_binary or decoded.array.dtype == bool
    return Image(array, decoded.affine, 1 if is_binary else dtype_max, decoded.is_window, decoded.has_contrasts)


def _replace_background(array: NDArray, background: BackgroundSettings) -> NDArray:
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
    segmentation = find_segmentation(path)
    decoded = (
        _decode(path, name, index, is_label=True)
        if segmentation is None
        else _decode_segmentation(segmentation, name, image)
    )
    array, segments = decoded.array, read_segments(path, name)
    if len(array) > 1 and not segments:
        if not (array == array[:1]).all():
            raise DataError(
                f"{name} must hold one number a pixel, not {len(array)} channels that differ; save label numbers"
            )
        array = array[:1]
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            # Not "<": NaN and infinity are no numbers of labels either.
            is_odd = ~(np.abs(array - np.round(array)) <= LABEL_ROUNDING)
        if is_odd.any():
            odd = array[is_odd].flat[0]
            raise DataError(
                f"{name} must hold whole label numbers, not {odd}; save it as integers, without interpolation"
            )
        array = np.round(array)
    # The least and the greatest take a tenth of the time of looking at each.
    if array.min(initial=0) < SMALLEST or array.max(initial=0) > LARGEST:
        beyond = array[(array < SMALLEST) | (array > LARGEST)]
        raise DataError(f"{name} must hold label numbers up to {LARGEST}, not {beyond[0]}; renumber its labels")
    numbers, covered = number_by_names(array, segments, labels, name)
    return Image(numbers, decoded.affine, None, covered=covered)


def check_values(label: Image, labels: Mapping[int, str], name: str, remedy: str = RENUMBER) -> None:
    """Refuse a label map that holds numbers which are not declared.

    Args:
        label: The label map.
        labels: The labels by number; 0 is the background.
        name: What messages call the label map.
        remedy: What to do about such a label map.

    Raises:
        DataError: A value is neither 0 nor a label's number; the message names the values.
    """
    # In the order in which they lie, without a copy.
    numbers = label.array.ravel(order="K")
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if high - low <= len(labels) and {0, *labels}.issuperset(range(low, high + 1)):
        return
    is_undeclared = np.isin(numbers, [0, *labels], invert=True)
    if is_undeclared.any():
        undeclared = np.unique(numbers[is_undeclared]).tolist()
        known = ", ".join(["0 (background)", *(f"{number} ({text})" for number, text in sorted(labels.items()))])
        shown = ", ".join(map(str, undeclared[:8])) + (", ..." if len(undeclared) > 8 else "")
        raise DataError(f"{name} must hold the label values {known}, not {shown}; {remedy}")


def check_grid(other: Image, image: Image, name: str, what: str, or_else: str = "") -> None:
    """Refuse an array that does not lie voxel on voxel on an image.

    Args:
        other: A label map or another contrast.
        image: The image.
        name: What messages call the other.
        what: What they call the image.
        or_else: What may be done besides making the grids one, as the end of the sentence.

    Raises:
        DataError: Sizes or grids differ, or one is a grid that no scanner has.
    """
    if other.spatial_shape != image.spatial_shape:
        raise DataError(
            f"{name} must have the size of {what}, {image.spatial_shape}, not {other.spatial_shape}; "
            f"export both from the same grid{or_else}"
        )
    if not is_same_grid(other, image):
        check_affine(other.affine, name)
        check_affine(image.affine, what)
        distance = np.abs(_measure_corners(other, image)).max()
        # Of small voxels all may lie within a tenth of a millimetre.
        shown = f"{distance:.1f}" if distance > GRID_TOLERANCE_MM else f"{distance:.2g}"
        raise DataError(
            f"{name} must lie where {what} lies (same origin, spacing and axes), not up to {shown} mm away; resample "
            f"it to {what}{or_else}"
        )


def is_same_grid(other: Image, image: Image) -> bool:
    """Return whether two grids of one size are the same but for rounding; True where one is no grid in space."""
    if other.affine is None or image.affine is None:
        return True
    apart = _measure_corners(other, image)
    return bool(np.abs(apart).max() <= GRID_TOLERANCE_MM) and is_same_voxel(apart, image.affine[:3, :3])


def is_identity(image: Image) -> bool:
    """Return whether a grid's voxels of 1 mm begin at 0, in NIfTI's world or DICOM's: programs write it for none."""
    return is_at_zero(image) and np.allclose(np.abs(np.diag(image.affine)), 1)


def is_at_zero(image: Image) -> bool:
    """Return whether a grid states no more than the sizes of voxels: they begin at 0, along the axes of the body."""
    return np.allclose(image.affine, np.diag(np.diag(image.affine)))


def is_same_voxel(apart: NDArray[np.float64], axes: NDArray[np.float64]) -> bool:
    """Return whether no distance is more than a tenth of a voxel along any axis.

    Args:
        apart: The distances in millimetres, (3, n).
        axes: The sides of a voxel in millimetres as columns, (3, 3).
    """
    # Along an axis a distance d measures a.d / |a|^2 voxels.
    return bool((np.abs(axes.T @ apart) <= SAME_VOXEL * np.square(axes).sum(axis=0)[:, None]).all())


def _measure_corners(other: Image, image: Image) -> NDArray[np.float64]:
    """Return by how many millimetres the corners of two grids differ, (3, 8)."""
    # The difference of two affine maps is affine: it is largest at a corner.
    return ((other.affine - image.affine) @ corners(image.spatial_shape))[:3]


def overlaps(other: Image, image: Image) -> bool:
    """Return whether two grids meet, by boxes along the axes of the first; True where one is no grid in space."""
    if other.affine is None or image.affine is None:
        return True
    ends = (np.linalg.inv(other.affine) @ image.affine @ corners(image.spatial_shape))[:3]
    # A voxel reaches half of its size beyond its centre.
    return bool((ends.max(axis=1) > -0.5).all() and (ends.min(axis=1) < np.array(other.spatial_shape) - 0.5).all())


def corners(shape: Sequence[int]) -> NDArray:
    """Return the indices of the voxels at the eight corners of a grid, each with a 1: (4, 8)."""
    return np.array(np.meshgrid(*[(0, n - 1) for n in shape], [1])).reshape(4, -1)


def _decode_segmentation(path: Path, name: str, image: Image | None) -> Decoded:
    if image is None or image.affine is None or len(image.spatial_shape) != 3:
        raise DataError(
            f"{name} must lie on a volume with places in mm, as a DICOM segmentation does; save it in the form of its "
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
        raise DataError(f"{name} must hold numbers, not {form}; export it again")
    return decoded
