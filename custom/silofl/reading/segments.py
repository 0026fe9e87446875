"""The segments that the header of a label map names, and the numbers that a study has for their names.

A DICOM segmentation states them in its SegmentSequence. 3D Slicer writes a segment's name, number and layer as
Segment0_Name, Segment0_LabelValue and Segment0_Layer into NRRD; ITK keeps them in MHA. It numbers segments in the order
in which they were drawn, so that one organ has other numbers in other files.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.reading.dicom_files import read_elements
from silofl.reading.patient_names import normalise_name
from silofl.reading.text_header import METAIMAGE, NRRD, read_text_header

# Of an import whose labels nobody has named: a segment's name cannot disagree with it.
UNNAMED_LABEL = "foreground"
KEY = re.compile(r"Segment(?P<index>\d+)_(?P<field>Name|LabelValue|Layer)")
# What 3D Slicer calls a segment that nobody has named.
NO_NAME = re.compile(r"(segment[ _]?\d*)?", re.IGNORECASE)
# What to do about a segment that others cover.
LATER = "name it after the others in --labels, or give it a higher number in labels of dataset.json"


@dataclass(frozen=True)
class Segment:
    """A segment: its name, its number in the file, and the layer that it lies in, of those that may overlap.

    The layer is None where the number is that of no other segment in any layer.
    """

    name: str
    number: int
    layer: int | None


def read_segments(path: Path, name: str) -> tuple[Segment, ...]:
    """Return the segments that the header of a file of text names; none of a format that names none.

    Args:
        path: A file that `silofl.reading.formats.decode` can read.

    Raises:
        DataError: A segment's number is none, or two have the same one.
    """
    keys = read_text_header(path).keys if path.suffix.lower() in (NRRD, METAIMAGE) else {}
    fields: dict[int, dict[str, str]] = {}
    for key, value in keys.items():
        if match := KEY.fullmatch(key):
            fields.setdefault(int(match["index"]), {})[match["field"]] = value.strip()
    segments = tuple(_parse_segment(index, fields[index], name) for index in sorted(fields))
    places = Counter((segment.number, segment.layer) for segment in segments)
    for place, count in places.items():
        if count > 1:
            twins = [segment.name for segment in segments if (segment.number, segment.layer) == place]
            raise DataError(
                f"{name} gives the number {place[0]} (LabelValue) to {' and '.join(map(repr, twins))}; save it anew in "
                "3D Slicer"
            )
    return segments


def read_dicom_segments(file: Path, name: str) -> tuple[Segment, ...]:
    """Return the segments of a DICOM segmentation; the error is that of `read_segments`."""
    segments = []
    for item in read_elements(file, specific_tags=["SegmentSequence"]).get("SegmentSequence") or []:
        number = item.get("SegmentNumber")
        if not isinstance(number, int) or number <= 0:
            raise DataError(f"{name} has a segment without a whole SegmentNumber from 1; export it again")
        segments.append(Segment(str(item.get("SegmentLabel", "")), int(number), None))
    return tuple(segments)


def number_by_names(
    numbers: NDArray[np.number], segments: Sequence[Segment], labels: Mapping[int, str] | None, name: str
) -> NDArray[np.int32]:
    """Return a label map with the numbers that a study has for the names of its segments.

    Names are compared without regard to capitals and to blanks, '_' and '-' between words. The number of a segment that
    nobody has named stays. Segments of one name are one label.

    Args:
        numbers: The layers of the label map, (layers, *spatial).
        labels: The study's labels by number; None where nobody has named them.
        name: What messages call the file.

    Returns:
        The label map, (1, *spatial).

    Raises:
        DataError: The map holds a segment that is none of the labels, two of different names that are one, a number
            without a segment, or a segment that others cover.
    """
    is_named = labels is not None and tuple(labels.values()) != (UNNAMED_LABEL,)
    labels = labels or {}
    _check_layers(numbers, segments, name)
    if len(numbers) == 1 and not (segments and is_named):
        return numbers.astype(np.int32, copy=False)
    _check_known(numbers, segments, name)
    drawn = [segment for segment in segments if _find_voxels(numbers, segment).any()]
    number_of = {segment: _find_number(segment, labels, name) if is_named else segment.number for segment in drawn}
    for number in number_of.values():
        rivals = [segment.name for segment in drawn if number_of[segment] == number]
        if len({*map(_simplify, rivals)}) > 1 or (len(rivals) > 1 and NO_NAME.fullmatch(rivals[0])):
            label = labels.get(number, number) if is_named else number
            remedy = "join or rename them" if is_named else "name them with --labels"
            raise DataError(f"{name} has the segments {' and '.join(map(repr, rivals))} for {label}; {remedy}")
    if len(numbers) == 1 and all(segment.number == number for segment, number in number_of.items()):
        return numbers.astype(np.int32, copy=False)
    layers = []
    for segment in sorted(drawn, key=number_of.__getitem__):
        number = number_of[segment]
        label = labels.get(number, segment.name) if is_named else segment.name
        layers.append((number, label, _find_voxels(numbers, segment)))
    return join_layers(layers, numbers.shape[1:], name)[None]


def join_layers(
    layers: Iterable[tuple[int, str, NDArray[np.bool_]]], shape: Sequence[int], name: str
) -> NDArray[np.int32]:
    """Return one label map of parts that may overlap; a voxel belongs to the label that comes last.

    Regions of nnU-Net and labels that 3D Slicer exports follow this rule too.

    Args:
        layers: Number and name of each label, and where it was drawn, (*spatial).
        name: What messages call the file.

    Returns:
        The label map, (*spatial).

    Raises:
        DataError: Others cover all that was drawn at one place in the order.
    """
    joined = np.zeros(shape, np.int32)
    # While layers are joined, a voxel has its part's place in this list, of which 0 is the background.
    parts = [(0, "", 0)]
    taken = Counter[tuple[int, int]]()
    for above, (number, label, voxels) in enumerate(layers, start=1):
        counts = np.bincount(joined[voxels]).tolist()
        parts.append((number, label, sum(counts)))
        for below, count in enumerate(counts):
            # Parts of one number are one label, and cover nothing of each other.
            if count and parts[below][0] not in (0, number):
                taken[below, above] += count
        joined[voxels] = above
    _check_left(parts, taken, name)
    return np.array([number for number, *_ in parts], np.int32)[joined]


def _check_left(parts: Sequence[tuple[int, str, int]], taken: Mapping[tuple[int, int], int], name: str) -> None:
    """Refuse a part, (number, label, voxels), of which others take all: (its place, that of the other) -> voxels."""
    for part, (_, label, drawn) in enumerate(parts):
        covering = {above: count for (below, above), count in taken.items() if below == part}
        if not covering or sum(covering.values()) != drawn:
            continue
        # Where both cover the same voxels, in another order the other would have none.
        is_same = any(count == parts[above][2] for above, count in covering.items())
        remedy = "delete it: a study may score labels together, as one of its regions" if is_same else LATER
        raise DataError(
            f"{name} has no voxel left of {label!r}, covered by "
            f"{' and '.join(repr(parts[above][1]) for above in covering)}; {remedy}"
        )


def _check_layers(numbers: NDArray[np.number], segments: Sequence[Segment], name: str) -> None:
    """Refuse a map that lacks a layer of its segments."""
    layers = {segment.layer for segment in segments if segment.layer is not None}
    # A file of one layer may give it any number.
    if len(layers) > 1 and len(numbers) <= max(layers):
        raise DataError(
            f"{name} holds {len(numbers)} layers, and its segments lie in the Layers 0 to {max(layers)}; save it anew "
            "in 3D Slicer"
        )


def _check_known(numbers: NDArray[np.number], segments: Sequence[Segment], name: str) -> None:
    """Refuse a number that no segment has."""
    for index, layer in enumerate(numbers):
        named = [segment.number for segment in segments if len(numbers) == 1 or segment.layer in (index, None)]
        is_unknown = np.isin(layer, [0, *named], invert=True)
        if is_unknown.any():
            number = layer[is_unknown].flat[0]
            raise DataError(f"{name} names no segment for its number {number}; save it anew in 3D Slicer")


def _find_voxels(numbers: NDArray[np.number], segment: Segment) -> NDArray[np.bool_]:
    if segment.layer is None:
        is_drawn: NDArray[np.bool_] = (numbers == segment.number).any(axis=0)
    else:
        is_drawn = numbers[segment.layer if len(numbers) > 1 else 0] == segment.number
    return is_drawn


def _parse_segment(index: int, fields: Mapping[str, str], name: str) -> Segment:
    # Files of before 2020 give no number to a segment, which is then 1 in a layer of its own.
    number = fields.get("LabelValue", "1")
    layer = fields.get("Layer", "0" if "LabelValue" in fields else str(index))
    # NumPy could not hold larger numbers.
    is_whole = re.fullmatch(r"[0-9]{1,4}", layer) and re.fullmatch(r"[0-9]{1,9}", number)
    if not is_whole or int(number) == 0:
        raise DataError(
            f"{name} gives segment {fields.get('Name')!r} the LabelValue {number!r} and the Layer {layer!r}, no whole "
            "numbers above 0 and from 0; save it anew in 3D Slicer"
        )
    return Segment(fields.get("Name", ""), int(number), int(layer))


def _find_number(segment: Segment, labels: Mapping[int, str], name: str) -> int:
    if NO_NAME.fullmatch(segment.name):
        return segment.number
    exact = {label: number for number, label in labels.items()}
    alike = {_simplify(label): number for number, label in labels.items()}
    number = exact.get(segment.name, alike.get(_simplify(segment.name)))
    if number is None:
        raise DataError(
            f"{name} has the segment {segment.name!r}, and the labels are "
            f"{', '.join(labels[key] for key in sorted(labels))}; rename the segment, or add its name to --labels"
        )
    return number


def _simplify(label: str) -> str:
    return normalise_name(re.sub("[_-]", " ", label).casefold())
