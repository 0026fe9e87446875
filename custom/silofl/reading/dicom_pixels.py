"""Judge a DICOM file's pixels before GDCM decodes them: whether all are there, and whether it reads what they mean.

GDCM fills pixels that are missing with what lies in memory, and reads some forms as other numbers than the standard
defines. The modules are those of DICOM PS3.3 (Image Pixel, Modality LUT, Multi-frame Functional Groups, RT Dose,
NM Multi-frame, Whole Slide Microscopy Image), the encodings those of PS3.5 (section 8 and annexes A and G).
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
from pydicom import Dataset, uid
from pydicom.datadict import keyword_for_tag
from pydicom.sequence import Sequence

from silofl.base.errors import DataError
from silofl.reading.dicom_elements import (
    COPY_OR_EXPORT,
    EXPORT,
    JPEG,
    JPEG_2000,
    UNCOMPRESSED,
    Judgement,
    count_frames,
    is_coloured,
    list_values,
    read_colours,
    read_number,
    read_syntax,
)
from silofl.reading.dicom_lengths import judge_size
from silofl.reading.dicom_planes import DIRECTION, OFFSETS, POSITION, SCALE, SEGMENT, SPACING, UNEVEN, read_planes

PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
READ = {*UNCOMPRESSED, *JPEG, *JPEG_2000, uid.JPEGLSLossless, uid.JPEGLSNearLossless, uid.RLELossless}
# Of labels by their segments or outlines, in place of a number a pixel, and what to do about them.
DRAWN = {
    "SEG": "an image, not a DICOM segmentation; name it as the mask of its image",
    "RTSTRUCT": "an image or a label map, not a DICOM structure set; fill its outlines and save them as a DICOM "
    "segmentation or as NIfTI on the image's grid, for example with 3D Slicer (SlicerRT) or plastimatch",
}
# How a segmentation may say which pixels are of a segment -> bits of a pixel.
SEGMENTATION_BITS = {"BINARY": (1,), "FRACTIONAL": (8,), "LABELMAP": (8, 16)}
MOST_SEGMENTS = (1 << 16) - 1
# By words of ImageType, and by elements of their own that count the slices: those who tile a volume into one picture.
MOSAICS = {"MOSAIC": "Siemens", "VFRAME": "United Imaging"}
TILE_COUNTS = (("Siemens", 0x0019, "SIEMENS MR HEADER", 0x0A), ("United Imaging", 0x0065, "Image Private Header", 0x50))
# Whose tables lead back to the beam's intensity; programs show and measure the image without them.
ANGIOGRAPHY = ("XA", "RF")
# Whose numbers mean the same however they are shown, as Hounsfield units.
MEASURED = ("CT", "MR", "NM", "PT")
COLOURS = {
    1: ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR"),
    3: ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT"),
}
# Of 12 bits two pixels lie in three bytes.
ALLOCATED = (1, 8, 12, 16, 32)
# Of whose frames GDCM reads a scale that stands in their functional groups; of others it takes that of the header.
SCALED_BY_FRAME = {
    uid.EnhancedCTImageStorage,
    uid.EnhancedMRImageStorage,
    uid.EnhancedPETImageStorage,
    uid.LegacyConvertedEnhancedCTImageStorage,
    uid.LegacyConvertedEnhancedMRImageStorage,
    uid.LegacyConvertedEnhancedPETImageStorage,
    uid.XRay3DAngiographicImageStorage,
    uid.XRay3DCraniofacialImageStorage,
    uid.BreastTomosynthesisImageStorage,
    uid.BreastProjectionXRayImageStorageForPresentation,
    uid.BreastProjectionXRayImageStorageForProcessing,
}
DOSE_SCALE = "DoseGridScaling"
# How many numbers an element holds; of the offsets of a dose one a frame.
COUNTS = {SPACING: 2, POSITION: 3, DIRECTION: 6, **dict.fromkeys((*SCALE, DOSE_SCALE), 1)}
# A decimal string (DS) of PS3.5; its limit of 16 characters is often passed, and harmless.
DECIMAL = r"[+-]?(\d+\.?\d*|\.\d+)([Ee][+-]?\d+)?"


def check_pixels(header: Dataset, name: str) -> None:
    """Refuse a file whose pixels are not all there, or that GDCM reads as other numbers than it defines.

    Args:
        header: The whole file, with its pixels.

    Raises:
        DataError: An element has a value that cannot be read rightly, or pixels are missing.
        Exception: Whatever pydicom raises on broken bytes.
    """
    _check_judgements(header, name, (_judge_kind,))
    check_form(header, name)
    _check_judgements(header, name, (judge_size,))


def check_form(header: Dataset, name: str) -> None:
    """Refuse a file that GDCM reads as other numbers than it defines, as far as its header tells; as `check_pixels`."""
    form = (_judge_volume, _judge_numbers, _judge_pictures, _judge_encoding, _judge_form, _judge_colours)
    _check_judgements(header, name, (*form, _judge_scale, _judge_dose))


def check_segments(header: Dataset, name: str) -> None:
    """Refuse a segmentation whose pixels are not all there, or of which it is not known what they are; as above."""
    _check_judgements(header, name, (_judge_segmentation, _judge_numbers, _judge_frames_of_segments, judge_size))


def _check_judgements(header: Dataset, name: str, judges: Iterable[Callable[[Dataset], Judgement]]) -> None:
    for judge in judges:
        for is_broken, condition in judge(header):
            if is_broken:
                raise DataError(f"{name} must {condition}")


def _judge_kind(header: Dataset) -> Judgement:
    """Refuse a file that is no image."""
    drawn = DRAWN.get(header.get("Modality"))
    yield drawn is not None, f"be {drawn}"
    if not any(key in header for key in PIXELS):
        yield from _judge_missing(header)
        return
    yield ("PixelData" not in header, "hold whole numbers with a rescale slope, not fractions; save it as NIfTI or MHA")


def _judge_volume(header: Dataset) -> Judgement:
    """Judge whether each frame is a slice of one volume."""
    yield from _judge_tiles(header)
    # The vectors that number the frames, as of nuclear medicine by energy, detector, time and slice.
    keys = map(keyword_for_tag, list_values(header.get("FrameIncrementPointer")))
    counted = [key for key in keys if key.endswith("Vector") and key != OFFSETS]
    varied = [key for key in counted if len(set(list_values(header.get(key)))) > 1]
    yield (
        len(varied) > 1,
        f"hold the frames of one volume, not those that {' and '.join(varied)} tell apart (FrameIncrementPointer); "
        "save each volume as a file of its own",
    )


def _judge_pictures(header: Dataset) -> Judgement:
    """Judge whether pictures are slices; frames with places of their own are, whatever else is stated."""
    frames = count_frames(header)
    places = [plane[POSITION] for plane in read_planes(header)] if frames > 1 else []
    if frames == len(places) and all(places):
        return
    words = [f"ImageType {word} of {MOSAICS[word]}" for word in list_values(header.get("ImageType")) if word in MOSAICS]
    words += [f"mosaic of {maker}" for maker, *place in TILE_COUNTS if _count_tiles(header, *place) > 1]
    yield (
        bool(words),
        f"hold a slice, not many slices side by side in one picture ({''.join(words[:1])}); convert its series to "
        "NIfTI with dcm2niix",
    )


def _count_tiles(header: Dataset, group: int, creator: str, element: int) -> int:
    """Return how many slices a maker's own element counts, as a number or with an item for each; 0 without it."""
    with suppress(KeyError, TypeError, ValueError):
        value = header.private_block(group, creator)[element].value
        # Of a file that does not say which kind of value it is.
        return len(value) if isinstance(value, Sequence) else int(value.decode() if isinstance(value, bytes) else value)
    return 0


