"""Decode the pixels of a DICOM image with pydicom, which has RLE decoded by itself and all JPEG by GDCM.

GDCM ends its process on some broken bytes, so this is done in the decoders' process alone. JPEG is ITU-T T.81, JPEG-LS
T.87, JPEG 2000 T.800.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.reading.decoded import check_bytes
from silofl.reading.dicom_planes import Plane, count_frames, read_planes, read_scale

if TYPE_CHECKING:
    from pydicom import Dataset

COLOURS = "PhotometricInterpretation"
RLE, LOSSLESS_JPEG = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.57"
UNCOMPRESSED = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")
# By its eight-bit and twelve-bit processes, and its lossless ones; those that were withdrawn too.
LOSSY_JPEG = tuple(f"1.2.840.10008.1.2.4.{process}" for process in (50, 51, 52, 53, 55))
JPEG = (*LOSSY_JPEG, LOSSLESS_JPEG, "1.2.840.10008.1.2.4.70")
JPEG_LS = ("1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81")
JPEG_2000 = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
READ = (*UNCOMPRESSED, *JPEG, *JPEG_LS, *JPEG_2000, RLE)
# ITU-T T.81 and T.800: how codestreams begin, and with what they end.
JPEG_START, JPEG_2000_START, JP2_START = b"\xff\xd8", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  "
END = b"\xff\xd9"
# The segments of JPEG that say what colours it holds, and the one of JPEG 2000 that says how it was coded.
JFIF, ADOBE, CODING = b"\xff\xe0", b"\xff\xee", b"\xff\x52"
# libjpeg's words, on the error output alone, where it makes up what a frame does not hold.
MADE_UP = b"premature end of data segment"
# Whose numbers mean the same however they are shown, as Hounsfield units.
MEASURED = ("CT", "MR", "NM", "PT")
# What scaled whole numbers are stored in: the first that holds all.
WHOLE = tuple(np.iinfo(kind) for kind in ("u1", "u2", "u4", "i1", "i2", "i4", "i8"))


def decode_frames(header: Dataset, name: str, count: int, is_alike: bool) -> NDArray:
    """Return the stored numbers of a file, (frames, rows, columns, samples); colours as red, green and blue.

    Args:
        count: How many files as this one are read.
        is_alike: Whether all are scaled alike.
    """
    from pydicom.encaps import encapsulate
    from pydicom.pixels import apply_color_lut, convert_color_space, get_decoder
    from pydicom.uid import UID

    size = (count_frames(header), header.Rows, header.Columns)
    itemsize = _find_type(header, is_alike).itemsize
    check_bytes(name, (*size, 3 if is_coloured(header) else 1, count), itemsize)
    syntax, plugin = UID(read_syntax(header)), ""
    if syntax not in UNCOMPRESSED:
        frames = join_frames(header)
        _correct_colours(header, {_states_ycc(frame, syntax) for frame in frames})
        if syntax in JPEG_2000:
            # Which stores what it says itself, whatever the header says.
            header.BitsStored = max(header.BitsStored, *(read_size(frame, syntax)[3] for frame in frames))
        header.PixelData = encapsulate(frames)
        for key in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths"):
            header.pop(key, None)
        plugin = "pydicom" if syntax == RLE else "gdcm"
    if syntax in JPEG:
        # A codestream says itself by which process it was made; pydicom lets GDCM read some only by this name.
        syntax = UID(LOSSLESS_JPEG)
    header.file_meta.TransferSyntaxUID = syntax
    with _refuse_made_up(name, header.Columns):
        pixels = get_decoder(syntax).as_array(header, raw=True, decoding_plugin=plugin)[0]
    pixels = pixels.reshape(*size, header.SamplesPerPixel)
    if header.PhotometricInterpretation in ("YBR_FULL", "YBR_FULL_422"):
        return convert_color_space(pixels, "YBR_FULL", "RGB", per_frame=True)
    if header.PhotometricInterpretation == "PALETTE COLOR":
        colours = apply_color_lut(pixels[..., 0], header)
        # Colours of 16 bits come with the upper 8 where their numbers have no more.
        return (colours >> 8).astype(np.uint8) if colours.itemsize > pixels.itemsize else colours
    if header.PhotometricInterpretation == "MONOCHROME1" and header.get("Modality") not in MEASURED:
        # Turned round, as a radiograph needs.
        highest = -1 if pixels.dtype.kind == "i" else (1 << header.BitsStored) - 1
        return highest - pixels
    return pixels


def _correct_colours(header: Dataset, stated: set[bool | None]) -> None:
    """Let a header say of colours what its codestreams say themselves."""
    if header.SamplesPerPixel == 1:
        return
    if len(stated) > 1:
        raise ValueError("its frames differ in how they store colours")
    if stated == {True} and header.PhotometricInterpretation != "YBR_FULL":
        header.PhotometricInterpretation = "YBR_FULL_422"
    if stated == {False}:
        header.PhotometricInterpretation = "RGB"


@contextmanager
def _refuse_made_up(name: str, columns: int) -> Iterator[None]:
    """Refuse what a decoder makes up, or passes over, and tells on the error output or in a warning alone."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        is_made_up = MADE_UP in said.read()
    for warning in found:
        lengths = re.search(r"RLE segment .* (\d+) vs\. (\d+) bytes", str(warning.message))
        # A byte to make it even may count as one or two more.
        if lengths and int(lengths[1]) >= int(lengths[2]) + columns + 2:
            raise DataError(
                f"{name} must hold {lengths[2]} bytes a segment, not {lengths[1]}; copy it again from its source"
            )
    if is_made_up:
        raise DataError(f"{name} must hold all of its compressed pixels, not a part; copy it again from its source")


