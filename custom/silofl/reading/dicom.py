"""Read DICOM images with pydicom: one file, or the folder of one series; in the decoders' process.

The modules are those of DICOM PS3.3 (Image Pixel, Modality LUT, RT Dose, NM Multi-frame, Whole Slide Microscopy Image),
the encodings those of PS3.5 (section 8 and annexes A and G). pydicom has RLE decoded by itself and all JPEG by GDCM,
which ends its process on some broken bytes.
"""

from __future__ import annotations

import math
import os
import re
import struct
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from filecmp import cmp
from itertools import chain, cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import MOST_FAULTS, DataError
from silofl.reading.access import list_files
from silofl.reading.decoded import Decoded, check_bytes
from silofl.reading.dicom_files import read_elements
from silofl.reading.dicom_planes import (
    COUNTS,
    DIRECTION,
    DOSE_SCALE,
    OFFSETS,
    PICTURES,
    POSITION,
    SEVERAL,
    Plane,
    arrange_frames,
    build_affine,
    check_measures,
    count_frames,
    is_scaled_alike,
    list_values,
    order_slices,
    read_planes,
    read_scale,
    step_between,
)
from silofl.reading.endings import DICOM_ENDINGS
from silofl.reading.patient_names import key_patient
from silofl.reading.raw_volume import LPS_TO_RAS

if TYPE_CHECKING:
    from pydicom import Dataset

# Whether a condition is broken, and what the file must do, for the sentence "NAME must ...".
Judgement = Iterator[tuple[bool, str]]
COLOURS = "PhotometricInterpretation"
DEFLATED, RLE, LOSSLESS_JPEG = "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.57"
UNCOMPRESSED = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", DEFLATED, "1.2.840.10008.1.2.2")
# By its eight-bit and twelve-bit processes, and its lossless ones; those that were withdrawn too.
LOSSY_JPEG = tuple(f"1.2.840.10008.1.2.4.{process}" for process in (50, 51, 52, 53, 55))
JPEG = (*LOSSY_JPEG, LOSSLESS_JPEG, "1.2.840.10008.1.2.4.70")
JPEG_LS = ("1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81")
JPEG_2000 = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
READ = (*UNCOMPRESSED, *JPEG, *JPEG_LS, *JPEG_2000, RLE)
# ITU-T T.81 and T.800: how codestreams begin, and with what they end.
JPEG_START, JPEG_2000_START, JP2_START = b"\xff\xd8", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  "
END = b"\xff\xd9"
# The groups of elements with which a file without a preamble begins.
BARE_STARTS = (b"\x02\0", b"\x08\0", b"\0\x08")
# The segments of JPEG that say what colours it holds, and the one of JPEG 2000 that says how it was coded.
JFIF, ADOBE, CODING = b"\xff\xe0", b"\xff\xee", b"\xff\x52"
# libjpeg's words, on the error output alone, where it makes up what a frame does not hold.
MADE_UP = b"premature end of data segment"
# Of labels by their segments or outlines, in place of a number a pixel, and what to do about them.
DRAWN = {
    "SEG": "an image, not a DICOM segmentation; name it as the mask of its image",
    "RTSTRUCT": "an image or a label map, not a DICOM structure set; fill its outlines and save them as a DICOM "
    "segmentation or as NIfTI on the image's grid, for example with 3D Slicer (SlicerRT) or plastimatch",
}
# By words of ImageType, and by elements of their own that count the slices: those who tile a volume into one picture.
MOSAICS = {"MOSAIC": "Siemens", "VFRAME": "United Imaging"}
TILE_COUNTS = (("Siemens", 0x0019, "SIEMENS MR HEADER", 0x0A), ("United Imaging", 0x0065, "Image Private Header", 0x50))
# Whose tables lead back to the beam's intensity; programs show and measure the image without them.
ANGIOGRAPHY = ("XA", "RF")
# Whose numbers mean the same however they are shown, as Hounsfield units.
MEASURED = ("CT", "MR", "NM", "PT")
ALLOWED = {"BitsAllocated": (1, 8, 16, 32), "PixelRepresentation": (0, 1), "SamplesPerPixel": (1, 3)}
ALLOWED["PlanarConfiguration"] = (0, 1)
# A decimal string (DS) of PS3.5; its limit of 16 characters is often passed, and harmless.
DECIMAL = r"[+-]?(\d+\.?\d*|\.\d+)([Ee][+-]?\d+)?"
# What scaled whole numbers are stored in: the first that holds all.
WHOLE = tuple(np.iinfo(kind) for kind in ("u1", "u2", "u4", "i1", "i2", "i4", "i8"))
EXPORT = "export it again, or save it as NIfTI"
COPY_OR_EXPORT = "copy it again from its source, or export it again"


