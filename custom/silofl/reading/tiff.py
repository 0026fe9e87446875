"""Check that a TIFF holds the pixels that its tags state, and those of one picture.

Source: Adobe, TIFF Revision 6.0. Pillow believes neither how many strips and tiles there must be nor how long they are,
and libtiff keeps to itself what a scan of JPEG lacks. tifffile reads half of such files as whole ones, and needs a
second package for JPEG.
"""

import io
import re
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import Any, BinaryIO

from silofl.base.errors import DataError
from silofl.reading.inflate import measure_stream
from silofl.reading.jpeg import check_scans

WIDTH, LENGTH, BITS, COMPRESSION, PHOTOMETRIC, DESCRIPTION = 256, 257, 258, 259, 262, 270
SAMPLES, STRIP_ROWS, PLANAR, TILE_WIDTH, TILE_LENGTH = 277, 278, 284, 322, 323
# Where strips and tiles begin, and how long they are.
STRIPS = (273, 279)
TILES = (324, 325)
JPEG_TABLES, DEPTH, METAMORPH_PLANES = 347, 32997, 33629
PLAIN = 1
JPEG = 7
DEFLATE = (8, 32946)
# Fax, and the form of JPEG that nothing has written for decades: whether their pixels are all there is not checked.
UNCHECKED = (2, 3, 4, 6)
SEPARATE = 2
HEADER_BYTES = 8
# How many planes one table of tags stands for, as ImageJ and OME say it; tifffile gives the shape of all.
STATED = (
    re.compile(r"\AImageJ=.*^images=(\d+)", re.MULTILINE | re.DOTALL),
    *(re.compile(rf'<Pixels\b[^>]*\bSize{axis}="(\d+)"') for axis in "ZT"),
)
SHAPE = re.compile(r'\A\{.*"shape": \[([\d, ]+)\]')
# What follows a smaller plane may be as long as planes by chance.
LEAST_PLANE = 1 << 10
# What a piece may hold beyond the rows of its picture.
SLACK = 1 << 26


@dataclass(frozen=True)
class Piece:
    """A strip or a tile: where it starts, its bytes in the file (None without the tag), and the pixels in it."""

    start: int
    length: int | None
    columns: int
    rows: int
    bits: int

    @property
    def size(self) -> int:
        """Its bytes once decoded: each row begins with a byte of its own."""
        return self.rows * ceil(self.columns * self.bits / 8)


def several_error(name: str, count: int) -> DataError:
    """Return the error for a file of several pictures: nothing in it says how far apart they are."""
    return DataError(
        f"{name} holds {count} pictures; save each as a file of its own, or a volume as .nii.gz with the size of its "
        "voxels"
    )


def check_tiff(stream: BinaryIO, tags: Any, name: str) -> None:  # noqa: ANN401 (its values have any type)
    """Refuse a TIFF that holds less or more than one picture.

    Args:
        tags: Pillow's table of tags.

    Raises:
        DataError: It is a stack of several pictures with one table of tags, of which Pillow reads the first; or it is
            compressed as a fax.
        ValueError: Strips or tiles are missing, lie outside of the file, or end early.
    """
    end = stream.seek(0, io.SEEK_END)
    pieces = _read_pieces(tags)
    compression = tags.get(COMPRESSION, PLAIN)
    if compression in UNCHECKED:
        raise DataError(f"{name} is compressed as a fax or by JPEG of before 1995; save it as PNG")
    if (planes := _count_planes(tags, pieces, end)) > 1:
        raise several_error(name, planes)
    for piece in pieces:
        length = piece.size if compression == PLAIN else piece.length or 0
        is_given = piece.length is None or (piece.length >= length and piece.length > 0)
        if piece.start < HEADER_BYTES or not is_given or piece.start + length > end:
            raise ValueError("a strip or a tile is not there, or not all of it")
    if compression in (JPEG, *DEFLATE):
        for piece in pieces:
            stream.seek(piece.start)
            # Without the length's tag, up to the end of the file.
            _check_content(stream.read(piece.length or -1), piece, tags)


