"""Check that a PNG holds the rows that its header states: Pillow leaves those black that are missing.

Source: W3C, Portable Network Graphics (PNG) Specification, third edition.
"""

import struct
from collections.abc import Iterator
from math import ceil
from typing import BinaryIO

from silofl.data.inflate import measure_stream

SIGNATURE_BYTES = 8
# Numbers of a pixel by the colour type.
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Each pass: its first column and row, and how far the next ones are.
PASSES = {
    0: [(0, 0, 1, 1)],
    1: [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)],
}


def check_rows(stream: BinaryIO) -> None:
    """Refuse a PNG with fewer or more rows than its header states; Pillow has checked the order of its chunks.

    Raises:
        ValueError: It holds another number of rows.
    """
    chunks = _read_chunks(stream)
    width, height, bits, colour, _, _, interlace = struct.unpack(">IIBBBBB", next(chunks)[1])
    bits *= CHANNELS[colour]
    needed = 0
    for left, top, across, down in PASSES[interlace]:
        columns, rows = ceil((width - left) / across), ceil((height - top) / down)
        # A byte before each row says how it is filtered.
        needed += rows * (1 + ceil(columns * bits / 8)) * (columns > 0)
    row = 1 + ceil(width * bits / 8)
    size, _ = measure_stream((content for kind, content in chunks if kind == b"IDAT"), needed + row)
    # Some writers leave a few bytes behind the last row.
    if not needed <= size < needed + row:
        raise ValueError(f"{min(size, needed + row)} bytes of pixels, not {needed}")


def _read_chunks(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    stream.seek(SIGNATURE_BYTES)
    while len(head := stream.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        yield kind, stream.read(length)
        stream.seek(4, 1)  # the checksum
