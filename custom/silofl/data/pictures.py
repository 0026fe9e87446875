"""Read pictures with Pillow: PNG, JPEG and TIFF.

A damaged PNG is noticed by the checksums of its chunks, the pixels of a TIFF compressed with Deflate by those of its
strips. A JPEG, a TIFF of another compression or of none, and a TIFF's tags have no checksums: of these only what cannot
be decoded is noticed.
"""

import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from silofl.data.decoded import Decoded
from silofl.errors import DataError

FORMATS = ("PNG", "JPEG", "TIFF")
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "F", "I;16", "I;16B", "I;16L")
MAX_PIXELS = 178_956_970
COMPRESSION, DEFLATE = 259, (8, 32946)
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0
SAMPLE_FORMAT, SIGNED = 339, (2,)
# Where the strips and the tiles of a TIFF begin, and how long they are.
PIECES = ((273, 279), (324, 325))
# What they may hold: eight numbers of 64 bits a pixel, and what lies beyond the picture in its last tiles.
PIXEL_BYTES, PIECES_BYTES = 64, 1 << 26
BLOCK = 1 << 20


def read_picture(path: Path, name: str, is_label: bool) -> Decoded:
    """Read one picture as it is shown, turned by its tag of orientation; a palette's numbers are kept in a label map.

    Raises:
        DataError: It holds several pictures, too many pixels, colours other than grey and RGB, or numbers that Pillow
            reads as others.
        Exception: Whatever Pillow raises on broken bytes.
    """
    Image.MAX_IMAGE_PIXELS = None  # MAX_PIXELS is checked instead, with a sentence
    # Not by its name: Pillow would map a TIFF without compression into memory, with the sides that it has once turned.
    with path.open("rb") as stream, _open_picture(stream) as picture:
        if picture.width * picture.height > MAX_PIXELS:
            size = f"{picture.width} x {picture.height}"
            raise DataError(f"{name} must have at most {MAX_PIXELS} pixels, not {size}; cut it into tiles")
        if getattr(picture, "n_frames", 1) > 1:
            raise DataError(f"{name} must hold one picture, not {picture.n_frames}; save each as a file of its own")
        _check_sums(path, picture)
        _check_numbers(picture, name, is_label)
        tags = picture.tag_v2 if picture.format == "TIFF" else {}
        picture = ImageOps.exif_transpose(picture)
        if (picture.mode == "P" and not is_label) or picture.mode in ("PA", "CMYK", "YCbCr"):
            picture = picture.convert("RGB")
        if picture.mode not in MODES:
            raise DataError(f"{name} must be grey or RGB, not {picture.mode!r}; convert it")
        is_binary = picture.mode == "1"
        pixels = np.asarray(picture)
    if pixels.ndim == 2:
        # A TIFF may store big-endian numbers, which torch does not take.
        pixels = pixels.astype(pixels.dtype.newbyteorder("="))
        if tags and pixels.dtype.kind in "iu":
            # Pillow takes signed bytes for unsigned ones, and 32 bits for signed.
            pixels = pixels.view(f"{'i' if tags.get(SAMPLE_FORMAT) == SIGNED else 'u'}{pixels.itemsize}")
        return Decoded(pixels[None], is_binary=is_binary)
    has_alpha = pixels.shape[2] in (2, 4)
    colours = pixels[..., :-1] if has_alpha else pixels
    if is_label and has_alpha and np.ptp(colours) == 0 and np.ptp(pixels[..., -1]) > 0:
        raise DataError(f"{name} must hold its label numbers as grey, not as transparency alone; save label numbers")
    return Decoded(np.moveaxis(colours, 2, 0))


def _open_picture(stream: BinaryIO) -> Image.Image:
    try:
        return Image.open(stream, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(
            "or one of a form that Pillow does not know, as 64-bit numbers or five channels, to be saved as PNG"
        ) from None


def _check_numbers(picture: Image.Image, name: str, is_label: bool) -> None:
    """Refuse numbers that Pillow reads as others."""
    if picture.format == "TIFF" and picture.tag_v2.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        # It turns eight bits round and not sixteen; of a mask nobody knows whether the numbers or the colours count.
        if is_label or picture.mode not in ("1", "L"):
            raise DataError(f"{name} must have 0 as black, not as white (PhotometricInterpretation 0); save it as PNG")
    if picture.mode.startswith("RGB") and any(";16" in str(tile.args) for tile in picture.tile):
        if is_label:
            raise DataError(f"{name} must hold label numbers of 16 bits as grey, not as colours; save it as grey")
        # It reads the upper eight alone: of the 12 bits of a camera, the upper four.
        raise DataError(f"{name} must hold colours of 8 bits, not of 16; save it with 8, scaled to its whole range")


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
                    left -= _count_decompressed_bytes(stream.read(length), left)


def _count_decompressed_bytes(content: bytes, limit: int) -> int:
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
