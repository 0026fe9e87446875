"""Unpack PNG, JPEG, TIFF, BMP and GIF with Pillow; `silofl.reading.formats` makes an array of what is unpacked.

Each must hold all pixels that its header states. A damaged PNG is noticed by the checksums of its chunks, the pixels of
a TIFF compressed with Deflate by those of its strips. A JPEG, BMP or GIF, a TIFF of another compression or of none, and
a TIFF's tags have no checksums: of these only what cannot be decoded, and what is missing, is noticed.
"""

from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from silofl.base.errors import DataError
from silofl.reading.decoded import Unpacked
from silofl.reading.jpeg import check_scans
from silofl.reading.png import check_png
from silofl.reading.tiff import COMPRESSION, PHOTOMETRIC, check_tiff, several_error

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF")
# Their writers choose the numbers of a palette, so that its colours say what is meant, of label numbers the grey.
COLOURS_COUNT = ("BMP", "GIF")
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "F", "I;16", "I;16B", "I;16L")
MAX_PIXELS = 178_956_970
WHITE_IS_ZERO = 0
SAMPLE_FORMAT = 339
SIGNED = (2,)
GREY_AND_MORE = "LX"
# JPEG, JPEG 2000 and WebP within a TIFF.
LOSSY = (6, 7, 33003, 33004, 33005, 34712, 50001)
# Pillow spreads grey of two and four bits over eight: what 1 becomes, by its name for how they are stored.
SPREAD = {"L;2": 85, "L;4": 17}


def unpack_picture(path: Path, name: str, is_label: bool) -> Unpacked[list[bytes]]:
    """Unpack one picture as it is shown, turned by its tag of orientation.

    The numbers of a palette are kept in a label map of PNG or TIFF.

    Returns:
        The pixels, and of them: ``shape``, (rows, columns) or (rows, columns, colours), and ``dtype`` as NumPy writes
        it; ``is_binary`` of one bit; ``sign``, i or u, where integers of a TIFF may be taken for others; ``spread``, by
        which Pillow has multiplied grey of two or four bits.

    Raises:
        DataError: It holds several pictures, too many pixels, colours other than grey and RGB, or numbers that Pillow
            reads as others.
        Exception: Whatever Pillow raises on broken bytes.
    """
    Image.MAX_IMAGE_PIXELS = None  # MAX_PIXELS is checked instead, with a sentence
    # Not by its name: Pillow would map a TIFF without compression into memory, with the sides that it has once turned.
    with path.open("rb") as stream, _open_picture(stream) as picture:
        if picture.width * picture.height > MAX_PIXELS:
            raise DataError(
                f"{name} has {picture.width} x {picture.height} pixels, more than {MAX_PIXELS}; cut it into tiles"
            )
        if (count := getattr(picture, "n_frames", 1)) > 1:
            raise several_error(name, count)
        # Only TIFF has such a table.
        tags = getattr(picture, "tag_v2", None)
        # Pillow's name for how the pixels are stored, which it forgets once they are loaded.
        arguments: Any = picture.tile[0].args if picture.tile else ""
        stored = arguments if isinstance(arguments, str) else str(arguments[0])
        _check_numbers(picture, tags, stored, name, is_label)
        _check_whole(stream, picture, tags, name)
        sign = None
        if tags:
            sign = "i" if tags.get(SAMPLE_FORMAT) == SIGNED else "u"
        ImageOps.exif_transpose(picture, in_place=True)
        shown: Image.Image = picture
        has_colours = picture.mode == "P" and (not is_label or picture.format in COLOURS_COUNT)
        if has_colours or picture.mode in ("PA", "CMYK", "YCbCr"):
            shown = picture.convert("RGB")
        if shown.mode not in MODES:
            raise DataError(f"{name} has colours of the mode {shown.mode!r}; convert it to grey or RGB")
        pixels: dict[str, Any] = shown.__array_interface__
    facts = {
        "shape": pixels["shape"],
        "dtype": pixels["typestr"],
        "is_binary": shown.mode == "1",
        "sign": sign,
        "spread": SPREAD.get(stored[:3], 1),
    }
    return Unpacked([pixels["data"]], facts)


def _open_picture(stream: BinaryIO) -> ImageFile.ImageFile:
    try:
        return Image.open(stream, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(
            "or one of a form that Pillow does not know, as 64-bit numbers or five channels, to be saved as PNG"
        ) from None


def _check_numbers(picture: Image.Image, tags: Any, stored: str, name: str, is_label: bool) -> None:  # noqa: ANN401
    """Refuse numbers that Pillow reads as others, and label numbers that their compression has changed."""
    if is_label and (tags.get(COMPRESSION) in LOSSY if tags else picture.format == "JPEG"):
        raise DataError(
            f"{name} is a mask compressed as JPEG, which changes label numbers; export the mask anew as PNG"
        )
    # Pillow turns eight bits round and not sixteen, and takes 0 for white without the tag.
    is_turned = picture.mode in ("1", "L")
    if tags and tags.get(PHOTOMETRIC, 0 if is_turned else 1) == WHITE_IS_ZERO and (is_label or not is_turned):
        # Of a mask nobody knows whether the numbers or the colours count.
        raise DataError(f"{name} stores white as 0 (PhotometricInterpretation 0); save it as PNG, with 0 as black")
    if stored == GREY_AND_MORE:
        raise DataError(
            f"{name} holds a second number of unknown meaning for each pixel (ExtraSamples 0); save each channel as a "
            "file of its own"
        )
    if len(picture.getbands()) > 1 and ";16" in stored:
        # It reads the upper eight alone: of the 12 bits of a camera, the upper four.
        remedy = "label numbers as grey" if is_label else "it with 8 bits, scaled to their whole range"
        raise DataError(f"{name} has colours of 16 bits, of which 8 would be lost; save {remedy}")


def _check_whole(stream: BinaryIO, picture: Image.Image, tags: Any, name: str) -> None:  # noqa: ANN401 (as above)
    """Refuse a picture of which bytes are missing, or wrong by a checksum; Pillow fills in what is missing."""
    # Pillow goes on to read where it stood.
    position = stream.tell()
    stream.seek(0)
    if picture.format == "PNG":
        check_png(stream.read())
    elif picture.format == "TIFF":
        check_tiff(stream, tags, name)
    elif picture.format == "JPEG":
        check_scans(stream.read(), picture)
    stream.seek(position)
