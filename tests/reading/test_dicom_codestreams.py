import io
import struct

import numpy as np
import pytest
from PIL import Image as Picture
from pydicom.encaps import encapsulate

from silofl.reading.dicom_codestreams import CODESTREAM_STARTS, count_unpacked, join_frames, read_stated, split_segments

COLOUR = np.zeros((5, 7, 3), np.uint8)


def encode(form, **options):
    stream = io.BytesIO()
    Picture.fromarray(COLOUR).save(stream, form, **options)
    return stream.getvalue()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"comment": b"\xff\xc0" * 9}])
def test_a_jpeg_says_its_size_its_components_and_its_colours(options):
    for is_ycc in (True, False):
        form = read_stated(encode("JPEG", keep_rgb=not is_ycc, **options))
        # Pillow marks red, green and blue by the marker of Adobe, brightness and two colours by that of JFIF.
        assert form == ((5, 7), 3, 8, is_ycc, True)
    # That of a lossless one says nothing of its colours.
    lossless = encode("JPEG").replace(b"\xff\xc0", b"\xff\xc3", 1)
    assert read_stated(lossless) == ((5, 7), 3, 8, None, True)


def test_bytes_between_markers_and_behind_the_end_are_filling():
    whole = encode("JPEG")
    filled = whole[:2] + b"\xff\xff" + whole[2:]
    for content in (filled, whole + b"\0", whole + b"\xff", whole + bytes(40)):
        assert read_stated(content).has_end
    assert not read_stated(whole[:-2]).has_end and not read_stated(whole[:-2] + bytes(2)).has_end


def test_a_jpeg_2000_says_its_size_alone_or_in_a_file_of_its_own():
    for has_file in (True, False):
        assert read_stated(encode("JPEG2000", no_jp2=not has_file))[:3] == ((5, 7), 3, 8)
    # The image begins at (2, 1) of a canvas.
    size = struct.pack(">HHIIIIIIIIHB", 41, 0, 9, 6, 2, 1, 9, 6, 0, 0, 1, 0x80 | 11)
    assert read_stated(b"\xff\x4f\xff\x51" + size)[:3] == ((5, 7), 1, 12)


@pytest.mark.parametrize("content", [b"", b"\xff\xd8", b"\xff\xd8\xff\xc0", b"\xff\x4f\xff\x51\0", b"junk", bytes(99)])
def test_what_states_no_size_has_no_form(content):
    assert read_stated(content) is None


def test_frames_begin_with_their_marker_and_go_on_in_further_fragments():
    first, second = b"\xff\xd8" + bytes(10), b"\xff\xd8" + bytes(range(16))
    for has_table in (True, False):
        content = encapsulate([first, second], fragments_per_frame=2, has_bot=has_table)
        assert join_frames(content, CODESTREAM_STARTS) == ([first, second], 4)


def test_packed_bytes_are_counted_as_they_are_written():
    # Two literals, five times the same byte, nothing, and one literal more.
    assert count_unpacked(bytes([1, 10, 11, 252, 7, 128, 0, 9])) == 2 + 5 + 1
    # A run without its byte, and literals of which three of four are missing.
    assert count_unpacked(bytes([252])) == 0 and count_unpacked(bytes([3, 10])) == 1


def test_segments_lie_where_the_header_says():
    head = struct.pack("<16I", 2, 64, 67, *[0] * 13)
    assert split_segments(head + b"abcde") == [b"abc", b"de"]
    assert split_segments(head[:63]) == [] and split_segments(head) == [b"", b""]