def read_dicom_file(path: Path, name: str) -> Decoded:
    """Read one file as a volume, its frames in the order of `order_frames`.

    Raises:
        DataError: Pixels are missing, or it holds what is no one volume, more than is supported, or of no known form.
        Exception: Whatever pydicom raises on broken bytes.
    """
    header = _read_checked(path, name)
    order, planes, step = arrange_frames([*read_planes(header)], count_frames(header), name)
    is_alike = is_scaled_alike(planes)
    stored = _decode(header, name, 1, is_alike)
    if len(order) == len(stored):
        stored = stored[order]
    return _finish(_scale(stored, header, planes, is_alike), header, planes, step)


def read_dicom_series(path: Path, name: str) -> Decoded:
    """Read the folder of a series as a volume, its slices in the order of their places; errors as `read_dicom_file`.

    Raises:
        DataError: It holds several series or none, a file that cannot be read, or slices that are no one volume; or a
            folder in it holds files of the series.
    """
    files = _list_series(path, name)
    if len(files) == 1:
        return read_dicom_file(files[0], name)
    headers = [_read_checked(file, f"{file.name} of {name}") for file in files]
    _check_slices(files, headers, name)
    planes = [plane for header in headers for plane in read_planes(header)]
    if not any(plane[POSITION] for plane in planes):
        raise DataError(f"{name} must {PICTURES.format(len(files))}")
    if all(plane[POSITION] and plane[DIRECTION] for plane in planes):
        order = order_slices(planes)
        files = [files[place] for place in order]
        headers = [headers[place] for place in order]
        planes = [planes[place] for place in order]
    step = step_between(planes, name, [file.name for file in files])
    is_alike = is_scaled_alike(planes)
    if is_alike:
        check_measures(planes, name)
    slices = []
    for header, plane in zip(headers, planes, strict=True):
        stored = _decode(header, name, len(files), is_alike)
        del header.PixelData
        slices.append(_scale(stored, header, [plane], is_alike))
    return _finish(np.concatenate(slices), headers[0], planes, step)


def _list_series(path: Path, name: str) -> list[Path]:
    """Return the images of the only series in a folder."""
    series: dict[str, list[Path]] = {}
    others = []
    # Those that begin with a dot are the notes of a file system.
    for file in [file for file in list_files(path) if not file.name.startswith(".")]:
        header = _read_header(file)
        if header is None or "Rows" not in header:
            others.append(file)
        else:
            series.setdefault(str(header.get("SeriesInstanceUID")), []).append(file)
    if not series:
        for file in others:
            if _read_header(file) is not None:
                _read_checked(file, file.name)
        has_folders = any(member.is_dir() for member in path.iterdir())
        there = "folder in it that does, or an image's own file"
        remedy = there if has_folders else "image's own file, or another folder"
        raise DataError(
            f"{name} must be a folder that holds the files of one DICOM series itself; it does not: name the {remedy}"
        )
    if len(series) > 1:
        held = ", ".join(f"{len(files)} files as {files[0].name}" for files in series.values())
        raise DataError(
            f"{name} must be a folder with one DICOM series, not {len(series)}: {held}; give each series a folder"
        )
    [(uid, files)] = series.items()
    kind = str(_read_header(files[0]).get("SOPClassUID", ""))
    for file in others:
        # Of the last slice nothing else would tell that it is missing.
        if _is_cut(file, kind):
            raise DataError(f"{name} must hold whole DICOM files; {file.name} cannot be read: export the series again")
    for folder in sorted(member for member in path.iterdir() if member.is_dir()):
        inner = (_read_header(file) for file in folder.rglob("*") if file.is_file())
        if any(header is not None and str(header.get("SeriesInstanceUID")) == uid for header in inner):
            raise DataError(
                f"{name} must hold all files of its DICOM series itself, not some in {folder.name}; put them together, "
                "or move the folder away"
            )
    return files


