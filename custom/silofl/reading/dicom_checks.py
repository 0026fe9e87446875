"""Judge whether a DICOM image is read as it is meant, and whether its pixels are all there.

The modules are those of DICOM PS3.3 (Image Pixel, Modality LUT, NM Multi-frame, Whole Slide Microscopy Image),
the encodings those of PS3.5 (section 8 and annexes A and G).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from silofl.base.errors import DataError
from silofl.reading.dicom_frames import (
    COLOURS,
    END,
    JPEG_2000,
    READ,
    RLE,
    UNCOMPRESSED,
    is_coloured,
    join_frames,
    read_size,
    read_syntax,
)
from silofl.reading.dicom_planes import COUNTS, POSITION, count_frames, list_values, read_planes, read_scale

if TYPE_CHECKING:
    from pydicom import Dataset

# Whether a condition is broken, and what is wrong then, for the sentence "NAME ...".
Judgement = Iterator[tuple[bool, str]]
# These modalities hold segments, outlines or a scaled dose in place of intensities.
DRAWN = {
    "SEG": "is a DICOM segmentation; name it as the mask of its image",
    "RTSTRUCT": "is a DICOM structure set; save its outlines as a DICOM segmentation or as NIfTI on the image's grid, "
    "for example with 3D Slicer (SlicerRT)",
    "RTDOSE": "is a radiotherapy dose; save it as NIfTI, for example with 3D Slicer (SlicerRT)",
}
# Two makers tile a volume into one picture. They say so by a word of ImageType, and by an element that counts slices.
MOSAICS = {"MOSAIC": "Siemens", "VFRAME": "United Imaging"}
TILE_COUNTS = (("Siemens", 0x0019, "SIEMENS MR HEADER", 0x0A), ("United Imaging", 0x0065, "Image Private Header", 0x50))
# Tables of these modalities lead back to the beam's intensity; programs show and measure the image without them.
ANGIOGRAPHY = ("XA", "RF")
ALLOWED = {
    "BitsAllocated": (1, 8, 16, 32),
    "PixelRepresentation": (0, 1),
    "SamplesPerPixel": (1, 3),
    "PlanarConfiguration": (0, 1),
}
# This is a decimal string (DS) of PS3.5; its limit of 16 characters is often passed, and harmless.
DECIMAL = r"[+-]?(\d+\.?\d*|\.\d+)([Ee][+-]?\d+)?"
EXPORT = "export it again, or save it as NIfTI"
COPY_OR_EXPORT = "copy it again from its source, or export it again"


def check_form(header: Dataset, name: str) -> None:
    """Refuse a file whose numbers are not known to be read as they are meant, as far as its header tells.

    Raises:
        DataError: An element has a value that cannot be read rightly.
        Exception: Whatever pydicom raises on broken bytes.
    """
    check_judgements(_judge_content(header), name)
    check_judgements(_judge_form(header), name)


def check_judgements(judgements: Judgement, name: str) -> None:
    """Raise a DataError for the first condition that is broken; later ones may rely on it and are not computed."""
    for is_broken, fault in judgements:
        if is_broken:
            raise DataError(f"{name} {fault}")


def _judge_content(header: Dataset) -> Judgement:
    """Judge whether a file is an image, and each of its frames a slice of one volume."""
    modality = "RTDOSE" if "DoseGridScaling" in header else header.get("Modality")
    yield modality in DRAWN, DRAWN.get(modality, "")
    yield from judge_numbers(header)
    yield from judge_tiles(header)
    varied = _find_varied_vectors(header)
    yield (
        len(varied) > 1,
        f"holds several volumes, whose frames {' and '.join(varied)} tell apart (FrameIncrementPointer); save each "
        "volume as a file of its own",
    )
    mosaic = _find_mosaic(header)
    # Frames with places of their own are slices, whatever else is stated.
    is_placed = count_frames(header) > 1 and all(plane[POSITION] for plane in read_planes(header))
    yield (
        mosaic is not None and not is_placed,
        f"holds many slices side by side in one picture ({mosaic}); convert its series to NIfTI with dcm2niix",
    )


def judge_tiles(header: Dataset) -> Judgement:
    """Judge whether a file holds more than a part of a picture."""
    rows = header.get("TotalPixelMatrixRows")
    columns = header.get("TotalPixelMatrixColumns")
    is_whole = (rows, columns) == (header.get("Rows"), header.get("Columns"))
    yield (
        rows is not None and columns is not None and not is_whole,
        f"holds tiles of a whole slide of {rows} x {columns} pixels; save the region of interest as PNG or TIFF",
    )


def _find_varied_vectors(header: Dataset) -> list[str]:
    """Return which vectors number the frames, as of nuclear medicine by energy, detector, time and slice."""
    from pydicom.datadict import keyword_for_tag

    varied = []
    for tag in list_values(header.get("FrameIncrementPointer")):
        key = keyword_for_tag(tag)
        if key.endswith("Vector") and len(set(list_values(header.get(key)))) > 1:
            varied.append(key)
    return varied


def _find_mosaic(header: Dataset) -> str | None:
    """Return by what a file says that its picture is a tiled volume, with the maker's name."""
    for word in list_values(header.get("ImageType")):
        if word in MOSAICS:
            return f"ImageType {word} of {MOSAICS[word]}"
    for maker, group, creator, element in TILE_COUNTS:
        if _count_tiles(header, group, creator, element) > 1:
            return f"mosaic of {maker}"
    return None


