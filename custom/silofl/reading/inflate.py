"""Count what a zlib stream holds without keeping it: picture libraries stop at the last row, before the checksum."""

import zlib
from collections.abc import Iterable

BLOCK = 1 << 20


def measure_stream(pieces: Iterable[bytes], limit: int) -> tuple[int, bool]:
    """Decompress a stream and count its bytes.

    Args:
        pieces: The stream, cut anywhere.
        limit: More bytes than this are not counted.

    Returns:
        How many bytes came out, and whether the stream ended, where zlib compares its checksum.
    """
    decompressor, size = zlib.decompressobj(), 0
    for content in pieces:
        given = b"-"
        while (given or content) and size <= limit and not decompressor.eof:
            given = decompressor.decompress(content, BLOCK)
            content, size = decompressor.unconsumed_tail, size + len(given)
    return size, decompressor.eof
