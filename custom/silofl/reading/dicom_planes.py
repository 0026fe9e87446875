"""The slices of a DICOM series, or the frames of one file, as the planes of one volume; by their headers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError

if TYPE_CHECKING:
    from pydicom import Dataset

POSITION, DIRECTION, SPACING = "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"
SIZE = ("Rows", "Columns")
# How far the slices of a segmentation lie apart, and how thick they are, in mm.
DISTANCE = "SpacingBetweenSlices"
THICKNESS = (DISTANCE, "SliceThickness")
# A frame of a segmentation says so which segment it is of.
SEGMENT = "ReferencedSegmentNumber"
# A frame has a number in each dimension of its file: of place and, where there are several, of time, echo or b-value.
INDEX = "DimensionIndexValues"
SCALE = ("RescaleSlope", "RescaleIntercept")
# This second scale says what intensities measure. It is not applied, and so must be one in a volume.
REAL_WORLD = ("RealWorldValueSlope", "RealWorldValueIntercept")
# A file with many frames keeps in these sequences what else stands in the header itself.
GROUPS = {
    POSITION: "PlanePositionSequence",
    DIRECTION: "PlaneOrientationSequence",
    SPACING: "PixelMeasuresSequence",
    **dict.fromkeys(THICKNESS, "PixelMeasuresSequence"),
    INDEX: "FrameContentSequence",
    SEGMENT: "SegmentIdentificationSequence",
    **dict.fromkeys(SCALE, "PixelValueTransformationSequence"),
    **dict.fromkeys(REAL_WORLD, "RealWorldValueMappingSequence"),
}
# So many numbers an element holds.
COUNTS = {SPACING: 2, POSITION: 3, DIRECTION: 6, **dict.fromkeys(SCALE, 1)}
# An image without a place states its pixels' size in one of these: in the plane of the patient, detector, film or beam.
SPACINGS = (SPACING, "ImagerPixelSpacing", "NominalScannedPixelSpacing", "ImagePlanePixelSpacing")
# With the scale they decide the type that pixels are read into.
STORED = ("PixelRepresentation", "BitsStored")
# No two slices of a scan lie so near to each other.
SAME_PLACE_MM = 1e-3
# Slices may be so much out of step, as a share of their distance.
UNEVEN = 0.1
# Writers round differently; across 500 mm this is half of the least distance of two grids.
SAME = 1e-4
# Radiographs of the detector, of breast and teeth, ultrasound, photographs of eye and skin, and what was captured.
PROJECTIONS = ("CR", "DX", "MG", "IO", "PX", "US", "OP", "XC", "ES", "SC")
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
Plane = Mapping[str, Any]


def read_planes(header: Dataset) -> Iterator[Plane]:
    """Yield what a header states of each plane, the frames of a file in their order; None of what it does not state."""
    # What measures stand for is nested in the header of a single slice too.
    shared = [*header.get("SharedFunctionalGroupsSequence", [])[:1], header]
    for frame in header.get("PerFrameFunctionalGroupsSequence") or [{}]:
        yield {key: _look_up_element(key, header, [frame, *shared]) for key in (*GROUPS, *SIZE, *STORED)}


def _look_up_element(key: str, header: Dataset, groups: Sequence[Dataset | Mapping[str, Any]]) -> Any:  # noqa: ANN401 (any element)
    # A frame's own value goes before the one that all frames share.
    for group in groups:
        for part in group.get(GROUPS.get(key, ""), []):
            if key in part:
                return part[key].value
    return header.get(key)


def arrange_frames(
    stored: Sequence[Plane], count: int, name: str
) -> tuple[NDArray[np.intp], list[Plane], NDArray[np.float64] | None]:
    """Return the order of a file's frames along the normal, their planes in it, and the step; by `step_between`.

    Args:
        count: How many frames the file says that it holds.

    Raises:
        DataError: The frames are no one volume.
    """
    if len(stored) not in (1, count):
        raise DataError(f"{name} describes {len(stored)} of its {count} frames; export it again")
    order = order_frames(stored)
    planes = [stored[frame] for frame in order]
    step = step_between(planes, name)
    if count > 1 and step is None and not planes[0][DISTANCE]:
        raise placeless_error(name, count)
    check_measures(planes, name)
    return order, planes, step


def placeless_error(name: str, count: int) -> DataError:
    """Return the error for pictures of which nobody knows how they lie in a volume, as those of a film."""
    return DataError(
        f"{name} holds {count} pictures without a place ({POSITION}); save or name each as a picture of its own, or "
        "export them again with their places"
    )


def order_frames(planes: Sequence[Plane]) -> NDArray[np.intp]:
    """Return the frames of a file in the order of their places along the normal; as stored where they run on already.

    Scanners write slices in the order in which they acquire them, as every other one first. Frames that differ in more
    than their places, as in time or b-value, are no one volume and stay as stored, which `step_between` refuses.
    """
    stored = np.arange(len(planes))
    if not all(plane[POSITION] is not None and plane[DIRECTION] is not None for plane in planes):
        return stored
    heights = _measure_heights(planes)
    steps = np.diff(heights)
    runs_on = (steps >= 0).all() or (steps <= 0).all()
    if runs_on or not _differ_in_place_alone(planes):
        return stored
    return np.argsort(heights, kind="stable")


def order_slices(planes: Sequence[Plane]) -> NDArray[np.intp]:
    """Return the slices of a series along the normal, as its reader orders files that all state place and direction."""
    return np.argsort(_measure_heights(planes), kind="stable")


def _measure_heights(planes: Sequence[Plane]) -> NDArray[np.float64]:
    to_column, to_row = np.array(planes[0][DIRECTION], dtype=np.float64).reshape(2, 3)
    return np.array([plane[POSITION] for plane in planes], dtype=np.float64) @ np.cross(to_column, to_row)


def _differ_in_place_alone(planes: Sequence[Plane]) -> bool:
    """Return whether each number in the file's dimensions is the same for all frames, or another one for each."""
    indices = [plane[INDEX] for plane in planes]
    if any(index is None for index in indices):
        return True
    dimensions = np.array(indices).reshape(len(planes), -1).T.tolist()
    return all(len(set(dimension)) in (1, len(planes)) for dimension in dimensions)