def _count_tiles(header: Dataset, group: int, creator: str, element: int) -> int:
    """Return how many slices a maker's own element counts, as a number or with an item for each; 0 without it."""
    from pydicom.sequence import Sequence as Items

    with suppress(KeyError, TypeError, ValueError):
        value = header.private_block(group, creator)[element].value
        if isinstance(value, Items):
            return len(value)
        # A file that does not say which kind of value it is has bytes, which int() takes too.
        return int(value)
    return 0


def judge_numbers(header: Dataset) -> Judgement:
    """Judge whether numbers that are stored as text are numbers."""
    for plane in read_planes(header):
        for key, count in COUNTS.items():
            texts = [str(value).strip() for value in list_values(plane[key])]
            is_decimal = all(re.fullmatch(DECIMAL, text, re.ASCII) and math.isfinite(float(text)) for text in texts)
            yield (
                not is_decimal or len(texts) not in (0, count),
                f"has '{', '.join(texts)[:40]}' as {key} instead of {count} decimal number(s); correct it, or {EXPORT}",
            )


def _judge_form(header: Dataset) -> Judgement:
    """Judge how pixels are stored, and what leads from stored numbers to what they measure."""
    from pydicom.uid import UID

    syntax = read_syntax(header)
    yield (
        syntax not in READ,
        f"is compressed as {UID(syntax).name}; export it without compression, or as JPEG, JPEG-LS, JPEG 2000 or RLE",
    )
    for key, allowed in ALLOWED.items():
        value = header.get(key, allowed[0])
        yield value not in allowed, f"has {key} {value} instead of {_join_or(allowed)}; {EXPORT}"
    allocated = header.BitsAllocated
    stored = header.BitsStored
    # Only then are the numbers at the lower end of their bits, where decoders look for them.
    is_at_low_end = 1 <= stored <= allocated and header.HighBit == stored - 1
    yield (
        not is_at_low_end,
        f"has BitsStored {stored} and HighBit {header.HighBit} of {allocated} bits, where HighBit should be one below "
        f"BitsStored; {EXPORT}",
    )
    colours = header.get(COLOURS)
    allowed_colours = _list_colours(header.SamplesPerPixel, allocated, syntax)
    yield (
        colours not in allowed_colours,
        f"has the {COLOURS} {colours} instead of {_join_or(allowed_colours)}; {EXPORT}",
    )
    yield (
        "ModalityLUTSequence" in header and header.get("Modality") not in ANGIOGRAPHY,
        "has a table of intensities (Modality LUT), which is not read; export it with the table applied",
    )
    scales = {read_scale(plane) for plane in read_planes(header)}
    yield (
        any(slope == 0 for slope, _ in scales),
        f"has a rescale slope of 0, by which all its pixels mean the same; {EXPORT}",
    )
    yield (
        is_coloured(header) and scales != {(1, 0)},
        f"has RescaleSlope and RescaleIntercept beside colours ({colours}); {EXPORT}",
    )