def _read_header(file: Path) -> Dataset | None:
    """Return what a file states before its pixels; None of what is no DICOM."""
    try:
        with file.open("rb") as stream:
            is_bare = stream.read(2) in BARE_STARTS
        return read_elements(file, force=is_bare)
    except Exception:  # pydicom raises whatever its parsers raise on what is no DICOM
        return None


def _is_cut(file: Path, kind: str) -> bool:
    """Return whether a file without rows of pixels is what is left of a slice of the series' class."""
    header = _read_header(file)
    if header is None:
        return file.suffix.lower() in DICOM_ENDINGS
    # It may end within the name of its class.
    return kind.startswith(str(header.file_meta.get("MediaStorageSOPClassUID") or ""))


def _check_slices(files: Sequence[Path], headers: Sequence[Dataset], name: str) -> None:
    """Refuse files that are no slices of one volume."""
    patients = {key_patient(str(header.PatientID)) for header in headers if "PatientID" in header}
    if len(patients) > 1:
        raise DataError(f"{name} must be of one patient, not of {len(patients)}; export the series again")
    if any(count_frames(header) > 1 for header in headers):
        raise DataError(f"{name} must {SEVERAL.format(len(files))}")
    if len({(_is_coloured(header), header.BitsAllocated == 1, header.get(DOSE_SCALE)) for header in headers}) > 1:
        raise DataError(
            f"{name} must hold slices of one kind: of intensities or of colours, of bits or of numbers, and with one "
            f"{DOSE_SCALE}; leave out what is no slice of the volume"
        )
    firsts: dict[str, Path] = {}
    copies = []
    # A second download leaves copies, whose names are the longer ones, as 2 (1).dcm.
    for file, header in sorted(zip(files, headers, strict=True), key=lambda pair: (len(pair[0].name), pair[0].name)):
        first = firsts.setdefault(str(header.get("SOPInstanceUID")), file)
        if file != first and cmp(file, first, shallow=False):
            copies.append(file.name)
    if copies:
        shown = ", ".join(copies[:MOST_FAULTS])
        if len(copies) > MOST_FAULTS:
            shown += f" and {len(copies) - MOST_FAULTS} more"
        raise DataError(f"{name} must hold each file once, not copies of others; remove {shown}")


def _read_checked(path: Path, name: str) -> Dataset:
    """Return a whole file whose pixels are all there, and of a form that is read as it is meant."""
    import pydicom

    header = pydicom.dcmread(path, force=True)
    if header.get("Modality") not in DRAWN and "PixelData" not in header:
        _refuse_pixels(header, name)
    # Where it says nothing, a pixel is one number.
    header.setdefault("SamplesPerPixel", 1)
    if header.SamplesPerPixel == 1 and not header.get(COLOURS):
        header.PhotometricInterpretation = "MONOCHROME2"
    check_form(header, name)
    check_judgements(judge_size(header), name)
    return header


