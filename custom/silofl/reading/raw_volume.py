"""Volumes of NRRD and MetaImage, in the decoders' process: ITK reads their grid, and this module their voxels.

ITK neither compares a stream with its checksum nor a file with its size, and fills up what is missing. So the sizes are
compared with the bytes that are there before memory is taken, and a stream is unpacked to its end.
"""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.reading.decoded import Decoded, check_bytes
from silofl.reading.text_header import (
    LAST,
    LOCAL,
    NRRD_FIELDS,
    TextHeader,
    check_text_header,
    is_true,
    read_text_header,
)

BLOCK = 1 << 20
ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


def read_raw_volume(path: Path, name: str) -> Decoded:
    """Read a volume, whose channels are ITK's components.

    Args:
        path: The file.
        name: What messages call it.

    Raises:
        DataError: The volume has other than two or three axes, or is too large, or as `check_text_header`.
        ValueError: The header is not a whole one, there are not as many voxels as it says, or their checksum differs.
    """
    header = read_text_header(path)
    check_text_header(path, header, name)
    reader = _read_information(header.fields)
    if reader.GetDimension() not in (2, 3):
        raise DataError(f"{name} has {reader.GetDimension()} axes; save one time point a file, with 2 or 3 axes")
    affine = _read_affine(reader, header)
    dtype = _read_dtype(reader, header.fields)
    size = check_bytes(name, (*reader.GetSize(), reader.GetNumberOfComponents()), dtype.itemsize)
    with path.open("rb") as stream:
        stream.seek(header.end)
        content = _read_content(stream, header.fields, size)
    array = _lay_out(np.frombuffer(content, dtype), reader, header.channel_axis or 0)
    # What has more than eight bits are measurements, as the contrasts of a patient or the directions of a field.
    is_colour = array.dtype == np.uint8 and len(array) in (3, 4)
    return Decoded(array, affine, has_contrasts=len(array) > 1 and not is_colour)


def _read_information(fields: Mapping[str, str]) -> Any:  # noqa: ANN401 (SimpleITK has no types)
    """Return ITK's reader of those fields alone that say how voxels lie: it would follow others to other files."""
    import SimpleITK

    if "dimension" in fields:
        used = [f"{field}: {fields[field]}" for field in NRRD_FIELDS if field in fields]
        ending = ".nrrd"
        lines = ["NRRD0005", *used, "", ""]
    else:
        used = [f"{key} = {value}" for key, value in fields.items() if not key.startswith("Compressed") and key != LAST]
        ending = ".mha"
        lines = [*used, f"{LAST} = {LOCAL}", ""]
    with NamedTemporaryFile(suffix=ending) as file:
        file.write("\n".join(lines).encode())
        file.flush()
        reader: Any = SimpleITK.ImageFileReader()  # type: ignore[no-untyped-call]
        reader.SetFileName(file.name)
        try:
            reader.ReadImageInformation()
        except RuntimeError as error:
            raise ValueError(str(error).replace(file.name, "its header")) from None
    return reader


def _read_affine(reader: Any, header: TextHeader) -> NDArray[np.float64]:  # noqa: ANN401
    """Return voxel indices to millimetres (right, front, head), (4, 4)."""
    count = reader.GetDimension()
    axes = np.reshape(reader.GetDirection(), (count, count)) * reader.GetSpacing()
    # ITK takes a spacing that is no number for 1.
    steps = [float(step) for step in header.fields.get("spacings", "").split()]
    if len(steps) == count + 1:
        del steps[header.channel_axis or 0]
    if not np.isfinite([*axes.flat, *steps]).all() or np.linalg.det(axes) == 0:
        raise ValueError("its axes do not span the space")
    affine = np.eye(4)
    affine[:count, :count] = axes
    affine[:count, 3] = reader.GetOrigin()
    return LPS_TO_RAS @ affine


def _read_dtype(reader: Any, fields: Mapping[str, str]) -> np.dtype[Any]:  # noqa: ANN401 (as above)
    """Return the type of a number with its byte order, which ITK does not tell."""
    import SimpleITK

    components = min(reader.GetNumberOfComponents(), 2)
    pixel = SimpleITK.Image([1, 1], reader.GetPixelID(), components)  # type: ignore[no-untyped-call]
    is_big = fields.get("endian", "").lower() == "big" or is_true(fields, "BinaryDataByteOrderMSB")
    return SimpleITK.GetArrayViewFromImage(pixel).dtype.newbyteorder(">" if is_big else "<")


def _lay_out(numbers: NDArray[Any], reader: Any, channel_axis: int) -> NDArray[Any]:  # noqa: ANN401 (as above)
    """Return the numbers (n,) of a file as (C, X, Y, Z)."""
    stored = [*reader.GetSize()]
    stored.insert(channel_axis, reader.GetNumberOfComponents())
    # z, y, x, channel, as SimpleITK lays it out: sums depend on the order in memory.
    array = np.ascontiguousarray(np.moveaxis(numbers.reshape(stored[::-1]), len(stored) - 1 - channel_axis, -1))
    array = array.reshape(*([1] * (4 - len(stored))), *array.shape).transpose(3, 2, 1, 0)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _read_content(stream: BinaryIO, fields: Mapping[str, str], size: int) -> bytearray:
    if fields.get("encoding", "raw").lower() != "raw" or is_true(fields, "CompressedData"):
        return _inflate_stream(stream, size)
    rest = os.fstat(stream.fileno()).st_size - stream.tell()
    if rest != size:
        raise ValueError(f"{rest} bytes of voxels where its header states {size}")
    return bytearray(stream.read(size))


def _inflate_stream(stream: BinaryIO, size: int) -> bytearray:
    """Return the whole content of a compressed stream, of which no more than one byte too many is ever decompressed."""
    content = bytearray()
    decompressor = zlib.decompressobj(ZLIB_OR_GZIP)
    while len(content) <= size and not decompressor.eof and (block := stream.read(BLOCK)):
        content += decompressor.decompress(block, size + 1 - len(content))
    has_more = decompressor.unused_data or stream.read(1)
    if len(content) != size or not decompressor.eof or has_more:
        raise ValueError(f"its compressed voxels end before or after the {size} bytes that its header states")
    return content