def _judge_tiles(header: Dataset) -> Judgement:
    whole = [header.get(f"TotalPixelMatrix{side}") for side in ("Rows", "Columns")]
    yield (
        None not in whole and whole != [header.get("Rows"), header.get("Columns")],
        f"hold a picture or slices, not tiles of a whole slide of {whole[0]} x {whole[1]} pixels (TotalPixelMatrixRows "
        "and -Columns); save the region of interest as PNG or TIFF",
    )


def _judge_segmentation(header: Dataset) -> Judgement:
    """Judge how a segmentation stores its pixels."""
    yield "PixelData" not in header, f"hold PixelData; {COPY_OR_EXPORT}"
    yield from _judge_tiles(header)
    kind, samples = header.get("SegmentationType"), read_number(header, "SamplesPerPixel", 1)
    yield (
        kind not in SEGMENTATION_BITS,
        f"have a SegmentationType of {_join(SEGMENTATION_BITS)}, not {str(kind)[:20]}; {EXPORT}",
    )
    bits, allocated = SEGMENTATION_BITS[kind], read_number(header, "BitsAllocated", 0)
    yield allocated not in bits, f"have BitsAllocated {_join(bits)} for {kind}, not {allocated}; {EXPORT}"
    yield samples != 1, f"have SamplesPerPixel 1, not {samples}; {EXPORT}"
    is_packed = read_syntax(header) not in UNCOMPRESSED
    yield allocated == 1 and is_packed, f"have no compression where a pixel is one bit (BitsAllocated 1); {EXPORT}"


