"""Headers of text: those of NRRD (.nrrd) and MetaImage (.mha), which ITK reads with more trust than here.

Source: teem.sourceforge.net/nrrd/format.html. `RULES` refuses what ITK passes over or takes for something else.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, NamedTuple

from silofl.base.errors import DataError

HEADER_BYTES = 1 << 20
HEADER_LINES = 4096
NRRD, METAIMAGE = ".nrrd", ".mha"
# The last key of MetaImage, and its value where the voxels follow it.
LAST, LOCAL = "ElementDataFile", "LOCAL"
NRRD_SYNONYMS = {
    **{"datafile": "data file", "lineskip": "line skip", "byteskip": "byte skip"},
    **{"axismins": "axis mins", "axismaxs": "axis maxs"},
}
SYNONYMS = {
    **dict.fromkeys(("Position", "Origin"), "Offset"),
    **dict.fromkeys(("Orientation", "Rotation"), "TransformMatrix"),
    "ElementByteOrderMSB": "BinaryDataByteOrderMSB",
}
# Fields of NRRD that say how its voxels lie, and others that it may have.
NRRD_FIELDS = (
    *("type", "dimension", "sizes", "encoding", "endian", "kinds", "spacings", "units", "space", "space dimension"),
    *("space directions", "space origin", "space units"),
)
OTHER_FIELDS = (
    *("data file", "line skip", "byte skip", "axis mins", "axis maxs", "content", "min", "max", "old min", "oldmin"),
    *("old max", "oldmax", "number", "thicknesses", "centers", "centerings", "labels", "sample units", "sampleunits"),
    "measurement frame",
)
# The keys of MetaImage on which the voxels depend. Others are a writer's own, as the DICOM tags that ITK copies.
KEYS = (
    *("ObjectType", "NDims", "DimSize", "ElementType", "ElementNumberOfChannels", "HeaderSize", "BinaryData", LAST),
    *("CompressedData", "CompressedDataSize", "ElementSpacing", "ElementSize", "DistanceUnits"),
    *("ElementToIntensityFunctionSlope", "ElementToIntensityFunctionOffset", *SYNONYMS, *SYNONYMS.values()),
)
# A known key, although it is like one of them.
LIKE_ANOTHER = ("ObjectSubType",)
# Spaces of NRRD of which the ways in the body are known.
BODY = ("left-posterior-superior", "lps", "right-anterior-superior", "ras", "left-anterior-superior", "las")
DOMAIN = "domain|space|[?]{3}|none"
CHANNELS = "list|([2-4]-)?vector|stub|scalar|point|covariant-vector|normal|rgba?-color|[34]-color"


def _other_than(wanted: str) -> str:
    return rf"^(?!(?:{wanted})$)"


# Without a unit, lengths are in millimetres.
MILLIMETRES = "(mm|millimet(er|re)s?|[?]*)"
NUMBER = r"[+-]?(\d+(\.\d*)?|\.\d+)(e(-\d{1,3}|\+?\d{1,2}))?"
VECTOR = rf"\(\s*{NUMBER}(\s*,\s*{NUMBER})*\s*\)"
NO_NUMBERS = _other_than(rf"({NUMBER}(\s+|$))+")
NO_SIZES = _other_than(r"(0*[1-9]\d{0,8}(\s+|$))+")
NO_TRUTH = _other_than("true|t|1|false|f|0")
NOT_ALONE = "skips bytes, or names another file of its voxels; save it as one file"
NO_PLACE = "gives its place by 'axis mins'; save it with ITK, by 'space directions'"
NO_UNIT = "states its lengths in another unit than mm; save it with ITK"
NO_KIND = "has an axis of the kind {!r}; "
NO_IMAGE = "is no Image of BinaryData; save it with ITK"
SCALED = (
    "has a scale that programs pass over (ElementToIntensityFunctionSlope and ElementToIntensityFunctionOffset); "
    "save it with the scale applied"
)
# A field, what its value may not hold, and what is wrong with a file whose does; nothing where it is broken.
RULES = (
    ("byte skip", _other_than("0"), NOT_ALONE),
    ("line skip", _other_than("0"), NOT_ALONE),
    ("HeaderSize", _other_than("0|-1"), NOT_ALONE),
    (
        "encoding",
        _other_than("raw|gz|gzip"),
        "has another encoding than raw or gzip; save it with one of these",
    ),
    ("axis mins", "", NO_PLACE),
    ("axis maxs", "", NO_PLACE),
    ("kinds", "time", f"{NO_KIND}save one time point a file"),
    ("kinds", "(hsv|xyz)-color", f"{NO_KIND}save its colours as RGB"),
    ("kinds", "complex", f"{NO_KIND}save its magnitude"),
    ("kinds", _other_than(rf"(({DOMAIN}|{CHANNELS})(\s+|$))+"), None),
    ("dimension", _other_than("0*[2-4]"), None),
    ("sizes", NO_SIZES, None),
    ("space directions", _other_than(rf"((none|{VECTOR})\s*)+"), None),
    ("space origin", _other_than(VECTOR), None),
    ("ObjectType", _other_than("(?-i:Image)"), NO_IMAGE),
    ("BinaryData", _other_than("true|t|1"), NO_IMAGE),
    ("ElementToIntensityFunctionSlope", _other_than(r"1(\.0*)?"), SCALED),
    ("ElementToIntensityFunctionOffset", _other_than(r"-?0(\.0*)?"), SCALED),
    ("NDims", _other_than("0*[2-4]"), None),
    ("DimSize", NO_SIZES, None),
    ("ElementType", _other_than("(?-i:MET_(U?(CHAR|SHORT|INT|LONG|LONG_LONG)|FLOAT|DOUBLE)(_ARRAY)?)"), None),
    ("ElementNumberOfChannels", _other_than(r"[1-9]\d{0,8}"), None),
    ("CompressedData", NO_TRUTH, None),
    ("BinaryDataByteOrderMSB", NO_TRUTH, None),
    ("DistanceUnits", _other_than(MILLIMETRES), NO_UNIT),
    *((key, _other_than(rf'("{MILLIMETRES}"\s*)+'), NO_UNIT) for key in ("units", "space units")),
    *((key, NO_NUMBERS, None) for key in ("TransformMatrix", "Offset", "ElementSpacing", "ElementSize")),
)
# Values that a MetaImage has for each axis, or for each two.
COUNTS = {"DimSize": 1, "Offset": 1, "ElementSpacing": 1, "ElementSize": 1, "TransformMatrix": 2}


class TextHeader(NamedTuple):
    """A header: its fields by their names, a writer's own keys, and where in its file it ends."""

    fields: dict[str, str]
    keys: dict[str, str]
    end: int

    @property
    def is_alone(self) -> bool:
        """Whether the voxels follow the header."""
        return "data file" not in self.fields and self.fields.get(LAST, LOCAL) == LOCAL

    @property
    def channel_axis(self) -> int | None:
        """The axis of a voxel's numbers, 0 the fastest; None where ITK has it first, or a voxel has one."""
        kinds = self.fields.get("kinds", "").lower().split()
        return next((axis for axis, word in enumerate(kinds) if re.fullmatch(CHANNELS, word)), None)


