"""NRRD files: a strict reader of the header, with the voxels in the same file (.nrrd) or in one beside it (.nhdr).

Source: teem.sourceforge.net/nrrd/format.html. Geometry is read as ITK reads it.
"""

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.data.decoded import Decoded
from silofl.data.raw_volume import (
    UNITS_MM,
    Encoding,
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
    "i1": ("signed char", "int8", "int8_t"),
    "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "i4": ("int", "signed int", "int32", "int32_t"),
    "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
    "i8": ("longlong", "long long", "long long int", "signed long long", "signed long long int", "int64", "int64_t"),
    "u8": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "f4": ("float",),
    "f8": ("double",),
}
DTYPES = {name: dtype for dtype, names in TYPES.items() for name in names}
# Each world's signs to (left, back, head).
BODY = {
    **dict.fromkeys(("left-posterior-superior", "lps"), (1, 1, 1)),
    **dict.fromkeys(("right-anterior-superior", "ras"), (-1, -1, 1)),
    **dict.fromkeys(("left-anterior-superior", "las"), (1, -1, 1)),
}
# Of the others no way in the body is known; ITK takes them as they are.
WORLDS = {**BODY, **dict.fromkeys(("scanner-xyz", "3d-right-handed", "3d-left-handed"), (1, 1, 1))}
DETACHED = ("data file", "datafile")
PLACED = ("axis mins", "axismins", "axis maxs", "axismaxs")
SKIPS = ("line skip", "lineskip", "byte skip", "byteskip")
USED = ("type", "dimension", "sizes", "encoding", "endian", "kinds", "spacings", "units")
SPACE = ("space", "space dimension", "space directions", "space origin", "space units")
IGNORED = (
    *("content", "min", "max", "old min", "oldmin", "old max", "oldmax", "number", "thicknesses", "centers"),
    *("centerings", "labels", "sample units", "sampleunits", "measurement frame"),
)
FIELDS = {*DETACHED, *PLACED, *SKIPS, *USED, *SPACE, *IGNORED}
DOMAIN = ("domain", "space", "???", "none")
CHANNELS = (
    *("list", "vector", "2-vector", "3-vector", "4-vector", "stub", "scalar", "point", "covariant-vector", "normal"),
    *("rgb-color", "rgba-color", "3-color", "4-color"),
)
# What they hold is no axis of a volume, and no grey or RGB.
OTHER_KINDS = {
    "time": "save one time point a file",
    **dict.fromkeys(("hsv-color", "xyz-color"), "save its colours as RGB"),
    "complex": "save its magnitude",
}
QUOTED = re.compile('"([^"]*)"')
ENCODINGS: dict[str, Encoding] = {
    "raw": "raw",
    **dict.fromkeys(("gzip", "gz"), "gzip"),
    **dict.fromkeys(("bzip2", "bz2"), "bzip2"),
    **dict.fromkeys(("text", "txt", "ascii"), "text"),
}
# Of a header whose voxels lie in a file beside it.
HEADER_ENDING = ".nhdr"
ORDERS = {"little": "<", "big": ">"}


def read_nrrd(path: Path, name: str) -> Decoded:
    """Read a volume; returns and errors as `read_voxels`.

    Raises:
        DataError: The voxels are in a file that the header may not name, or in an unknown encoding.
        ValueError: The header is not a whole one.
    """
    is_alone = path.name.lower().endswith(HEADER_ENDING)
    with path.open("rb") as stream:
        header: dict[str, str] = {}
        lines = header_lines(stream, is_alone)
        if not re.fullmatch("NRRD000[1-5]", next(lines, "")):
            raise ValueError("its first line must be NRRD0001 to NRRD0005")
        for line in lines:
            if not line:
                break
            _add_field(header, line)
        volume = _parse_volume(header, name, is_alone)
        file_name = next((header[field] for field in DETACHED if field in header), None)
        if file_name is None:
            return read_voxels(stream, volume, name)
    with open_beside(path, file_name, name) as stream:
        return read_voxels(stream, volume, name)


def read_nrrd_file_name(path: Path) -> str:
    """Return the name of the file of voxels in a header of its own; empty where it names none."""
    with path.open("rb") as file:
        lines = takewhile(bool, header_lines(file, is_alone=True))
        pairs = [line.partition(":") for line in lines]
    return next((value.strip() for field, _, value in pairs if field.lower() in DETACHED), "")


def read_nrrd_keys(path: Path) -> dict[str, str]:
    """Return the keys and values that a writer has put into a header beside NRRD's fields.

    Raises:
        ValueError: The header has no end.
    """
    with path.open("rb") as stream:
        lines = takewhile(bool, header_lines(stream, path.name.lower().endswith(HEADER_ENDING)))
        pairs = [line.partition(":=") for line in lines if not line.startswith("#")]
    return {key: decode_text(value) for key, sign, value in pairs if sign}


