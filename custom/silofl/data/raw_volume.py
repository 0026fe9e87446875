"""Volumes whose voxels follow a text header in the same file, or lie in one beside it, as MHA, MHD and NRRD keep them.

Nothing of the file is believed: the header is bounded, the sizes that it states are compared with the bytes that are
there before memory is taken, and a compressed stream is decompressed to its end, where its checksum is compared.
"""

import bz2
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from silofl.data.decoded import Decoded, check_bytes
from silofl.errors import DataError

HEADER_BYTES = 1 << 20
HEADER_LINES = 4096
BLOCK = 1 << 20
ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS
# By their names in small letters; without one, lengths are in millimetres.
UNITS_MM = {
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre", "millimetres", "", "?", "???"), 1.0),
    **dict.fromkeys(("um", "µm", "micron", "microns", "micrometer", "micrometers", "micrometre", "micrometres"), 0.001),
    **dict.fromkeys(("cm", "centimeter", "centimeters", "centimetre", "centimetres"), 10.0),
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), 1000.0),
}
V = TypeVar("V")
Encoding = Literal["raw", "gzip", "bzip2", "text"]
# A number of text has a digit and a blank; more than this are decimals that nobody needs.
MOST_LETTERS = 32
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclass(frozen=True)
class RawVolume:
    """A header's facts.

    Attributes:
        sizes: Voxels along each axis, the fastest first.
        dtype: Of a number, with its byte order.
        axes: One column an axis: the step to the next voxel in millimetres (left, back, head).
        origin: The centre of the first voxel.
        encoding: The form of the voxels: as in memory, a zlib or gzip stream, a bzip2 stream, or numbers as text.
        channels: Numbers of a voxel.
        channel_axis: Where they stand among the axes, 0 the fastest.
    """

    sizes: tuple[int, ...]
    dtype: np.dtype
    axes: NDArray[np.float64]
    origin: NDArray[np.float64]
    encoding: Encoding
    channels: int = 1
    channel_axis: int = 0


def header_lines(stream: BinaryIO, is_alone: bool = False) -> Iterator[str]:
    """Yield the lines of a header, without their ends.

    Args:
        stream: The file from its beginning.
        is_alone: Whether the header ends with its file, since the voxels lie in another one.

    Raises:
        ValueError: It does not end within the bounds; whoever sees its last line stops before.
    """
    left = HEADER_BYTES
    for _ in range(HEADER_LINES):
        line = stream.readline(left)
        left -= len(line)
        if is_alone and left and not line.endswith(b"\n"):
            yield from [line.decode("latin-1")] if line else []
            return
        if not line.endswith(b"\n"):
            break
        yield line.decode("latin-1").rstrip("\r\n")
    raise ValueError("its header has no end")


def decode_text(value: str) -> str:
    """Return a value of `header_lines` as its writer meant it: in UTF-8, or else in Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def require_field(header: Mapping[str, str], key: str) -> str:
    """Return a value that a header must have.

    Raises:
        ValueError: It is missing.
    """
    if key not in header:
        raise ValueError(f"its header lacks {key!r}")
    return header[key]


def look_up_value(header: Mapping[str, str], key: str, table: Mapping[str, V], default: str | None = None) -> V:
    """Return what a header's value means by a table of all that it may be, in small letters.

    Raises:
        ValueError: It is missing without a default, or not in the table.
    """
    value = header.get(key, default) if default is not None else require_field(header, key)
    if value.lower() not in table:
        raise ValueError(f"its header has another value of {key!r} than it may have")
    return table[value.lower()]


def parse_numbers(values: list[str], count: int, what: str) -> NDArray[np.float64]:
    """Return a header's values as finite numbers.

    Raises:
        ValueError: They are not ``count``, or one is no number.
    """
    found = np.array([float(value) for value in values])
    if len(found) != count or not np.isfinite(found).all():
        raise ValueError(f"{what} must be {count} finite numbers, not {len(found)} values")
    return found


def parse_sizes(values: list[str], count: int, what: str) -> tuple[int, ...]:
    """Return a header's values as sizes of at least 1; errors as `parse_numbers`."""
    if len(values) != count or not all(value.isascii() and value.isdigit() and int(value) > 0 for value in values):
        raise ValueError(f"{what} must be {count} whole numbers above 0")
    return tuple(map(int, values))


