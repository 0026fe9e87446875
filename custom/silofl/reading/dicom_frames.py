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
from typing import TYPE_CHECKING, Any

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
# JPEG has eight-bit and twelve-bit processes, and lossless ones; files of the withdrawn ones still exist.
LOSSY_JPEG = tuple(f"1.2.840.10008.1.2.4.{process}" for process in (50, 51, 52, 53, 55))
JPEG = (*LOSSY_JPEG, LOSSLESS_JPEG, "1.2.840.10008.1.2.4.70")
JPEG_LS = ("1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81")
JPEG_2000 = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
READ = (*UNCOMPRESSED, *JPEG, *JPEG_LS, *JPEG_2000, RLE)
# ITU-T T.81 and T.800 say how codestreams begin, and with what they end.
JPEG_START, JPEG_2000_START, JP2_START = b"\xff\xd8", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  "
END = b"\xff\xd9"
# Two segments of JPEG say what colours it holds, and one of JPEG 2000 says how it was coded.
JFIF, ADOBE, CODING = b"\xff\xe0", b"\xff\xee", b"\xff\x52"
# libjpeg says so on the error output alone where it makes up what a frame does not hold.
MADE_UP = b"premature end of data segment"
# Numbers of these modalities, as Hounsfield units, mean the same however they are shown.
MEASURED = ("CT", "MR", "NM", "PT")
# Scaled whole numbers are stored in the first of these that holds all.
WHOLE = tuple(np.iinfo(dtype) for dtype in ("u1", "u2", "u4", "i1", "i2", "i4", "i8"))


def decode_frames(header: Dataset, name: str, count: int, is_alike: bool) -> NDArray[Any]:
    """Return the stored numbers of a file, (frames, rows, columns, samples); colours as red, green and blue.

    Args:
        count: How many files as this one are read.
        is_alike: Whether all are scaled alike.
    """
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.uid import UID

    size = (count_frames(header), header.Rows, header.Columns)
    samples = 3 if is_coloured(header) else 1
    check_bytes(name, (*size, samples, count), _find_type(header, is_alike).itemsize)
    syntax = read_syntax(header)
    plugin = ""
    if syntax not in UNCOMPRESSED:
        _join_pixels(header, syntax)
        plugin = "pydicom" if syntax == RLE else "gdcm"
    if syntax in JPEG:
        # A codestream says itself by which process it was made; pydicom lets GDCM read some only by this name.
        syntax = LOSSLESS_JPEG
    header.file_meta.TransferSyntaxUID = UID(syntax)
    with _refuse_made_up(name, header.Columns):
        pixels = get_decoder(UID(syntax)).as_array(header, raw=True, decoding_plugin=plugin)[0]
    return _convert_colours(pixels.reshape(*size, header.SamplesPerPixel), header)


def _join_pixels(header: Dataset, syntax: str) -> None:
    """Store each compressed frame as one fragment, and let the header say what the codestreams say themselves."""
    from pydicom.encaps import encapsulate

    frames = join_frames(header)
    _correct_colours(header, {_states_ycc(frame, syntax) for frame in frames})
    if syntax in JPEG_2000:
        header.BitsStored = max(header.BitsStored, *(read_size(frame, syntax)[3] for frame in frames))
    header.PixelData = encapsulate(frames)
    # These tables count the fragments as they were before.
    for key in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths"):
        header.pop(key, None)


def _convert_colours(pixels: NDArray[Any], header: Dataset) -> NDArray[Any]:
    """Return colours as red, green and blue, and grey with 0 as black."""
    from pydicom.pixels.processing import apply_color_lut, convert_color_space

    form = header.PhotometricInterpretation
    if form in ("YBR_FULL", "YBR_FULL_422"):
        return convert_color_space(pixels, "YBR_FULL", "RGB", per_frame=True)
    if form == "PALETTE COLOR":
        colours = apply_color_lut(pixels[..., 0], header)
        # Colours of 16 bits come with the upper 8 where their numbers have no more.
        return (colours >> 8).astype(np.uint8) if colours.itemsize > pixels.itemsize else colours
    if form == "MONOCHROME1" and header.get("Modality") not in MEASURED:
        # A radiograph is stored so, and turned round here; a number with a sign becomes its complement.
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
    # The libraries written in C know no sys.stderr: only the file descriptor itself can be read.
    error_output = os.dup(2)
    with tempfile.TemporaryFile() as messages, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        os.dup2(messages.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(error_output, 2)
            os.close(error_output)
        messages.seek(0)
        is_made_up = MADE_UP in messages.read()
    for warning in caught:
        lengths = re.search(r"RLE segment .* (\d+) vs\. (\d+) bytes", str(warning.message))
        # A byte to make it even may count as one or two more.
        if lengths and int(lengths[1]) >= int(lengths[2]) + columns + 2:
            is_made_up = True
    if is_made_up:
        raise DataError(f"{name} lacks a part of its compressed pixels; copy it again from its source")


def _find_type(header: Dataset, is_alike: bool) -> np.dtype[Any]:
    """Return the type of a file's scaled numbers."""
    if not is_alike:
        # One slope's whole numbers are not another one's.
        return np.dtype(np.float32)
    slope, intercept = read_scale(next(read_planes(header)))
    if not (slope.is_integer() and intercept.is_integer()):
        return np.dtype(np.float64)
    lowest = 0
    if header.get("PixelRepresentation") == 1:
        lowest = -(1 << header.BitsStored - 1)
    highest = lowest + (1 << header.BitsStored) - 1
    # A negative slope makes the highest number the least.
    least, greatest = sorted((lowest * slope + intercept, highest * slope + intercept))
    for integers in WHOLE:
        if integers.min <= least and greatest <= integers.max:
            return integers.dtype
    return np.dtype(np.float64)


def scale_frames(stored: NDArray[Any], header: Dataset, planes: Sequence[Plane], is_alike: bool) -> NDArray[Any]:
    """Return what stored numbers measure, by the scale of each plane; one plane's is that of all frames."""
    scales = [read_scale(plane) for plane in planes]
    if is_alike and scales[0] == (1, 0):
        return stored
    scaled = np.empty(stored.shape, _find_type(header, is_alike))
    for number, frame in enumerate(stored):
        slope, intercept = scales[number % len(scales)]
        scaled[number] = frame * slope + intercept
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
        # A frame begins with the number of its segments and the place of the first one.
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
    return form["height"], form["width"], form["components"], form["precision"]


def _states_ycc(frame: bytes, syntax: str) -> bool | None:
    """Return whether a codestream says that it holds brightness and two colours, or others; None where it does not."""
    from pydicom.pixels.utils import _get_jpg_parameters

    if syntax in JPEG_2000:
        start = frame.find(CODING)
        # This byte says that red, green and blue were transformed; the decoder gives them back.
        return False if frame[start + 8 : start + 9] == b"\1" else None
    if syntax not in LOSSY_JPEG:
        # Writers of lossless JPEG put the markers of colours there unasked.
        return None
    form = _get_jpg_parameters(frame)
    adobe = form.get("app", {}).get(ADOBE, b"")
    if adobe.startswith(b"Adobe") and len(adobe) >= 12:
        return bool(adobe[11] == 1)
    if form.get("app", {}).get(JFIF, b"").startswith(b"JFIF"):
        return True
    if bytes(form["component_ids"]) == b"RGB":
        return False
    return None
