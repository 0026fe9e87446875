"""The segments that the header of a label map names, and the numbers that a study has for their names.

A DICOM segmentation states them in its SegmentSequence. 3D Slicer writes a segment's name, number and layer as
Segment0_Name, Segment0_LabelValue and Segment0_Layer into NRRD; ITK keeps them in MHA. It numbers segments in the order
in which they were drawn, so that one organ has other numbers in other files.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.data.dicom_files import read_elements
from silofl.data.header import find_segmentation
from silofl.data.metaimage import read_metaimage_keys
from silofl.data.nrrd import read_nrrd_keys
from silofl.data.patient_names import normalise_name
from silofl.errors import DataError

# Of an import whose labels nobody has named: a segment's name cannot disagree with it.
UNNAMED_LABEL = "foreground"
KEY = re.compile(r"Segment(?P<place>\d+)_(?P<field>Name|LabelValue|Layer)")
# What 3D Slicer calls a segment that nobody has named.
NO_NAME = re.compile(r"(segment[ _]?\d*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Segment:
    """A segment: its name, its number in the file, and the layer that it lies in, of those that may overlap.

    The layer is None where the number is that of no other segment in any layer.
    """

    name: str
    number: int
    layer: int | None


def read_segments(path: Path, name: str) -> tuple[Segment, ...]:
    """Return the segments that a file's header names; none of a format that names none.

    Args:
        path: A file that `silofl.data.formats.decode` can read.
        name: What messages call it.

    Raises:
        DataError: A segment's number is none, or two have the same one.
    """
    if file := find_segmentation(path):
        return _read_dicom_segments(file, name)
    ending = path.suffix.lower()
    is_nrrd, is_metaimage = ending in (".nrrd", ".nhdr"), ending in (".mha", ".mhd")
    keys = read_nrrd_keys(path) if is_nrrd else read_metaimage_keys(path) if is_metaimage else {}
    fields: dict[int, dict[str, str]] = {}
    for key, value in keys.items():
        if match := KEY.fullmatch(key):
            fields.setdefault(int(match["place"]), {})[match["field"]] = value.strip()
    found = tuple(_parse_segment(place, fields[place], name) for place in sorted(fields))
    twins = [one for one in found if sum((one.number, one.layer) == (it.number, it.layer) for it in found) > 1]
    if twins:
        raise DataError(
            f"{name} must give each segment a number (LabelValue) of its own, not {twins[0].number} to "
            f"{' and '.join(repr(one.name) for one in twins)}; save it anew in 3D Slicer"
        )
    return found


def number_by_names(
    numbers: NDArray[np.number], segments: Sequence[Segment], labels: Mapping[int, str] | None, name: str
) -> NDArray[np.int32]:
    """Return a label map with the numbers that a study has for the names of its segments.

    Names are compared without regard to capitals and to blanks, '_' and '-' between words. The number of a segment that
    nobody has named stays. Where segments overlap, the voxel belongs to the label with the highest number.

    Args:
        numbers: The layers of the label map, (layers, *spatial).
        segments: Those of its file.
        labels: The study's labels by number; None where nobody has named them.
        name: What messages call the file.

    Returns:
        The label map, (1, *spatial).

    Raises:
        DataError: The map holds a segment that is none of the labels, two that are one, or a number without a segment.
    """
    is_named = labels is not None and tuple(labels.values()) != (UNNAMED_LABEL,)
    _check_layers(numbers, segments, name)
    if len(numbers) == 1 and not (segments and is_named):
        return numbers.astype(np.int32, copy=False)
    _check_known(numbers, segments, name)
    drawn = [segment for segment in segments if _find_voxels(numbers, segment).any()]
    number_of = {one: _find_number(one, labels, name) if is_named else one.number for one in drawn}
    for number in number_of.values():
        rivals = [repr(segment.name) for segment in drawn if number_of[segment] == number]
        if len(rivals) > 1:
            known = labels.get(number, number) if is_named else number
            raise DataError(
                f"{name} must have one segment for {known}, not {' and '.join(rivals)}; "
                f"{'join or rename them' if is_named else 'name them with --labels'}"
            )
    if len(numbers) == 1 and all(segment.number == number for segment, number in number_of.items()):
        return numbers.astype(np.int32, copy=False)
    renumbered = np.zeros(numbers.shape[1:], np.int32)
    # As regions of nnU-Net and labels that 3D Slicer exports: what is named later covers what is named before.
    for segment in sorted(drawn, key=number_of.__getitem__):
        renumbered[_find_voxels(numbers, segment)] = number_of[segment]
    return renumbered[None]


def _check_layers(numbers: NDArray[np.number], segments: Sequence[Segment], name: str) -> None:
    """Refuse a map that lacks a layer of its segments."""
    layers = {segment.layer for segment in segments if segment.layer is not None}
    # A file of one layer may give it any number.
    if len(layers) > 1 and len(numbers) <= max(layers):
        raise DataError(
            f"{name} must hold the voxels of each Layer of its segments, 0 to {max(layers)}, not of {len(numbers)}; "
            "save it anew in 3D Slicer"
        )


def _check_known(numbers: NDArray[np.number], segments: Sequence[Segment], name: str) -> None:
    """Refuse a number that no segment has."""
    for place, layer in enumerate(numbers):
        known = [segment.number for segment in segments if len(numbers) == 1 or segment.layer in (place, None)]
        is_unknown = np.isin(layer, [0, *known], invert=True)
        if is_unknown.any():
            raise DataError(
                f"{name} must name a segment for each number that it holds, not none for {layer[is_unknown].flat[0]}; "
                "save it anew in 3D Slicer"
            )


def _find_voxels(numbers: NDArray[np.number], segment: Segment) -> NDArray[np.bool_]:
    if segment.layer is None:
        return (numbers == segment.number).any(axis=0)
    return numbers[segment.layer if len(numbers) > 1 else 0] == segment.number


def _read_dicom_segments(file: Path, name: str) -> tuple[Segment, ...]:
    header = read_elements(file, stop_before_pixels=True, specific_tags=["SegmentSequence"])
    found = header.get("SegmentSequence") or []
    if not all(isinstance(one.get("SegmentNumber"), int) for one in found):
        raise DataError(
            f"{name} must give each segment a whole number (SegmentNumber), not another value or none; export it again"
        )
    return tuple(Segment(str(one.get("SegmentLabel", "")), int(one.SegmentNumber), None) for one in found)


def _parse_segment(place: int, fields: Mapping[str, str], name: str) -> Segment:
    # Files of before 2020 give no number to a segment, which is then 1 in a layer of its own.
    number, layer = fields.get("LabelValue", "1"), fields.get("Layer", "0" if "LabelValue" in fields else str(place))
    if not re.fullmatch(r"[0-9]{1,4}", layer):
        raise DataError(
            f"{name} must give segment {fields.get('Name')!r} a whole number from 0 as its Layer, not {layer!r}; save "
            "it anew in 3D Slicer"
        )
    if not re.fullmatch(r"[0-9]{1,9}", number) or int(number) == 0:
        raise DataError(
            f"{name} must give segment {fields.get('Name')!r} a whole number above 0 (LabelValue), not {number!r}; "
            "save it anew in 3D Slicer"
        )
    return Segment(fields.get("Name", ""), int(number), int(layer))


def _find_number(segment: Segment, labels: Mapping[int, str], name: str) -> int:
    if NO_NAME.fullmatch(segment.name):
        return segment.number
    exact = {label: number for number, label in labels.items()}
    alike = {_simplify(label): number for number, label in labels.items()}
    number = exact.get(segment.name, alike.get(_simplify(segment.name)))
    if number is None:
        known = ", ".join(labels[number] for number in sorted(labels))
        raise DataError(
            f"{name} must name its segments as the labels, {known}, not {segment.name!r}; rename the segment, or name "
            "the labels as the segments"
        )
    return number


def _simplify(label: str) -> str:
    return normalise_name(re.sub("[_-]", " ", label).casefold())
