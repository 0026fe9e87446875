"""Read pictures with Pillow: PNG, JPEG and TIFF.

A damaged PNG is noticed by the checksums of its chunks, the pixels of a TIFF compressed with Deflate by those of its
strips. A JPEG, a TIFF of another compression or of none, and a TIFF's tags have no checksums: of these only what cannot
be decoded is noticed.
"""

import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from silofl.data.decoded import Decoded
from silofl.errors import DataError

FORMATS = ("PNG", "JPEG", "TIFF")
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "F", "I;16", "I;16B", "I;16L")
MAX_PIXELS = 178_956_970
COMPRESSION, DEFLATE = 259, (8, 32946)
# Where the strips and the tiles of a TIFF begin, and how long they are.
PIECES = ((273, 279), (324, 325))
# What they may hold: eight numbers of 64 bits a pixel, and what lies beyond the picture in its last tiles.
PIXEL_BYTES, PIECES_BYTES = 64, 1 << 26
BLOCK = 1 << 20


def read_picture(path: Path, name: str, is_label: bool) -> Decoded:
    """Read one picture as it is shown, turned by its tag of orientation; a palette's numbers are kept in a label map.

    Raises:
        DataError: It holds several pictures, too many pixels, or colours other than grey and RGB.
        Exception: Whatever Pillow raises on broken bytes.
    """
    Image.MAX_IMAGE_PIXELS = None  # MAX_PIXELS is checked instead, with a sentence
    # Not by its name: Pillow would map a TIFF without compression into memory, with the sides that it has once turned.
    with path.open("rb") as stream, Image.open(stream, formats=FORMATS) as picture:
        if picture.width * picture.height > MAX_PIXELS:
            size = f"{picture.width} x {picture.height}"
            raise DataError(f"{name} must have at most {MAX_PIXELS} pixels, not {size}; cut it into tiles")
        if getattr(picture, "n_frames", 1) > 1:
            raise DataError(f"{name} must hold one picture, not {picture.n_frames}; save each as a file of its own")
        _check_sums(path, picture)
        picture = ImageOps.exif_transpose(picture)
        if (picture.mode == "P" and not is_label) or picture.mode in ("PA", "CMYK", "YCbCr"):
            picture = picture.convert("RGB")
        if picture.mode not in MODES:
            raise DataError(f"{name} must be grey or RGB, not {picture.mode!r}; convert it")
        is_binary = picture.mode == "1"
        pixels = np.asarray(picture)
    if pixels.ndim == 2:
        # A TIFF may store big-endian numbers, which torch does not take.
        return Decoded(pixels[None].astype(pixels.dtype.newbyteorder("=")), is_binary=is_binary)
    has_alpha = pixels.shape[2] in (2, 4)
    return Decoded(np.moveaxis(pixels[..., :-1] if has_alpha else pixels, 2, 0))


def _check_sums(path: Path, picture: Image.Image) -> None:
    if picture.format == "PNG":
        # It reads the file to its end, and so of an image of its own.
        with Image.open(path, formats=FORMATS) as other:
            other.verify()
    elif picture.format == "TIFF" and picture.tag_v2.get(COMPRESSION) in DEFLATE:
        tags, left = picture.tag_v2, PIECES_BYTES + PIXEL_BYTES * picture.width * picture.height
        with path.open("rb") as stream:
            for starts, lengths in PIECES:
                for start, length in zip(tags.get(starts, ()), tags.get(lengths, ()), strict=True):
                    stream.seek(start)
                    left -= _checked_bytes(stream.read(length), left)


def _checked_bytes(content: bytes, limit: int) -> int:
    """Decompress a stream to its end, where zlib compares the checksum, and return how much came out.

    libtiff stops where a strip is full, and so before the checksum.
    """
    decompressor, size = zlib.decompressobj(), 0
    while not decompressor.eof:
        given = decompressor.decompress(content, BLOCK)
        content, size = decompressor.unconsumed_tail, size + len(given)
        if size > limit or not (given or content or decompressor.eof):
            raise ValueError("a strip without its end")
    return size