def _refuse_pixels(header: Dataset, name: str) -> None:
    from pydicom.uid import UID

    if "FloatPixelData" in header or "DoubleFloatPixelData" in header:
        raise DataError(f"{name} must hold whole numbers with a rescale slope, not fractions; save it as NIfTI or MHA")
    kind = UID(header.get("SOPClassUID") or header.file_meta.get("MediaStorageSOPClassUID") or "").name
    if kind and "Rows" not in header and "Image" not in kind:
        raise DataError(
            f"{name} must be an image, not a DICOM file of the kind '{kind}'; name the file or folder that holds the "
            "pixels"
        )
    raise ValueError("it holds no PixelData")


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

    drawn = DRAWN.get(header.get("Modality"))
    yield drawn is not None, f"be {drawn}"
    yield from judge_numbers(header)
    yield from judge_tiles(header)
    # The vectors that number the frames, as of nuclear medicine by energy, detector, time and slice.
    keys = [keyword_for_tag(tag) for tag in list_values(header.get("FrameIncrementPointer"))]
    counted = [key for key in keys if key.endswith("Vector") and key != OFFSETS]
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
    # Those of the header first, from which the places of a dose's planes are computed.
    for plane in chain([{key: header.get(key) for key in (*COUNTS, OFFSETS)}], read_planes(header)):
        for key in plane.keys() & {*COUNTS, OFFSETS}:
            texts = [str(value).strip() for value in list_values(plane[key])]
            count = COUNTS.get(key, len(texts))
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
    yield not 1 <= stored <= allocated, f"have BitsStored of 1 to {allocated}, not {stored}; {EXPORT}"
    yield high != stored - 1, f"have a HighBit of BitsStored - 1, {stored - 1}, not {high}; {EXPORT}"
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
        any(slope == 0 for slope, _ in scales) or header.get(DOSE_SCALE) == 0,
        "have a rescale slope other than 0, by which all its pixels mean the same; export it anew, or save it with its "
        "true values as NIfTI or MHA",
    )
    yield (
        _is_coloured(header) and scales != {(1, 0)},
        f"have no RescaleSlope and RescaleIntercept beside colours ({colours}); export it without them, or save it as "
        "PNG",
    )
    offsets, place = list_values(header.get(OFFSETS)), header.get(POSITION)
    yield (
        bool(offsets) and bool(place) and offsets[0] not in (0, place[2]),
        f"begin its {OFFSETS} with 0 or with the height of its first plane, not with {offsets[:1]}; {EXPORT}",
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
    stored = _join_frames(header)
    yield (
        len(stored) != frames,
        f"hold {frames} frames, as its NumberOfFrames says, not {len(stored)}; {COPY_OR_EXPORT}",
    )
    if syntax == RLE:
        return
    for number, frame in enumerate(stored, start=1):
        where = f"in frame {number} of {frames}; {COPY_OR_EXPORT}"
        *found, bits = _read_size(frame, syntax)
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


def _join_frames(header: Dataset) -> list[bytes]:
    """Return the compressed frames, each of which begins as its form does, and goes on in the fragments behind."""
    from pydicom.encaps import generate_fragments, parse_basic_offsets
    from pydicom.filebase import DicomBytesIO

    starts: tuple[bytes, ...] = (JPEG_START, JPEG_2000_START, JP2_START)
    if read_syntax(header) == RLE:
        segments = header.get("SamplesPerPixel", 1) * header.BitsAllocated // 8
        # The number of segments, and the place of the first one.
        starts = (segments.to_bytes(4, "little") + (64).to_bytes(4, "little"),)
    buffer = DicomBytesIO(header.PixelData)
    buffer.is_little_endian = True
    parse_basic_offsets(buffer)
    frames: list[list[bytes]] = []
    for fragment in generate_fragments(buffer):
        if not frames or fragment.startswith(starts):
            frames.append([])
        frames[-1].append(fragment)
    return [b"".join(fragments) for fragments in frames]


def _read_size(frame: bytes, syntax: str) -> tuple[int, int, int, int]:
    """Return the rows, columns, components and bits of a number that a codestream says it has."""
    from pydicom.pixels.utils import _get_jpg_parameters

    if syntax in JPEG_2000:
        start = frame.index(JPEG_2000_START) + len(JPEG_2000_START)
        right, bottom, left, top = struct.unpack_from(">4I", frame, start + 4)
        components, bits = struct.unpack_from(">HB", frame, start + 36)
        return bottom - top, right - left, components, (bits & 0x7F) + 1
    form = _get_jpg_parameters(frame)
    if "precision" not in form:
        raise ValueError("a codestream does not state its size")
    return form["height"], form["width"], form["components"], form["precision"]


def _states_ycc(frame: bytes, syntax: str) -> bool | None:
    """Return whether a codestream says that it holds brightness and two colours, or others; None where it does not."""
    from pydicom.pixels.utils import _get_jpg_parameters

    if syntax in JPEG_2000:
        place = frame.find(CODING)
        # What was made of red, green and blue is given back so.
        return False if frame[place + 8 : place + 9] == b"\1" else None
    if syntax not in LOSSY_JPEG:
        # Writers of lossless JPEG put the markers of colours there unasked.
        return None
    form = _get_jpg_parameters(frame)
    adobe = form.get("app", {}).get(ADOBE, b"")
    if adobe.startswith(b"Adobe") and len(adobe) >= 12:
        return bool(adobe[11] == 1)
    if form.get("app", {}).get(JFIF, b"").startswith(b"JFIF"):
        return True
    return False if bytes(form["component_ids"]) == b"RGB" else None


def _decode(header: Dataset, name: str, count: int, is_alike: bool) -> NDArray:
    """Return the stored numbers of a file, (frames, rows, columns, samples); colours as red, green and blue.

    Args:
        count: How many files as this one are read.
        is_alike: Whether all are scaled alike.
    """
    from pydicom.encaps import encapsulate
    from pydicom.pixels import apply_color_lut, convert_color_space, get_decoder
    from pydicom.uid import UID

    size = (count_frames(header), header.Rows, header.Columns)
    itemsize = _find_type(header, is_alike).itemsize
    check_bytes(name, (*size, 3 if _is_coloured(header) else 1, count), itemsize)
    syntax, plugin = UID(read_syntax(header)), ""
    if syntax not in UNCOMPRESSED:
        frames = _join_frames(header)
        _correct_colours(header, {_states_ycc(frame, syntax) for frame in frames})
        if syntax in JPEG_2000:
            # Which stores what it says itself, whatever the header says.
            header.BitsStored = max(header.BitsStored, *(_read_size(frame, syntax)[3] for frame in frames))
        header.PixelData = encapsulate(frames)
        for key in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths"):
            header.pop(key, None)
        plugin = "pydicom" if syntax == RLE else "gdcm"
    if syntax in JPEG:
        # A codestream says itself by which process it was made; pydicom lets GDCM read some only by this name.
        syntax = UID(LOSSLESS_JPEG)
    header.file_meta.TransferSyntaxUID = syntax
    with _refuse_made_up(name, header.Columns):
        pixels = get_decoder(syntax).as_array(header, raw=True, decoding_plugin=plugin)[0]
    pixels = pixels.reshape(*size, header.SamplesPerPixel)
    if header.PhotometricInterpretation in ("YBR_FULL", "YBR_FULL_422"):
        return convert_color_space(pixels, "YBR_FULL", "RGB", per_frame=True)
    if header.PhotometricInterpretation == "PALETTE COLOR":
        colours = apply_color_lut(pixels[..., 0], header)
        # Colours of 16 bits come with the upper 8 where their numbers have no more.
        return (colours >> 8).astype(np.uint8) if colours.itemsize > pixels.itemsize else colours
    if header.PhotometricInterpretation == "MONOCHROME1" and header.get("Modality") not in MEASURED:
        # Turned round, as a radiograph needs.
        highest = -1 if pixels.dtype.kind == "i" else (1 << header.BitsStored) - 1
        return highest - pixels
    return pixels


def _correct_colours(header: Dataset, stated: set[bool | None]) -> None:
    """Let a header say of colours what its codestreams say themselves."""
    if header.SamplesPerPixel == 1:
        return
    if len(stated) > 1:
        raise ValueError("its frames differ in how they store colours")
    if stated == {True} and header.PhotometricInterpretation != "YBR_FULL":
        header.PhotometricInterpretation = "YBR_FULL_422"
    if stated == {False}:
        header.PhotometricInterpretation = "RGB"


@contextmanager
def _refuse_made_up(name: str, columns: int) -> Iterator[None]:
    """Refuse what a decoder makes up, or passes over, and tells on the error output or in a warning alone."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        is_made_up = MADE_UP in said.read()
    for warning in found:
        lengths = re.search(r"RLE segment .* (\d+) vs\. (\d+) bytes", str(warning.message))
        # A byte to make it even may count as one or two more.
        if lengths and int(lengths[1]) >= int(lengths[2]) + columns + 2:
            raise DataError(f"{name} must hold {lengths[2]} bytes a segment, not {lengths[1]}; {COPY_OR_EXPORT}")
    if is_made_up:
        raise DataError(f"{name} must hold all of its compressed pixels, not a part; copy it again from its source")


def _find_type(header: Dataset, is_alike: bool) -> np.dtype:
    """Return the type of a file's scaled numbers."""
    [(slope, intercept), *_] = (read_scale(plane) for plane in read_planes(header))
    if not is_alike:
        # One slope's whole numbers are not another one's.
        return np.dtype(np.float32)
    if DOSE_SCALE in header or not (slope.is_integer() and intercept.is_integer()):
        return np.dtype(np.float64)
    lowest, highest = 0, (1 << header.BitsStored) - 1
    if header.get("PixelRepresentation") == 1:
        lowest, highest = -(1 << header.BitsStored - 1), (1 << header.BitsStored - 1) - 1
    ends = sorted((lowest * slope + intercept, highest * slope + intercept))
    for kind in WHOLE:
        if kind.min <= ends[0] and ends[1] <= kind.max:
            return kind.dtype
    return np.dtype(np.float64)


def _scale(stored: NDArray, header: Dataset, planes: Sequence[Plane], is_alike: bool) -> NDArray:
    """Return what stored numbers measure, by the scale of each plane, or of a dose."""
    dose = header.get(DOSE_SCALE)
    scales = [(float(dose), 0.0)] if dose is not None else [read_scale(plane) for plane in planes]
    if is_alike and scales[0] == (1, 0):
        return stored
    scaled = np.empty(stored.shape, _find_type(header, is_alike))
    for frame, target, (slope, intercept) in zip(stored, scaled, cycle(scales), strict=False):
        target[...] = frame * slope + intercept
    return scaled


def _finish(array: NDArray, header: Dataset, planes: Sequence[Plane], step: NDArray[np.float64] | None) -> Decoded:
    affine = LPS_TO_RAS @ build_affine(header, planes, step)
    # z, y, x, channel, as a volume of any other format: sums depend on the order in memory.
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return Decoded(array.transpose(3, 2, 1, 0), affine, is_binary=header.BitsAllocated == 1)


def _is_coloured(header: Dataset) -> bool:
    return bool(header.SamplesPerPixel == 3 or header.PhotometricInterpretation == "PALETTE COLOR")


def read_syntax(header: Dataset) -> str:
    """Return the transfer syntax; without one, as in old archives, that of the default."""
    return str(header.file_meta.get("TransferSyntaxUID") or UNCOMPRESSED[0])


def _join_or(values: Iterable[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last
