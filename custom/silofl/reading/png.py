"""Check that a PNG is whole: Pillow leaves rows black that are missing, and looks at no checksum of the pixels.

Source: W3C, Portable Network Graphics (PNG) Specification, third edition.
"""

import struct
import zlib
from collections.abc import Iterator
from math import ceil

from silofl.reading.inflate import measure_stream

SIGNATURE_BYTES = 8
# Numbers of a pixel by the colour type.
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Each pass: its first column and row, and how far the next ones are.
PASSES = {
    0: [(0, 0, 1, 1)],
    1: [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)],
}


def check_png(content: bytes) -> None:
    """Refuse a PNG with a wrong checksum, or fewer or more rows than its header states.

    Args:
        content: The file, which Pillow has opened.

    Raises:
        ValueError: It has a wrong checksum, no end, or another number of rows.
    """
    chunks = [*_read_chunks(content)]
    width, height, bits, colour, _, _, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    bits *= CHANNELS[colour]
    needed = 0
    for left, top, across, down in PASSES[interlace]:
        columns = ceil((width - left) / across)
        rows = ceil((height - top) / down)
        # A byte before each row says how it is filtered.
        needed += rows * (1 + ceil(columns * bits / 8)) * (columns > 0)
    row = 1 + ceil(width * bits / 8)
    size, _ = measure_stream((data for name, data in chunks if name == b"IDAT"), needed + row)
    # Some writers leave a few bytes behind the last row.
    if not needed <= size < needed + row:
        raise ValueError(f"{min(size, needed + row)} bytes of pixels where its header states {needed}")


def _read_chunks(content: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the name and the content of each chunk up to the end of the picture."""
    view = memoryview(content)
    start = SIGNATURE_BYTES
    name = b""
    while name != b"IEND":
        if len(view) < start + 8:
            raise ValueError("no end")
        length, name = struct.unpack_from(">I4s", view, start)
        end = start + 8 + length
        # The checksum is of the chunk's name and content, not of its length.
        if zlib.crc32(view[start + 4 : end]).to_bytes(4) != view[end : end + 4]:
            raise ValueError(f"a wrong checksum of {name!r}")
        yield name, view[start + 8 : end]
        start = end + 4