def step_between(planes: Sequence[Plane], name: str, files: Sequence[str] = ()) -> NDArray[np.float64] | None:
    """Return the step from one plane to the next in mm to the left, back and head; None where no positions are stated.

    A tilted gantry moves each slice aside too; what SimpleITK reads takes the step to be upright on the slices.

    Args:
        planes: In the order in which they are read.
        name: What messages call the image.
        files: The names of the planes' files, where each has one.

    Raises:
        DataError: The planes are no one volume.
    """
    for key in (DIRECTION, SPACING, *SIZE):
        if not is_same(planes, key):
            raise DataError(
                f"{name} has slices of different directions, pixel sizes or numbers of pixels ({key}); save each as a "
                "series in a folder of its own"
            )
    positions = [plane[POSITION] for plane in planes if plane[POSITION] is not None]
    if 0 < len(positions) < len(planes):
        raise DataError(
            f"{name} states the place of {len(positions)} of its {len(planes)} slices ({POSITION}); leave out what is "
            "no slice of the volume"
        )
    if len(positions) < 2:
        return None
    places = np.array(positions, dtype=np.float64)
    own_series = "save each time point, echo or direction as a series in a folder of its own"
    # Two of one place stand anywhere in a file: frames of several times come in any order.
    first_at: dict[tuple[float, ...], int] = {}
    for plane, place in enumerate(np.round(places / SAME_PLACE_MM)):
        earlier = first_at.setdefault(tuple(place), plane)
        if earlier != plane:
            shown = f", as {files[earlier]} and {files[plane]}" if files else ""
            raise DataError(
                f"{name} holds two images at one place{shown}; remove the older version of an image, and {own_series}"
            )
    steps = np.diff(places, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    step: NDArray[np.float64] = steps.mean(axis=0)
    aside = np.linalg.norm(steps - step, axis=1).max()
    if aside > UNEVEN * np.median(lengths):
        raise DataError(
            f"{name} has slices {lengths.min():.2f} to {lengths.max():.2f} mm apart and up to {aside:.2f} mm out of "
            f"step; put missing ones back, or {own_series}"
        )
    return step


def first_grid(planes: Sequence[Plane]) -> NDArray[np.float64] | None:
    """Return the first plane's steps to the next column, the next row and 1 mm off the plane, and its place: (3, 4).

    In mm to the left, back and head; None where place, direction or pixel size is not stated.
    """
    plane = planes[0]
    spacing = plane[SPACING]
    if not (plane[POSITION] and plane[DIRECTION] and spacing) or min(spacing) <= 0:
        return None
    axes = np.array(plane[DIRECTION], dtype=np.float64).reshape(2, 3)
    to_column, to_row = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    # DICOM states the distance of rows before that of columns.
    down, across = map(float, spacing)
    place = np.array(plane[POSITION], dtype=np.float64)
    return np.stack([across * to_column, down * to_row, np.cross(to_column, to_row), place], axis=1)


def build_affine(header: Dataset, planes: Sequence[Plane], step: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return voxel indices to millimetres to the left, back and head, (4, 4); 1 mm and place 0 where none is stated.

    Args:
        header: Of the first plane, which may state the size of its pixels elsewhere.
        step: From one plane to the next; None where it is not known by their places.
    """
    plane = dict(planes[0])
    spacing = next((header[key].value for key in SPACINGS if header.get(key)), (1, 1))
    for key, default in ((POSITION, (0, 0, 0)), (DIRECTION, (1, 0, 0, 0, 1, 0)), (SPACING, spacing)):
        plane[key] = plane[key] or default
    affine = np.eye(4)
    grid = first_grid([plane])
    if grid is not None:
        affine[:3] = grid
    affine[:3, 2] *= abs(float(plane[DISTANCE] or 1))
    if step is not None:
        affine[:3, 2] = step
    return affine


def read_scale(plane: Plane) -> tuple[float, float]:
    """Return slope and intercept; 1 and 0 where they are not stated."""
    slope, intercept = (plane[key] for key in SCALE)
    return 1.0 if slope is None else float(slope), 0.0 if intercept is None else float(intercept)


def count_frames(header: Dataset) -> int:
    """Return how many frames a file says that it holds."""
    return int(header.get("NumberOfFrames") or 1)


def is_projection(header: Dataset, planes: Sequence[Plane]) -> bool:
    """Return whether a file is a picture, as a radiograph or a photograph: one frame without a place in the body."""
    is_flat = header.get("Modality") in PROJECTIONS or str(header.get("SOPClassUID", "")).startswith(SECONDARY_CAPTURE)
    return is_flat and len(planes) == 1 and count_frames(header) == 1 and planes[0][POSITION] is None


def list_values(value: Any) -> list[Any]:  # noqa: ANN401 (any element)
    """Return the values of an element, which pydicom gives as such where there is one alone."""
    if value is None:
        return []
    # Of several, pydicom makes a list of its own.
    return [*value] if hasattr(value, "append") else [value]


def is_scaled_alike(planes: Sequence[Plane]) -> bool:
    """Return whether the pixels of all planes are stored and scaled alike; of PET each slice may have its own slope."""
    return _is_one(planes, (*SCALE, *STORED))


def check_measures(planes: Sequence[Plane], name: str) -> None:
    """Refuse planes of which one number does not mean the same, as far as they say what numbers measure."""
    if is_scaled_alike(planes) and not _is_one(planes, REAL_WORLD):
        raise DataError(
            f"{name} has several RealWorldValueSlope or -Intercept for slices of one rescale slope, and they are not "
            "read; save it with its true values as NIfTI or MHA"
        )


def _is_one(planes: Sequence[Plane], keys: Sequence[str]) -> bool:
    return len(set(map(itemgetter(*keys), planes))) == 1


def is_same(planes: Sequence[Plane], key: str) -> bool:
    """Return whether all planes state the same of an element, or none states anything."""
    values = [plane[key] for plane in planes]
    if any(value is None for value in values):
        return all(value is None for value in values)
    numbers = np.array(values, dtype=np.float64)
    return np.allclose(numbers, numbers[0], rtol=SAME, atol=SAME)
