"""Judge whether a DICOM file holds as many pixels as its header says, no more and no fewer.

pydicom's own decoders pass over a frame too many and rows of RLE too many, and what a JPEG lacks before its end.
"""

import math

from pydicom import Dataset, uid

from silofl.reading.dicom_codestreams import CODESTREAM_STARTS, count_unpacked, join_frames, read_stated, split_segments
from silofl.reading.dicom_elements import (
    COPY_OR_EXPORT,
    JPEG,
    JPEG_2000,
    UNCOMPRESSED,
    Judgement,
    count_frames,
    read_colours,
    read_number,
    read_syntax,
)


def find_stored_colours(header: Dataset) -> str | None:
    """Return the PhotometricInterpretation that compressed frames state themselves; None where it is the header's.

    Raises:
        ValueError: Its frames differ.
    """
    if read_syntax(header) not in {*JPEG, *JPEG_2000} or read_number(header, "SamplesPerPixel", 1) != 3:
        return None
    forms = map(read_stated, join_frames(header.PixelData, CODESTREAM_STARTS)[0])
    stated = {form.is_ycc for form in forms if form is not None}
    if len(stated) > 1:
        raise ValueError("its frames differ in how they store colours")
    is_ycc, colours = stated.pop(), read_colours(header) or ""
    # What JPEG 2000 has transformed itself is YBR_RCT or YBR_ICT there.
    is_stated = is_ycc is None or is_ycc == (colours in ("YBR_FULL", "YBR_FULL_422"))
    return None if is_stated else "YBR_FULL_422" if is_ycc else "RGB"


def judge_size(header: Dataset) -> Judgement:
    """Judge whether there are as many pixels as the header says, no more and no fewer."""
    if read_syntax(header) in UNCOMPRESSED:
        yield from _judge_length(header)
    else:
        yield from _judge_frames(header)


def _judge_length(header: Dataset) -> Judgement:
    frames, is_halved = count_frames(header), read_colours(header) == "YBR_FULL_422"
    sizes = [read_number(header, key, 1) for key in ("SamplesPerPixel", "Rows", "Columns", "BitsAllocated")]
    # Of two pixels both brightnesses are stored, and the two colours once.
    bits = frames * math.prod(sizes) * 2 // 3 if is_halved else frames * math.prod(sizes)
    needed, there = math.ceil(bits / 8), len(header.PixelData)
    # Some writers fill up to a block; as much as another frame, or as the colours that are not halved, is no filling.
    too_many = max(needed // max(frames, 1) // (2 if is_halved else 1), 2)
    yield (
        not needed <= there < needed + too_many,
        f"hold {needed} bytes of PixelData, not {there}, as its Rows and Columns ({sizes[1]} x {sizes[2]}), "
        f"SamplesPerPixel ({sizes[0]}), BitsAllocated ({sizes[3]}) and NumberOfFrames ({frames}) say; {COPY_OR_EXPORT}",
    )


def _judge_frames(header: Dataset) -> Judgement:
    frames, syntax = count_frames(header), read_syntax(header)
    is_rle = syntax == uid.RLELossless
    samples, allocated = read_number(header, "SamplesPerPixel", 1), read_number(header, "BitsAllocated", 8)
    segments = samples * allocated // 8
    # A frame of RLE begins with the number of its segments, and the place of the first one.
    start_of_rle = segments.to_bytes(4, "little") + (64).to_bytes(4, "little")
    starts = (start_of_rle,) if is_rle else CODESTREAM_STARTS
    stored, count = join_frames(header.PixelData, starts)
    yield (
        len(stored) != frames,
        f"hold {frames} frames, as its NumberOfFrames says, not {len(stored)}; {COPY_OR_EXPORT}",
    )
    yield (
        frames > 1 and count != frames and syntax not in JPEG,
        f"hold each of its {frames} frames in one fragment of PixelData, not all in {count}; export it without "
        "compression",
    )
    size = tuple(read_number(header, key, 0) for key in ("Rows", "Columns"))
    for number, frame in enumerate(stored, start=1):
        judge = _judge_segments(frame, segments, size) if is_rle else _judge_codestream(frame, header, size)
        for is_broken, condition in judge:
            yield is_broken, f"{condition} in frame {number} of {frames}; {COPY_OR_EXPORT}"


def _judge_segments(frame: bytes, segments: int, size: tuple[int, int]) -> Judgement:
    """Judge a frame of RLE, of which each segment is a byte of every pixel."""
    found, (rows, columns) = split_segments(frame), size
    yield len(found) != segments, f"hold {segments} segments of RLE, not {len(found)}"
    for segment in found:
        count = count_unpacked(segment)
        # A byte to make it even may count as one or two more.
        is_whole = rows * columns <= count < (rows + 1) * columns + 2
        yield not is_whole, f"hold {rows} x {columns} pixels, as its Rows and Columns say, not {count} bytes a segment"


def _judge_codestream(frame: bytes, header: Dataset, size: tuple[int, int]) -> Judgement:
    form, samples = read_stated(frame), read_number(header, "SamplesPerPixel", 1)
    allocated, is_jpeg_2000 = read_number(header, "BitsAllocated", 8), read_syntax(header) in JPEG_2000
    yield form is None, "hold a codestream that states its size"
    yield (
        form.size != size,
        f"have Rows and Columns of {form.size[0]} x {form.size[1]}, as its compressed pixels say, not {size[0]} x "
        f"{size[1]}",
    )
    yield (
        form.components != samples,
        f"have SamplesPerPixel {form.components}, as its compressed pixels say, not {samples}",
    )
    yield (
        form.bits > allocated and not is_jpeg_2000,
        f"have BitsAllocated of {form.bits} or more, as its compressed pixels need, not {allocated}",
    )
    yield not form.has_end, "hold a codestream with its end"