def _judge_frames_of_segments(header: Dataset) -> Judgement:
    """Judge whether each frame says of which segment it is."""
    planes, frames = list(read_planes(header)), count_frames(header)
    yield len(planes) != frames, f"describe each of its {frames} frames, not {len(planes)}; {COPY_OR_EXPORT}"
    numbers = [plane[SEGMENT] for plane in planes if header.SegmentationType != "LABELMAP"]
    odd = next((number for number in numbers if number not in range(1, MOST_SEGMENTS + 1)), 1)
    yield (odd != 1, f"name the segment of each frame ({SEGMENT}), from 1 to {MOST_SEGMENTS}, not {odd}; {EXPORT}")


def _judge_missing(header: Dataset) -> Judgement:
    kind = uid.UID(header.get("SOPClassUID") or header.file_meta.get("MediaStorageSOPClassUID") or "").name
    is_image = "Rows" in header or "Image" in kind
    yield (
        bool(kind) and not is_image,
        f"be an image, not a DICOM file of the kind '{kind}'; name the file or folder that holds the pixels",
    )
    raise ValueError("it holds no PixelData")


def _judge_encoding(header: Dataset) -> Judgement:
    syntax = read_syntax(header)
    yield (
        syntax not in READ,
        f"be compressed as JPEG, JPEG-LS, JPEG 2000 or RLE, or not at all, not as {syntax.name}; export it without "
        "compression",
    )
    allocated = read_number(header, "BitsAllocated", 16)
    yield (
        syntax == uid.ExplicitVRBigEndian and allocated == 32,
        f"have its 32 bits a pixel in little endian, not as {syntax.name}; export it as Explicit VR Little Endian",
    )
    yield (
        syntax == uid.RLELossless and is_coloured(header) and allocated > 8,
        f"have colours of 8 bits in {syntax.name}, not BitsAllocated {allocated}; export it without compression",
    )
    yield (
        "ExtendedOffsetTable" in header,
        "have a Basic Offset Table, not an ExtendedOffsetTable, which is not read; export it without compression",
    )