def _add_field(header: dict[str, str], line: str) -> None:
    field, colon, value = line.partition(":")
    if line.startswith("#") or value.startswith("="):
        return  # a comment, or a writer's own key and value
    field = field.lower()
    if not colon or field not in FIELDS or field in header:
        raise ValueError("a line of its header must be a known field, once")
    header[field] = value.strip()


def _parse_volume(header: Mapping[str, str], name: str, is_alone: bool) -> RawVolume:
    names_file = any(field in header for field in DETACHED)
    if (names_file and not is_alone) or any(header.get(field, "0") != "0" for field in SKIPS):
        raise DataError(
            f"{name} must hold its voxels itself, not skip bytes or name a file, as a header with the ending "
            f"{HEADER_ENDING} may; save it as one file"
        )
    if require_field(header, "encoding").lower() not in ENCODINGS:
        raise DataError(
            f"{name} must have the encoding raw, gzip, bzip2 or ascii, not another; save it with one of these"
        )
    if any(field in header for field in PLACED):
        raise DataError(f"{name} must give its place by 'space directions', not by 'axis mins'; save it with ITK")
    num_axes = int(require_field(header, "dimension"))
    if not 2 <= num_axes <= 4:
        raise ValueError(f"its dimension must be 2 to 4, not {num_axes}")
    shape = list(parse_sizes(require_field(header, "sizes").split(), num_axes, "sizes"))
    kinds = header.get("kinds", "domain " * num_axes).lower().split()
    if other := next((kind for kind in kinds if kind in OTHER_KINDS), None):
        raise DataError(f"{name} must have kinds of axes in space and of channels, not {other!r}; {OTHER_KINDS[other]}")
    channel_axes = [axis for axis, kind in enumerate(kinds) if kind in CHANNELS]
    if len(kinds) != num_axes or len(channel_axes) > 1 or not {*kinds} <= {*DOMAIN, *CHANNELS}:
        raise ValueError(f"its kinds must be {num_axes} of axes, at most one of them of channels")
    channel_axis = channel_axes[0] if channel_axes else None
    channels = 1 if channel_axis is None else shape.pop(channel_axis)
    item = look_up_value(header, "type", DTYPES)
    encoding = look_up_value(header, "encoding", ENCODINGS)
    order = "|" if item[1] == "1" or encoding == "text" else look_up_value(header, "endian", ORDERS)
    return RawVolume(
        tuple(shape),
        np.dtype(order + item),
        *_parse_geometry(header, num_axes, channel_axis),
        encoding=encoding,
        channels=channels,
        channel_axis=channel_axis or 0,
    )


def _parse_geometry(
    header: Mapping[str, str], num_axes: int, channel_axis: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns of the axes and the origin in millimetres, in the world of ITK."""
    domain = [axis for axis in range(num_axes) if axis != channel_axis]
    if "space" not in header and "space dimension" not in header:
        if "space directions" in header or "space origin" in header:
            raise ValueError("space directions without a space")
        steps = header.get("spacings", "1 " * num_axes).split()
        if len(steps) != num_axes:
            raise ValueError(f"spacings must be {num_axes}")
        factors = _parse_units(header, "units", num_axes)[domain]
        spacings = parse_numbers([steps[axis] for axis in domain], len(domain), "spacings")
        return np.diag(spacings * factors), np.zeros(len(domain))
    signs = look_up_value(header, "space", WORLDS) if "space" in header else (1,) * len(domain)
    if len(signs) != len(domain) or "spacings" in header:
        raise ValueError(f"its space must have {len(domain)} axes, with directions")
    vectors = re.findall(r"none|\([^()]*\)", require_field(header, "space directions"))
    if len(vectors) != num_axes or (channel_axis is not None and vectors[channel_axis] != "none"):
        raise ValueError(f"space directions must be {num_axes}")
    axes = np.stack([_vector(vectors[axis], len(signs)) for axis in domain], axis=1)
    origin = _vector(header.get("space origin", f"({','.join('0' * len(signs))})"), len(signs))
    factors = signs * _parse_units(header, "space units", len(signs))
    return axes * factors[:, None], origin * factors


def _parse_units(header: Mapping[str, str], key: str, count: int) -> NDArray[np.float64]:
    """Return the millimetres of the unit of each axis; 1 where it is not known, as `silofl.data.header` reports."""
    units = QUOTED.findall(header.get(key, ""))
    return np.array([UNITS_MM.get(unit.lower(), 1.0) for unit in units] if len(units) == count else [1.0] * count)


def _vector(text: str, count: int) -> NDArray[np.float64]:
    return parse_numbers(text.removeprefix("(").removesuffix(")").split(","), count, "a vector")
