"""Count what a zlib stream holds without keeping it: picture libraries stop at the last row, before the checksum."""

import zlib
from collections.abc import Iterable

BLOCK = 1 << 20


def measure_stream(pieces: Iterable[bytes | memoryview], limit: int) -> tuple[int, bool]:
    """Decompress a stream and count its bytes.

    Args:
        pieces: The stream, cut anywhere.
        limit: More bytes than this are not counted.

    Returns:
        How many bytes came out, and whether the stream ended, where zlib compares its checksum.
    """
    decompressor = zlib.decompressobj()
    size = 0
    for content in pieces:
        # Where all input is consumed more may still come out: it is asked for until nothing does.
        given = b"-"
        while (given or content) and size <= limit and not decompressor.eof:
            given = decompressor.decompress(content, BLOCK)
            content = decompressor.unconsumed_tail
            size += len(given)
    return size, decompressor.eof
