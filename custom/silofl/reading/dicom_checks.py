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
from silofl.reading.dicom_planes import (
    COUNTS,
    POSITION,
    count_frames,
    list_values,
    read_planes,
    read_scale,
)

if TYPE_CHECKING:
    from pydicom import Dataset

# Whether a condition is broken, and what the file must do, for the sentence "NAME must ...".
Judgement = Iterator[tuple[bool, str]]
# Of labels by their segments or outlines, in place of a number a pixel, and what to do about them.
DRAWN = {
    "SEG": "an image, not a DICOM segmentation; name it as the mask of its image",
    "RTSTRUCT": "an image or a label map, not a DICOM structure set; fill its outlines and save them as a DICOM "
    "segmentation or as NIfTI on the image's grid, for example with 3D Slicer (SlicerRT) or plastimatch",
    "RTDOSE": "an image, not a radiotherapy dose; save it as NIfTI, for example with 3D Slicer (SlicerRT)",
}
# By words of ImageType, and by elements of their own that count the slices: those who tile a volume into one picture.
MOSAICS = {"MOSAIC": "Siemens", "VFRAME": "United Imaging"}
TILE_COUNTS = (("Siemens", 0x0019, "SIEMENS MR HEADER", 0x0A), ("United Imaging", 0x0065, "Image Private Header", 0x50))
# Whose tables lead back to the beam's intensity; programs show and measure the image without them.
ANGIOGRAPHY = ("XA", "RF")
ALLOWED = {"BitsAllocated": (1, 8, 16, 32), "PixelRepresentation": (0, 1), "SamplesPerPixel": (1, 3)}
ALLOWED["PlanarConfiguration"] = (0, 1)
# A decimal string (DS) of PS3.5; its limit of 16 characters is often passed, and harmless.
DECIMAL = r"[+-]?(\d+\.?\d*|\.\d+)([Ee][+-]?\d+)?"
EXPORT = "export it again, or save it as NIfTI"
COPY_OR_EXPORT = "copy it again from its source, or export it again"


def check_form(header: Dataset, name: str) -> None:
    """Refuse a file whose numbers are not known to be read as they are meant, as far as its header tells.

    Raises:
        DataError: An element has a value that cannot be read rightly.
        Exception: Whatever pydicom raises on broken bytes.
    """
    for judge in (_judge_kind, _judge_form):
        check_judgements(judge(header), name)


def check_judgements(judgements: Judgement, name: str) -> None:
    """Raise a DataError for the first condition that is broken."""
    for is_broken, condition in judgements:
        if is_broken:
            raise DataError(f"{name} must {condition}")


def _judge_kind(header: Dataset) -> Judgement:
    """Judge whether a file is an image, and each of its frames a slice of one volume."""
    from pydicom.datadict import keyword_for_tag

    drawn = DRAWN.get("RTDOSE" if "DoseGridScaling" in header else header.get("Modality"))
    yield drawn is not None, f"be {drawn}"
    yield from judge_numbers(header)
    yield from judge_tiles(header)
    # The vectors that number the frames, as of nuclear medicine by energy, detector, time and slice.
    keys = [keyword_for_tag(tag) for tag in list_values(header.get("FrameIncrementPointer"))]
    counted = [key for key in keys if key.endswith("Vector")]
    varied = [key for key in counted if len(set(list_values(header.get(key)))) > 1]
    yield (
        len(varied) > 1,
        f"hold the frames of one volume, not those that {' and '.join(varied)} tell apart (FrameIncrementPointer); "
        "save each volume as a file of its own",
    )
    makers = [
        f"ImageType {word} of {MOSAICS[word]}" for word in list_values(header.get("ImageType")) if word in MOSAICS
    ]
    makers += [f"mosaic of {maker}" for maker, *place in TILE_COUNTS if _count_tiles(header, *place) > 1]
    # Frames with places of their own are slices, whatever else is stated.
    is_placed = count_frames(header) > 1 and all(plane[POSITION] for plane in read_planes(header))
    yield (
        bool(makers) and not is_placed,
        f"hold a slice, not many slices side by side in one picture ({''.join(makers[:1])}); convert its series to "
        "NIfTI with dcm2niix",
    )


def judge_tiles(header: Dataset) -> Judgement:
    """Judge whether a file holds more than a part of a picture."""
    whole = [header.get(f"TotalPixelMatrix{side}") for side in ("Rows", "Columns")]
    yield (
        None not in whole and whole != [header.get("Rows"), header.get("Columns")],
        f"hold a picture or slices, not tiles of a whole slide of {whole[0]} x {whole[1]} pixels (TotalPixelMatrixRows "
        "and -Columns); save the region of interest as PNG or TIFF",
    )


def _count_tiles(header: Dataset, group: int, creator: str, element: int) -> int:
    """Return how many slices a maker's own element counts, as a number or with an item for each; 0 without it."""
    from pydicom.sequence import Sequence as Items

    with suppress(KeyError, TypeError, ValueError):
        value = header.private_block(group, creator)[element].value
        # Of a file that does not say which kind of value it is.
        return len(value) if isinstance(value, Items) else int(value.decode() if isinstance(value, bytes) else value)
    return 0


