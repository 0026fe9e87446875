"""The segments that the header of a label map names, and the numbers that a study has for their names.

3D Slicer writes a segment's name, number and layer as Segment0_Name, Segment0_LabelValue and Segment0_Layer into NRRD;
ITK keeps them in MHA. It numbers segments in the order in which they were drawn, so that one organ has other numbers in
other files.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
    """A segment: its name, its number in the file, and the layer that it lies in, of those that may overlap."""

    name: str
    number: int
    layer: str


def read_segments(path: Path, name: str) -> tuple[Segment, ...]:
    """Return the segments that a file's header names; none of a format that names none.

    Args:
        path: A file that `silofl.data.formats.decode` can read.
        name: What messages call it.

    Raises:
        DataError: A segment's number is none, or two have the same one.
    """
    ending = path.suffix.lower()
    keys = read_nrrd_keys(path) if ending == ".nrrd" else read_metaimage_keys(path) if ending == ".mha" else {}
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


def check_layers(segments: Sequence[Segment], name: str) -> None:
    """Refuse segments that overlap, which 3D Slicer keeps in layers.

    Raises:
        DataError: There is more than one layer.
    """
    layers = {segment.layer for segment in segments}
    if len(layers) > 1:
        raise DataError(
            f"{name} must hold its segments in one layer (Layer), not in {len(layers)}, in which they may overlap; "
            "give each voxel to one segment, and save it anew"
        )


def number_by_names(
    numbers: NDArray[np.int32], segments: Sequence[Segment], labels: Mapping[int, str], name: str
) -> NDArray[np.int32]:
    """Return a label map with the numbers that a study has for the names of its segments.

    Names are compared without regard to capitals and to blanks, '_' and '-' between words. The number of a segment that
    nobody has named stays.

    Args:
        numbers: The label map.
        segments: Those of its file.
        labels: The study's labels by number.
        name: What messages call the file.

    Raises:
        DataError: The map holds a segment that is none of the labels, two that are one, or a number without a segment.
    """
    if not segments or tuple(labels.values()) == (UNNAMED_LABEL,):
        return numbers
    is_unknown = np.isin(numbers, [0, *(segment.number for segment in segments)], invert=True)
    if is_unknown.any():
        raise DataError(
            f"{name} must name a segment for each number that it holds, not none for {numbers[is_unknown].flat[0]}; "
            "save it anew in 3D Slicer"
        )
    drawn = [segment for segment in segments if (numbers == segment.number).any()]
    number_of = {segment: _find_number(segment, labels, name) for segment in drawn}
    for number in number_of.values():
        rivals = [repr(segment.name) for segment in drawn if number_of[segment] == number]
        if len(rivals) > 1:
            raise DataError(
                f"{name} must have one segment for {labels.get(number, number)}, not {' and '.join(rivals)}; join or "
                "rename them"
            )
    if all(segment.number == number for segment, number in number_of.items()):
        return numbers
    renumbered = np.zeros_like(numbers)
    for segment, number in number_of.items():
        renumbered[numbers == segment.number] = number
    return renumbered


def _parse_segment(place: int, fields: Mapping[str, str], name: str) -> Segment:
    # Files of before 2020 give no number to a segment, which is then 1 in a layer of its own.
    number, layer = fields.get("LabelValue", "1"), fields.get("Layer", "0" if "LabelValue" in fields else str(place))
    if not re.fullmatch(r"[0-9]{1,9}", number) or int(number) == 0:
        raise DataError(
            f"{name} must give segment {fields.get('Name')!r} a whole number above 0 (LabelValue), not {number!r}; "
            "save it anew in 3D Slicer"
        )
    return Segment(fields.get("Name", ""), int(number), layer)


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