def _list_colours(samples: int, allocated: int, syntax: str) -> list[str]:
    """Return what numbers of a pixel may stand for, as far as decoders give it back rightly."""
    if samples == 1:
        return ["MONOCHROME1", "MONOCHROME2", "PALETTE COLOR"]
    colours = ["RGB"]
    if allocated == 8:
        colours += ["YBR_FULL", "YBR_FULL_422"]
    if syntax in JPEG_2000:
        colours += ["YBR_RCT", "YBR_ICT"]
    return colours


def judge_size(header: Dataset) -> Judgement:
    """Judge whether there are as many pixels as the header says, no more and no fewer."""
    if read_syntax(header) in UNCOMPRESSED:
        yield _judge_bytes(header)
    else:
        yield from _judge_codestreams(header, read_syntax(header))


def _judge_bytes(header: Dataset) -> tuple[bool, str]:
    from pydicom.pixels.utils import get_expected_length

    # pydicom's formula asks for both, which old archives leave out for grey.
    header.setdefault("SamplesPerPixel", 1)
    header.setdefault(COLOURS, "MONOCHROME2")
    frames = count_frames(header)
    needed = get_expected_length(header)
    held = len(header.PixelData)
    spare = held - needed
    # Some writers fill up to a block. Bytes for each row, column or frame, and one to make them even, are no filling:
    # each is stored longer than the header says, or there are more of them. Rows of bits may be stored in whole bytes.
    is_filled = (
        (frames == 1 and header.BitsAllocated > 1)
        and (1 < spare < needed // 2)
        and (spare % header.Rows > 1 and spare % header.Columns > 1)
    )
    return (
        spare not in (0, 1) and not is_filled,
        f"holds {held} bytes of PixelData, where its Rows and Columns ({header.Rows} x {header.Columns}), "
        f"SamplesPerPixel, BitsAllocated and NumberOfFrames ({frames}) need {needed}; {COPY_OR_EXPORT}",
    )


def _judge_codestreams(header: Dataset, syntax: str) -> Judgement:
    frames = count_frames(header)
    stored = join_frames(header)
    yield (
        len(stored) != frames,
        f"holds {len(stored)} frames, where its NumberOfFrames says {frames}; {COPY_OR_EXPORT}",
    )
    # A frame of RLE does not state its size; its decoder compares the bytes of each segment.
    if syntax == RLE:
        return
    size = (header.Rows, header.Columns, header.get("SamplesPerPixel", 1))
    for number, frame in enumerate(stored, start=1):
        where = f"in frame {number} of {frames}; {COPY_OR_EXPORT}"
        *stated, bits = read_size(frame, syntax)
        yield (
            tuple(stated) != size,
            f"has Rows, Columns and SamplesPerPixel {[*size]}, where its compressed pixels say {stated} {where}",
        )
        yield (
            bits > header.BitsAllocated and syntax not in JPEG_2000,
            f"has BitsAllocated {header.BitsAllocated}, where its compressed pixels need {bits} {where}",
        )
        # It is filled up to an even length, by some writers to a block.
        yield not frame.rstrip(b"\0\xff").endswith(END), f"lacks its codestream's end {where}"


def _join_or(values: Iterable[object]) -> str:
    *most, final = map(str, values)
    return f"{', '.join(most)} or {final}" if most else final