def _judge_form(header: Dataset) -> Judgement:
    """Judge how the bits of a pixel are stored."""
    allocated = read_number(header, "BitsAllocated", 0)
    yield allocated not in ALLOCATED, f"have BitsAllocated of {_join(ALLOCATED)}, not {allocated}; {EXPORT}"
    stored = read_number(header, "BitsStored", allocated)
    # Others of 8 and of 32 bits GDCM refuses, or reads as of 8 bits.
    fewest = allocated if allocated in (1, 8, 32) else 1
    yield (
        not fewest <= stored <= allocated,
        f"have BitsStored of {fewest} to {allocated} for BitsAllocated {allocated}, not {stored}; {EXPORT}",
    )
    high = read_number(header, "HighBit", stored - 1)
    yield high != stored - 1, f"have a HighBit of BitsStored - 1, {stored - 1}, not {high}; {EXPORT}"
    sign = read_number(header, "PixelRepresentation", 0)
    yield sign not in (0, 1), f"have a PixelRepresentation of 0 or 1, not {sign}; {EXPORT}"
    pixels = math.prod(read_number(header, key, 1) for key in ("Rows", "Columns")) * count_frames(header)
    yield (
        allocated == 1 and pixels % 8 > 0,
        f"fill its last byte where a pixel is one bit (BitsAllocated 1), not hold {pixels} pixels; save it with 8 bits",
    )


def _judge_colours(header: Dataset) -> Judgement:
    samples, colours = read_number(header, "SamplesPerPixel", 1), read_colours(header)
    yield samples not in COLOURS, f"have SamplesPerPixel of 1 or 3, not {samples}; {EXPORT}"
    known = COLOURS[samples]
    yield (
        colours is not None and colours not in known,
        f"have the PhotometricInterpretation {_join(known)} with SamplesPerPixel {samples}, not {colours}; {EXPORT}",
    )
    plane = read_number(header, "PlanarConfiguration", 0)
    yield samples > 1 and plane not in (0, 1), f"have a PlanarConfiguration of 0 or 1, not {plane}; {EXPORT}"
    allocated, syntax = read_number(header, "BitsAllocated", 8), read_syntax(header)
    is_wavelet = colours in ("YBR_RCT", "YBR_ICT")
    yield (
        is_wavelet and syntax not in JPEG_2000,
        f"have the PhotometricInterpretation RGB or YBR_FULL without JPEG 2000, not {colours}; {EXPORT}",
    )
    yield (
        (colours or "").startswith("YBR") and not is_wavelet and allocated != 8,
        f"have BitsAllocated 8 with the PhotometricInterpretation {colours}, not {allocated}; export it as RGB",
    )
    entries = (header.get("RedPaletteColorLookupTableDescriptor") or [0])[0]
    yield (
        colours == "PALETTE COLOR" and allocated != 8 and entries <= 256,
        f"have BitsAllocated 8 with a palette of {entries} colours, not {allocated}; export it as RGB",
    )
    is_inverted = colours == "MONOCHROME1"
    yield (
        # GDCM turns the numbers themselves round, as a radiograph needs.
        is_inverted and header.get("Modality") in MEASURED,
        "be shown with its largest value white (MONOCHROME2), not black; export it so",
    )
    yield is_inverted and allocated == 1, "have 8 bits with MONOCHROME1, not BitsAllocated 1; export it again"


def _judge_numbers(header: Dataset) -> Judgement:
    """Judge whether numbers that are stored as text are numbers."""
    frames = header.get("NumberOfFrames")
    yield (
        frames is not None and not re.fullmatch(r"\d+", str(frames).strip()),
        f"have a whole number as NumberOfFrames, not {str(frames)[:20]!r}; {EXPORT}",
    )
    # Those of the header first, from which the places of a dose's planes are computed.
    for plane in chain([{key: header.get(key) for key in (*COUNTS, OFFSETS)}], read_planes(header)):
        for key in plane.keys() & {*COUNTS, OFFSETS}:
            texts = [str(value).strip() for value in list_values(plane[key])]
            count, shown = COUNTS.get(key, len(texts)), ", ".join(texts)[:40]
            is_decimal = all(re.fullmatch(DECIMAL, text, re.ASCII) and math.isfinite(float(text)) for text in texts)
            yield (
                not (is_decimal and len(texts) in (0, count)),
                f"have {count} decimal number(s) as {key}, not '{shown}'; correct it, or {EXPORT}",
            )


