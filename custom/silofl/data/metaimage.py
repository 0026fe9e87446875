"""MetaImage files: a strict reader of ITK's header, with the voxels in the same file (.mha) or beside it (.mhd)."""

from collections.abc import Mapping
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.data.decoded import Decoded
from silofl.data.raw_volume import (
    UNITS_MM,
    RawVolume,
    decode_text,
    header_lines,
    look_up_value,
    open_beside,
    parse_numbers,
    parse_sizes,
    read_voxels,
    require_field,
)
from silofl.errors import DataError

TYPES = {
    "met_char": "i1",
    "met_uchar": "u1",
    "met_short": "i2",
    "met_ushort": "u2",
    "met_int": "i4",
    "met_uint": "u4",
    "met_long": "i4",
    "met_ulong": "u4",
    "met_long_long": "i8",
    "met_ulong_long": "u8",
    "met_float": "f4",
    "met_double": "f8",
}
# Some writers name the type of a voxel with several numbers so.
TYPES |= {f"{name}_array": dtype for name, dtype in TYPES.items()}
SYNONYMS = {
    "Position": "Offset",
    "Origin": "Offset",
    "Orientation": "TransformMatrix",
    "Rotation": "TransformMatrix",
    "ElementByteOrderMSB": "BinaryDataByteOrderMSB",
}
LAST, LOCAL = "ElementDataFile", "LOCAL"
# Of a header whose voxels lie in a file beside it.
HEADER_ENDING = ".mhd"
SCALE = ("ElementToIntensityFunctionSlope", "ElementToIntensityFunctionOffset")
# The keys on which the voxels depend. Others are a writer's own, as the DICOM tags that ITK copies.
KEYS = (
    *("ObjectType", "NDims", "DimSize", "ElementType", "ElementNumberOfChannels", "HeaderSize", "BinaryData", LAST),
    *("CompressedData", "CompressedDataSize", "ElementSpacing", "ElementSize", "DistanceUnits"),
    *(*SCALE, *SYNONYMS, *SYNONYMS.values()),
)
# A known key, although it is like one of them.
LIKE_ANOTHER = ("ObjectSubType",)
TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def read_metaimage(path: Path, name: str) -> Decoded:
    """Read a volume; returns and errors as `read_voxels`.

    Raises:
        DataError: The voxels are text or in a file that the header may not name, or the file is no image.
        ValueError: The header is not a whole one.
    """
    is_alone = path.name.lower().endswith(HEADER_ENDING)
    with path.open("rb") as stream:
        header: dict[str, str] = {}
        for line in header_lines(stream, is_alone):
            _add_field(header, line)
            if LAST in header:
                break
        volume = _parse_volume(header, name, is_alone)
        if header[LAST] == LOCAL:
            return read_voxels(stream, volume, name)
    with open_beside(path, header[LAST], name) as stream:
        return read_voxels(stream, volume, name)


def read_metaimage_file_name(path: Path) -> str:
    """Return the name of the file of voxels in a header of its own; empty where it names none."""
    with path.open("rb") as file:
        pairs = [line.partition("=") for line in header_lines(file, is_alone=True)]
    return next((value.strip() for key, _, value in pairs if key.strip() == LAST), "")


def read_metaimage_keys(path: Path) -> dict[str, str]:
    """Return the keys and values that a writer has put into a header beside MetaImage's.

    Raises:
        ValueError: The header has no end.
    """
    with path.open("rb") as stream:
        found = header_lines(stream, path.name.lower().endswith(HEADER_ENDING))
        lines = takewhile(lambda line: not line.startswith(LAST), found)
        pairs = [[part.strip() for part in line.partition("=")] for line in lines]
    return {key: decode_text(value) for key, _, value in pairs if key not in KEYS}


def _add_field(header: dict[str, str], line: str) -> None:
    key, equals, value = (part.strip() for part in line.partition("="))
    near = get_close_matches(key, KEYS, n=1, cutoff=0.8)
    # A misspelt key would silently leave a default in its place.
    if not equals or not key or (near and key not in (*KEYS, *LIKE_ANOTHER)):
        wanted = "".join(f" as {one}" for one in near)
        raise ValueError(f"a line of its header must be 'key = value' with a known key{wanted}")
    key = SYNONYMS.get(key, key)
    if key in KEYS and key in header:
        raise ValueError(f"{key} twice in its header")
    header[key] = value


def _parse_volume(header: Mapping[str, str], name: str, is_alone: bool) -> RawVolume:
    names_file = require_field(header, LAST) != LOCAL
    if (names_file and not is_alone) or header.get("HeaderSize", "0") not in ("0", "-1"):
        raise DataError(
            f"{name} must hold its voxels itself ({LAST} = {LOCAL}), not name a file, as a header with the ending "
            f"{HEADER_ENDING} may; save it as one file"
        )
    if header.get("ObjectType", "Image") != "Image" or not look_up_value(header, "BinaryData", TRUTH, "True"):
        raise DataError(f"{name} must be an Image of BinaryData, not text or another object; save it with ITK")
    scale = [
        header.get(f"ElementToIntensityFunction{key}", default) for key, default in (("Slope", "1"), ("Offset", "0"))
    ]
    if parse_numbers(scale, 2, "ElementToIntensityFunction").tolist() != [1, 0]:
        raise DataError(
            f"{name} must hold intensities as they are, not to be scaled by {' and '.join(SCALE)}, which programs pass "
            "over; save it with the scale applied"
        )
    num_axes = int(require_field(header, "NDims"))
    if not 2 <= num_axes <= 4:
        raise ValueError(f"NDims must be 2 to 4, not {num_axes}")

    def values(key: str, count: int, default: str) -> NDArray[np.float64]:
        return parse_numbers(header.get(key, default).split(), count, key)

    unit = UNITS_MM.get(header.get("DistanceUnits", "mm").lower(), 1.0)
    spacing = unit * values(
        "ElementSpacing" if "ElementSpacing" in header else "ElementSize", num_axes, "1 " * num_axes
    )
    directions = values("TransformMatrix", num_axes**2, " ".join(map(str, np.eye(num_axes).ravel())))
    order = ">" if look_up_value(header, "BinaryDataByteOrderMSB", TRUTH, "False") else "<"
    return RawVolume(
        parse_sizes(require_field(header, "DimSize").split(), num_axes, "DimSize"),
        np.dtype(order + look_up_value(header, "ElementType", TYPES)),
        # A row of the matrix is the direction of an axis.
        axes=directions.reshape(num_axes, num_axes).T * spacing,
        origin=unit * values("Offset", num_axes, "0 " * num_axes),
        encoding="gzip" if look_up_value(header, "CompressedData", TRUTH, "False") else "raw",
        channels=parse_sizes([header.get("ElementNumberOfChannels", "1")], 1, "ElementNumberOfChannels")[0],
    )
