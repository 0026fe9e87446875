"""Read what the compressed frames of a DICOM file say of themselves, and how long they are, without decoding them.

JPEG is ITU-T T.81, JPEG-LS T.87, JPEG 2000 T.800; RLE is annex G of DICOM PS3.5.
"""

import struct
from typing import NamedTuple

from pydicom.encaps import generate_fragments, parse_basic_offsets
from pydicom.filebase import DicomBytesIO

JPEG_START, JPEG_2000_START, JP2_START = b"\xff\xd8", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  "
CODESTREAM_STARTS = (JPEG_START, JPEG_2000_START, JP2_START)
END = b"\xff\xd9"
# Frames of all processes of JPEG, without its tables (C4, C8, CC), and the one of JPEG-LS.
SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC} | {0xF7}
# Of which JFIF and Adobe say what colours they hold; writers of lossless JPEG put their markers there unasked.
LOSSY = {0xC0, 0xC1, 0xC2}
# Which have no length behind them: TEM, the restarts, and the beginning of the image.
BARE = {0x01, *range(0xD0, 0xD9)}
JFIF, ADOBE = 0xE0, 0xEE
# How JPEG 2000 is coded: whether its first three components were made of red, green and blue stands 4 bytes in.
CODING, TRANSFORM = 0xFF52, 4


class Stated(NamedTuple):
    """What a codestream says: rows and columns, components, bits a sample, colour space if it says one, its end."""

    size: tuple[int, int]
    components: int
    bits: int
    is_ycc: bool | None
    has_end: bool


def join_frames(encapsulated: bytes, starts: tuple[bytes, ...]) -> tuple[list[bytes], int]:
    """Return the frames of encapsulated pixels, which begin with one of some bytes, and the number of fragments."""
    buffer = DicomBytesIO(encapsulated)
    buffer.is_little_endian = True
    parse_basic_offsets(buffer)
    fragments = list(generate_fragments(buffer))
    frames: list[list[bytes]] = []
    for fragment in fragments:
        if not frames or fragment.startswith(starts):
            frames.append([])
        frames[-1].append(fragment)
    return [b"".join(parts) for parts in frames], len(fragments)


def read_stated(frame: bytes) -> Stated | None:
    """Return what a frame of JPEG, JPEG-LS or JPEG 2000 says of itself; None where it states no size."""
    if frame.startswith(JPEG_START):
        return _read_jpeg(frame)
    return _read_jpeg_2000(frame)


def _read_jpeg(frame: bytes) -> Stated | None:
    place, is_ycc = len(JPEG_START), None
    while place + 4 <= len(frame) and frame[place] == 0xFF:
        marker = frame[place + 1]
        if marker in BARE or marker == 0xFF:
            place += 1 if marker == 0xFF else 2
            continue
        content = frame[place + 4 : place + 2 + int.from_bytes(frame[place + 2 : place + 4], "big")]
        if marker in SIZES and len(content) >= 6:
            bits, rows, columns, components = struct.unpack_from(">BHHB", content)
            if is_ycc is None and content[6::3] == b"RGB":
                is_ycc = False
            # Filled up to an even length, by some writers to a block.
            return Stated(
                (rows, columns),
                components,
                bits,
                is_ycc if marker in LOSSY else None,
                frame.rstrip(b"\0\xff").endswith(END),
            )
        if marker == ADOBE and content.startswith(b"Adobe") and len(content) >= 12:
            is_ycc = content[11] == 1
        elif marker == JFIF and content.startswith(b"JFIF") and is_ycc is None:
            is_ycc = True
        place += 4 + len(content)
    return None


def _read_jpeg_2000(frame: bytes) -> Stated | None:
    start = frame.find(JPEG_2000_START)
    size = frame[start + 8 : start + 43]
    if start < 0 or len(size) < 35:
        return None
    right, bottom, left, top = struct.unpack_from(">4I", size)
    components, bits = struct.unpack_from(">HB", size, 32)
    # Decoders give red, green and blue back. OpenJPEG itself refuses one that ends early.
    is_ycc = False if _is_transformed(frame, start) else None
    return Stated((bottom - top, right - left), components, (bits & 0x7F) + 1, is_ycc, has_end=True)


def _is_transformed(frame: bytes, start: int) -> bool:
    """Return whether a codestream of JPEG 2000 holds what was made of red, green and blue."""
    place = start + 2
    while place + 4 <= len(frame):
        marker, length = struct.unpack_from(">HH", frame, place)
        if marker == CODING:
            return frame[place + 4 + TRANSFORM : place + 5 + TRANSFORM] == b"\1"
        if length < 2:
            break
        place += 2 + length
    return False


def split_segments(frame: bytes) -> list[bytes]:
    """Return the segments of a frame of RLE, as its header places them."""
    if len(frame) < 64:
        return []
    count, *places = struct.unpack_from("<16I", frame)
    places = [*places[:count], len(frame)]
    return [frame[begin:end] for begin, end in zip(places, places[1:], strict=False)]


def count_unpacked(segment: bytes) -> int:
    """Return how many bytes a segment of RLE (PackBits) holds."""
    place = count = 0
    while place < len(segment):
        control = segment[place]
        if control < 128:
            count += min(control + 1, len(segment) - place - 1)
            place += control + 2
        elif control > 128:
            count += (257 - control) * (place + 1 < len(segment))
            place += 2
        else:
            place += 1
    return count