def _judge_scale(header: Dataset) -> Judgement:
    """Judge the way from stored numbers to what they measure."""
    yield (
        "ModalityLUTSequence" in header and header.get("Modality") not in ANGIOGRAPHY,
        "have a rescale slope and intercept, not a table of intensities (Modality LUT), which is not read; export it "
        "with the table applied",
    )
    own, scales = _read_scale(header), {_read_scale(plane) for plane in read_planes(header)}
    for slope in (own[0], *(slope for slope, _ in scales), _read_decimal(header.get(DOSE_SCALE))):
        # GDCM takes it for a slope of 1.
        yield (
            slope == 0,
            "have a rescale slope other than 0, by which all its pixels mean the same; export it anew, or save it with "
            "its true values as NIfTI or MHA",
        )
    slope, intercept = next(iter(scales))
    yield (
        is_coloured(header) and scales | {own} != {(1, 0)},
        f"have no RescaleSlope and RescaleIntercept beside colours ({read_colours(header)}), not {slope:g} and "
        f"{intercept:g}; export it without them, or save it as PNG",
    )
    for slope, intercept in scales - {(1, 0)}:
        low, high = _scaled_range(header, slope, intercept)
        yield (
            _is_narrowed(header, low, high, slope, intercept),
            f"need more than 8 bits once scaled, not only {low:g} to {high:g} (BitsStored, RescaleSlope {slope:g} and "
            f"RescaleIntercept {intercept:g}); save it with its true values as NIfTI or MHA",
        )
    yield (
        header.get("SOPClassUID") not in SCALED_BY_FRAME and scales != {own},
        "state RescaleSlope and RescaleIntercept in the header itself, not for its frames alone "
        "(PixelValueTransformationSequence); save it with its true values as NIfTI or MHA",
    )


def _scaled_range(header: Dataset, slope: float, intercept: float) -> tuple[float, float]:
    """Return the least and the largest value that may be stored, scaled."""
    stored = read_number(header, "BitsStored", read_number(header, "BitsAllocated", 16))
    is_signed = read_number(header, "PixelRepresentation", 0) == 1
    ends = (-(1 << stored) // 2, (1 << stored) // 2 - 1) if is_signed else (0, (1 << stored) - 1)
    low, high = sorted(end * slope + intercept for end in ends)
    return low, high


def _is_narrowed(header: Dataset, low: float, high: float, slope: float, intercept: float) -> bool:
    """Return whether GDCM puts scaled numbers into 8 bits that are stored in 16, or as others in 8."""
    fits_signed, fits_unsigned = low >= -128 and high <= 127, low >= 0 and high <= 255
    allocated, is_signed = header.BitsAllocated, header.get("PixelRepresentation") == 1
    is_whole = slope.is_integer() and intercept.is_integer()
    is_moved = allocated == 8 and is_signed and fits_unsigned and not fits_signed
    return is_whole and (is_moved or (allocated == 16 and (fits_signed or fits_unsigned)))


def _judge_dose(header: Dataset) -> Judgement:
    """Judge where the planes of a radiotherapy dose lie."""
    offsets, place, frames = list_values(header.get(OFFSETS)), header.get(POSITION), count_frames(header)
    if not offsets:
        return
    yield len(offsets) != frames, f"have {frames} numbers as {OFFSETS}, one a frame, not {len(offsets)}; {EXPORT}"
    yield (
        bool(place) and offsets[0] not in (0, place[2]),
        f"begin its {OFFSETS} with 0 or with the height of its first plane, not with {offsets[0]:g}; {EXPORT}",
    )
    steps = np.diff(sorted(map(float, offsets))) if frames > 1 else np.zeros(1)
    yield (
        np.ptp(steps) > UNEVEN * np.median(steps),
        f"have planes at even distances ({OFFSETS}), not {steps.min():g} to {steps.max():g} mm apart; resample it to "
        "even planes",
    )


def _read_scale(source: Mapping[str, Any] | Dataset) -> tuple[float, float]:
    slope, intercept = (source.get(key) for key in SCALE)
    return _read_decimal(slope), 0.0 if intercept is None else float(intercept)


def _read_decimal(slope: Any) -> float:  # noqa: ANN401 (any element)
    return 1.0 if slope is None else float(slope)


def _join(values: Iterable[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last