def judge_numbers(header: Dataset) -> Judgement:
    """Judge whether numbers that are stored as text are numbers."""
    for plane in read_planes(header):
        for key, count in COUNTS.items():
            texts = [str(value).strip() for value in list_values(plane[key])]
            is_decimal = all(re.fullmatch(DECIMAL, text, re.ASCII) and math.isfinite(float(text)) for text in texts)
            yield (
                not (is_decimal and len(texts) in (0, count)),
                f"have {count} decimal number(s) as {key}, not '{', '.join(texts)[:40]}'; correct it, or {EXPORT}",
            )


def _judge_form(header: Dataset) -> Judgement:
    """Judge how pixels are stored, and what leads from stored numbers to what they measure."""
    from pydicom.uid import UID

    syntax = read_syntax(header)
    yield (
        syntax not in READ,
        f"be compressed as JPEG, JPEG-LS, JPEG 2000 or RLE, or not at all, not as {UID(syntax).name}; export it "
        "without compression",
    )
    for key, allowed in ALLOWED.items():
        value = header.get(key, allowed[0])
        yield value not in allowed, f"have {key} of {_join_or(allowed)}, not {value}; {EXPORT}"
    allocated, stored, high = (header.get(key) for key in ("BitsAllocated", "BitsStored", "HighBit"))
    yield (
        not 1 <= stored <= allocated or high != stored - 1,
        f"have BitsStored of 1 to {allocated} and a HighBit one below it, not {stored} and {high}; {EXPORT}",
    )
    colours = header.get(COLOURS)
    known = ["MONOCHROME1", "MONOCHROME2", "PALETTE COLOR"]
    if header.SamplesPerPixel == 3:
        known = ["RGB"]
        if allocated == 8:
            known += ["YBR_FULL", "YBR_FULL_422"]
        if syntax in JPEG_2000:
            known += ["YBR_RCT", "YBR_ICT"]
    yield colours not in known, f"have the {COLOURS} {_join_or(known)} for its pixels, not {colours}; {EXPORT}"
    yield (
        "ModalityLUTSequence" in header and header.get("Modality") not in ANGIOGRAPHY,
        "have a rescale slope and intercept, not a table of intensities (Modality LUT), which is not read; export it "
        "with the table applied",
    )
    scales = {read_scale(plane) for plane in read_planes(header)}
    yield (
        any(slope == 0 for slope, _ in scales),
        "have a rescale slope other than 0, by which all its pixels mean the same; export it anew, or save it with its "
        "true values as NIfTI or MHA",
    )
    yield (
        is_coloured(header) and scales != {(1, 0)},
        f"have no RescaleSlope and RescaleIntercept beside colours ({colours}); export it without them, or save it as "
        "PNG",
    )


def judge_size(header: Dataset) -> Judgement:
    """Judge whether there are as many pixels as the header says, no more and no fewer."""
    frames, syntax = count_frames(header), read_syntax(header)
    size = (header.Rows, header.Columns, header.get("SamplesPerPixel", 1))
    if syntax in UNCOMPRESSED:
        bits = frames * math.prod(size) * header.BitsAllocated
        spare = math.ceil(bits / 8) // max(frames, 1)
        if header.get(COLOURS) == "YBR_FULL_422":
            # Of two pixels both brightnesses are stored, and the two colours once.
            bits = bits * 2 // 3
            spare //= 3
        needed, there = math.ceil(bits / 8), len(header.PixelData)
        # Some writers fill up to a block; as much as another frame, or as colours that are not halved, is no filling.
        yield (
            not needed <= there < needed + max(spare, 2),
            f"hold {needed} bytes of PixelData, not {there}, as its Rows and Columns ({size[0]} x {size[1]}), "
            f"SamplesPerPixel ({size[2]}), BitsAllocated ({header.BitsAllocated}) and NumberOfFrames ({frames}) say; "
            f"{COPY_OR_EXPORT}",
        )
        return
    stored = join_frames(header)
    yield (
        len(stored) != frames,
        f"hold {frames} frames, as its NumberOfFrames says, not {len(stored)}; {COPY_OR_EXPORT}",
    )
    if syntax == RLE:
        return
    for number, frame in enumerate(stored, start=1):
        where = f"in frame {number} of {frames}; {COPY_OR_EXPORT}"
        *found, bits = read_size(frame, syntax)
        yield (
            tuple(found) != size,
            f"have Rows, Columns and SamplesPerPixel {found}, as its compressed pixels say, not {[*size]} {where}",
        )
        yield (
            bits > header.BitsAllocated and syntax not in JPEG_2000,
            f"have BitsAllocated of {bits} or more, as its compressed pixels need, not {header.BitsAllocated} {where}",
        )
        # Filled up to an even length, by some writers to a block.
        yield not frame.rstrip(b"\0\xff").endswith(END), f"hold a codestream with its end {where}"


def _join_or(values: Iterable[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last