def read_text_header(path: Path) -> TextHeader:
    """Read the header of a file.

    Raises:
        ValueError: It has no end within its bounds, a line that is none, or a field twice.
    """
    ending = path.suffix.lower()
    fields: dict[str, str] = {}
    keys: dict[str, str] = {}
    with path.open("rb") as stream:
        lines = _read_lines(stream)
        for field, value, is_known in (_split_nrrd if ending == NRRD else _split_metaimage)(lines):
            if is_known and field in fields:
                raise ValueError(f"{field!r} twice in its header")
            (fields if is_known else keys)[field] = value
        return TextHeader(fields, keys, stream.tell())


def _read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines of a header; whoever sees its end stops before."""
    left = HEADER_BYTES
    for _ in range(HEADER_LINES):
        line = stream.readline(left)
        left -= len(line)
        if not line.endswith(b"\n"):
            break
        yield _decode(line).rstrip("\r\n")
    raise ValueError("its header has no end")


def _decode(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


def _split_nrrd(lines: Iterator[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield each field with its value, and whether it is NRRD's or a writer's own key."""
    if not re.fullmatch("NRRD000[1-5]", next(lines, "")):
        raise ValueError("its first line is none of NRRD0001 to NRRD0005")
    for line in takewhile(bool, lines):
        name, _, value = line.partition(":")
        field = NRRD_SYNONYMS.get(name.lower(), name.lower())
        if value.startswith("="):
            yield name, value[1:], False
        elif field in (*NRRD_FIELDS, *OTHER_FIELDS):
            yield field, value.strip(), True
        elif not line.startswith("#"):
            raise ValueError("a line of its header is no known field")


def _split_metaimage(lines: Iterator[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield each key with its value, and whether it is MetaImage's or a writer's own."""
    key = ""
    while key != LAST and (line := next(lines, None)) is not None:
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not key:
            raise ValueError("a line of its header is not 'key = value'")
        yield SYNONYMS.get(key, key), value, key in KEYS


def is_true(fields: Mapping[str, str], key: str) -> bool:
    """Return whether a field of MetaImage says yes."""
    return fields.get(key, "").lower() in ("true", "t", "1")


def check_text_header(path: Path, header: TextHeader, name: str) -> None:
    """Refuse what ITK passes over or takes for something else.

    Raises:
        DataError: The voxels are in a file that the header may not name, or in another form.
        ValueError: The header is not a whole one.
    """
    if not header.is_alone:
        raise DataError(f"{name} {NOT_ALONE}")
    for field, refused, sentence in RULES:
        match = field in header.fields and re.search(refused, header.fields[field], re.IGNORECASE | re.ASCII)
        if match and sentence:
            raise DataError(f"{name} {sentence.format(match[0].lower())}")
        if match:
            raise ValueError(f"its header has another value of {field!r} than it may have")
    check = _check_metaimage if path.suffix.lower() == METAIMAGE else _check_nrrd
    check(header)


def _check_metaimage(header: TextHeader) -> None:
    # A misspelt key would silently leave a default in its place.
    for key in header.keys:
        near = get_close_matches(key, KEYS, n=1, cutoff=0.8)
        if near and key not in LIKE_ANOTHER:
            raise ValueError(f"a key of its header is like {near[0]} and none that is known")
    if missing := [key for key in (LAST, "NDims", "DimSize", "ElementType") if key not in header.fields]:
        raise ValueError(f"its header lacks {missing[0]!r}")
    for key in COUNTS.keys() & header.fields.keys():
        if len(header.fields[key].split()) != int(header.fields["NDims"]) ** COUNTS[key]:
            raise ValueError(f"its header has another number of values of {key!r} than NDims says")


def _check_nrrd(header: TextHeader) -> None:
    vectors = re.findall(r"none|[(]", header.fields.get("space directions", ""), re.IGNORECASE)
    without = [axis for axis, vector in enumerate(vectors) if vector != "("]
    channels = [] if header.channel_axis is None else [header.channel_axis]
    if {"space", "space dimension"} & header.fields.keys() and (not vectors or without != channels):
        raise ValueError("its space directions are not those of its axes in space")