def _find_type(header: Dataset, is_alike: bool) -> np.dtype:
    """Return the type of a file's scaled numbers."""
    [(slope, intercept), *_] = (read_scale(plane) for plane in read_planes(header))
    if not is_alike:
        # One slope's whole numbers are not another one's.
        return np.dtype(np.float32)
    if not (slope.is_integer() and intercept.is_integer()):
        return np.dtype(np.float64)
    lowest, highest = 0, (1 << header.BitsStored) - 1
    if header.get("PixelRepresentation") == 1:
        lowest, highest = -(1 << header.BitsStored - 1), (1 << header.BitsStored - 1) - 1
    ends = sorted((lowest * slope + intercept, highest * slope + intercept))
    for kind in WHOLE:
        if kind.min <= ends[0] and ends[1] <= kind.max:
            return kind.dtype
    return np.dtype(np.float64)


def scale_frames(stored: NDArray, header: Dataset, planes: Sequence[Plane], is_alike: bool) -> NDArray:
    """Return what stored numbers measure, by the scale of each plane."""
    scales = [read_scale(plane) for plane in planes]
    if is_alike and scales[0] == (1, 0):
        return stored
    scaled = np.empty(stored.shape, _find_type(header, is_alike))
    for frame, target, (slope, intercept) in zip(stored, scaled, cycle(scales), strict=False):
        target[...] = frame * slope + intercept
    return scaled


def is_coloured(header: Dataset) -> bool:
    """Return whether a file holds colours rather than intensities."""
    return bool(header.SamplesPerPixel == 3 or header.PhotometricInterpretation == "PALETTE COLOR")


def read_syntax(header: Dataset) -> str:
    """Return the transfer syntax; without one, as in old archives, that of the default."""
    return str(header.file_meta.get("TransferSyntaxUID") or UNCOMPRESSED[0])


def join_frames(header: Dataset) -> list[bytes]:
    """Return the compressed frames, each of which begins as its form does, and goes on in the fragments behind."""
    from pydicom.encaps import generate_fragments, parse_basic_offsets
    from pydicom.filebase import DicomBytesIO

    starts: tuple[bytes, ...] = (JPEG_START, JPEG_2000_START, JP2_START)
    if read_syntax(header) == RLE:
        segments = header.get("SamplesPerPixel", 1) * header.BitsAllocated // 8
        # The number of segments, and the place of the first one.
        starts = (segments.to_bytes(4, "little") + (64).to_bytes(4, "little"),)
    buffer = DicomBytesIO(header.PixelData)
    buffer.is_little_endian = True
    parse_basic_offsets(buffer)
    frames: list[list[bytes]] = []
    for fragment in generate_fragments(buffer):
        if not frames or fragment.startswith(starts):
            frames.append([])
        frames[-1].append(fragment)
    return [b"".join(fragments) for fragments in frames]


def read_size(frame: bytes, syntax: str) -> tuple[int, int, int, int]:
    """Return the rows, columns, components and bits of a number that a codestream says it has."""
    from pydicom.pixels.utils import _get_jpg_parameters

    if syntax in JPEG_2000:
        start = frame.index(JPEG_2000_START) + len(JPEG_2000_START)
        right, bottom, left, top = struct.unpack_from(">4I", frame, start + 4)
        components, bits = struct.unpack_from(">HB", frame, start + 36)
        return bottom - top, right - left, components, (bits & 0x7F) + 1
    form = _get_jpg_parameters(frame)
    if "precision" not in form:
        raise ValueError("a codestream does not state its size")
    return form["height"], form["width"], form["components"], form["precision"]


def _states_ycc(frame: bytes, syntax: str) -> bool | None:
    """Return whether a codestream says that it holds brightness and two colours, or others; None where it does not."""
    from pydicom.pixels.utils import _get_jpg_parameters

    if syntax in JPEG_2000:
        place = frame.find(CODING)
        # What was made of red, green and blue is given back so.
        return False if frame[place + 8 : place + 9] == b"\1" else None
    if syntax not in LOSSY_JPEG:
        # Writers of lossless JPEG put the markers of colours there unasked.
        return None
    form = _get_jpg_parameters(frame)
    adobe = form.get("app", {}).get(ADOBE, b"")
    if adobe.startswith(b"Adobe") and len(adobe) >= 12:
        return bool(adobe[11] == 1)
    if form.get("app", {}).get(JFIF, b"").startswith(b"JFIF"):
        return True
    return False if bytes(form["component_ids"]) == b"RGB" else None