def _read_pieces(tags: Any) -> list[Piece]:  # noqa: ANN401 (as above)
    """Return the strips or tiles of one picture."""
    width = tags[WIDTH]
    length = tags[LENGTH]
    samples = tags.get(SAMPLES, 1)
    bits = tags.get(BITS, (1,))
    bits = bits * samples if len(bits) == 1 else bits[:samples]
    layers = bits if tags.get(PLANAR) == SEPARATE else (sum(bits),)
    is_tiled = STRIPS[0] not in tags
    if is_tiled:
        columns = tags[TILE_WIDTH]
        rows = tags[TILE_LENGTH]
    else:
        columns = width
        rows = min(tags.get(STRIP_ROWS, length), length)
    starts, lengths = (tags.get(key, ()) for key in (TILES if is_tiled else STRIPS))
    count = len(layers) * ceil(width / columns) * ceil(length / rows)
    if len(starts) < count or 0 < len(lengths) < count:
        raise ValueError(f"{len(starts)} strips or tiles where its tags state {count}")
    places = product(layers, range(0, length, rows), range(0, width, columns))
    return [
        # The last tiles are whole ones, and the last strip ends with the picture.
        Piece(start, size, columns, rows if is_tiled else min(rows, length - top), depth)
        for start, size, (depth, top, _) in zip(starts, lengths or [None] * count, places, strict=False)
    ]


def _count_planes(tags: Any, pieces: list[Piece], end: int) -> int:  # noqa: ANN401 (as above)
    """Return how many pictures a table of tags stands for."""
    counted: int = max(len(tags.get(STRIPS[0], tags.get(TILES[0], ()))) // len(pieces), tags.get(DEPTH, 1))
    plane = sum(piece.size for piece in pieces)
    plane_end = max(piece.start + piece.size for piece in pieces)
    if tags.get(COMPRESSION, PLAIN) != PLAIN or counted > 1:
        return counted
    # A file of one plane may tell of others that lie in other files.
    if end - plane_end >= plane and (stated := _count_stated_planes(tags)) > 1:
        return stated
    if plane < LEAST_PLANE:
        return 1
    given = sum(min(piece.length or 0, end - piece.start) for piece in pieces)
    counts = [1, given // plane]
    # Where whole planes follow the table of tags and the first plane, they are of the same form.
    if tags.offset < plane_end < end and (end - plane_end) % plane == 0:
        counts.append(1 + (end - plane_end) // plane)
    return max(counts)


def _count_stated_planes(tags: Any) -> int:  # noqa: ANN401 (as above)
    text = str(tags.get(DESCRIPTION, ""))
    stated = []
    for pattern in STATED:
        if match := pattern.search(text):
            stated.append(int(match[1]))
    if match := SHAPE.match(text):
        numbers = prod(map(int, match[1].split(",")))
        stated.append(numbers // (tags[WIDTH] * tags[LENGTH] * tags.get(SAMPLES, 1)))
    # Six numbers tell of a plane.
    return max([*stated, len(tags.get(METAMORPH_PLANES, ())) // 6, 1])


def _check_content(content: bytes, piece: Piece, tags: Any) -> None:  # noqa: ANN401 (as above)
    if tags[COMPRESSION] in DEFLATE:
        size, is_whole = measure_stream([content], piece.size + SLACK)
        # libtiff stops where a strip is full, and so before the checksum.
        if not is_whole or size < piece.size:
            raise ValueError("a strip without its end")
    else:
        tables = tags.get(JPEG_TABLES, b"")
        columns, rows = check_scans(tables[:-2] + content[2 if tables else 0 :])
        if columns < piece.columns or rows < piece.rows:
            raise ValueError(
                f"a strip or a tile of {columns} x {rows} pixels where its tags state {piece.columns} x {piece.rows}"
            )