def read_voxels(stream: BinaryIO, volume: RawVolume, name: str) -> Decoded:
    """Read the voxels that follow a header.

    Args:
        stream: The file, after its header.
        volume: What the header says.
        name: What messages call the file.

    Returns:
        The volume, whose channels are colours where they are three or four of eight bits.

    Raises:
        DataError: The file holds more axes or more bytes than are supported.
        ValueError: The voxels are not as many as the header says, or their checksum differs.
    """
    num_axes = len(volume.sizes)
    if num_axes not in (2, 3):
        raise DataError(f"{name} must hold 2 or 3 axes, not {num_axes}; save one time point a file")
    if np.linalg.det(volume.axes) == 0:
        raise ValueError("its axes must span the space")
    size = check_bytes(name, (*volume.sizes, volume.channels), volume.dtype.itemsize)
    content = _read_content(stream, volume, size)
    stored = list(volume.sizes)
    stored.insert(volume.channel_axis, volume.channels)
    array = np.frombuffer(content, volume.dtype).reshape(stored[::-1])
    # z, y, x, channel, as SimpleITK lays it out: sums depend on the order in memory.
    array = np.ascontiguousarray(np.moveaxis(array, num_axes - volume.channel_axis, -1))
    array = array.reshape(*([1] * (3 - num_axes)), *array.shape).transpose(3, 2, 1, 0)
    affine = np.eye(4)
    affine[:num_axes, :num_axes], affine[:num_axes, 3] = volume.axes, volume.origin
    array = array.astype(volume.dtype.newbyteorder("="), copy=False)
    # What has more than eight bits are measurements, as the contrasts of a patient or the directions of a field.
    is_colour = array.dtype == np.uint8 and len(array) in (3, 4)
    return Decoded(array, LPS_TO_RAS @ affine, has_contrasts=len(array) > 1 and not is_colour)


def open_beside(path: Path, file_name: str, name: str) -> BinaryIO:
    """Open the file of voxels that a header names.

    Args:
        path: The header's.
        file_name: What the header says.
        name: What messages call the header.

    Raises:
        DataError: It is no plain file in the folder of the header.
    """
    found = find_beside(path, file_name)
    if found is None:
        raise DataError(
            f"{name} must name its voxels as a plain file beside it, not as a path, a link, a list or what is not "
            "there; save header and voxels as one file"
        )
    return found.open("rb")


def find_beside(path: Path, file_name: str) -> Path | None:
    """Return the plain file of that name in a header's folder; None of a path, a link, and what is not there."""
    if not file_name or file_name.startswith(".") or {"/", "\\", "\0"} & {*file_name} or file_name == path.name:
        return None
    found = path.parent / file_name
    return found if found.is_file() and not found.is_symlink() else None


def _read_content(stream: BinaryIO, volume: RawVolume, size: int) -> bytes | bytearray:
    if volume.encoding == "raw":
        return _read_rest(stream, size)
    if volume.encoding == "text":
        return _parse_text(stream, volume.dtype, size)
    is_bzip2 = volume.encoding == "bzip2"
    return _inflate_stream(stream, size, bz2.BZ2Decompressor() if is_bzip2 else zlib.decompressobj(ZLIB_OR_GZIP))


def _parse_text(stream: BinaryIO, dtype: np.dtype, size: int) -> bytes:
    """Return numbers that are written as text, whole ones exactly."""
    count = size // dtype.itemsize
    rest = os.fstat(stream.fileno()).st_size - stream.tell()
    if not 2 * count - 1 <= rest <= MOST_LETTERS * count + BLOCK:
        raise ValueError(f"{rest} bytes of text for {count} voxels")
    words = stream.read(rest).replace(b",", b" ").split()
    if len(words) != count:
        raise ValueError(f"{len(words)} voxels as text, not {count}")
    if dtype.kind == "f":
        return np.array(words, np.float64).astype(dtype).tobytes()
    numbers = np.array([int(word) for word in words], object)
    limits = np.iinfo(dtype)
    if numbers.min() < limits.min or numbers.max() > limits.max:
        raise ValueError(f"voxels of text beyond those of {dtype.name}")
    return numbers.astype(dtype).tobytes()


def _read_rest(stream: BinaryIO, size: int) -> bytearray:
    rest = os.fstat(stream.fileno()).st_size - stream.tell()
    if rest != size:
        raise ValueError(f"{rest} bytes of voxels, not {size}")
    return bytearray(stream.read(size))


def _inflate_stream(stream: BinaryIO, size: int, decompressor: Any) -> bytearray:  # noqa: ANN401 (zlib's has no name)
    """Return the whole content of a compressed stream, of which no more than one byte too many is ever decompressed."""
    content = bytearray()
    while block := stream.read(BLOCK):
        if not decompressor.eof:
            content += decompressor.decompress(block, size + 1 - len(content))
            block = decompressor.unused_data
        if len(content) > size or block and decompressor.eof:
            raise ValueError(f"more than {size} bytes of voxels")
    if len(content) != size or not decompressor.eof:
        raise ValueError(f"{len(content)} bytes of voxels, not {size}, or no end of their stream")
    return content
