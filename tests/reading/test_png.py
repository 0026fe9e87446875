import struct
import zlib

import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.reading.images import read_image, read_label
from tests.data.conftest import assert_refused

# Colour type and bits -> numbers of a pixel: those of W3C's table 8 that Pillow reads with all their bits.
FORMS = {(0, bits): 1 for bits in (1, 2, 4, 8, 16)} | {(3, bits): 1 for bits in (1, 2, 4, 8)}
FORMS |= {(2, 8): 3, (4, 8): 2, (6, 8): 4}
# First row and column of each of Adam7's passes, and its steps.
ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def pack(numbers, bits):
    """Return rows of numbers (rows, columns * channels) as a PNG holds them, each behind its filter's 0."""
    rows = []
    for row in numbers:
        text = "".join(f"{number:0{bits}b}" for number in row)
        text += "0" * (-len(text) % 8)
        rows.append(b"\0" + int(text, 2).to_bytes(len(text) // 8, "big"))
    return b"".join(rows)


def write_png(path, shape, form, content, interlaced=False):
    """Write a PNG of (rows, columns) with its checksums."""
    colour, bits = form
    head = struct.pack(">IIBBBBB", shape[1], shape[0], bits, colour, 0, 0, interlaced)
    palette = [(b"PLTE", (bytes(range(256)) * 3)[: 3 * 2**bits])]
    chunks = [(b"IHDR", head), *(palette if colour == 3 else []), (b"IDAT", zlib.compress(content)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(c)) + t + c + struct.pack(">I", zlib.crc32(t + c)) for t, c in chunks]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


def draw(shape, form):
    channels, bits = FORMS[form], form[1]
    return np.random.default_rng(0).integers(0, 2**bits, (*shape, channels))


def interlace(numbers, bits):
    passes = [numbers[top::down, left::across] for top, left, down, across in ADAM7]
    return b"".join(pack(each.reshape(len(each), -1), bits) for each in passes if each.size)


# Every form in one size; smaller ones, in which some of Adam7's passes are empty, and larger ones in one form.
@pytest.mark.parametrize(
    ("shape", "form"), [((9, 7), form) for form in FORMS] + [(shape, (0, 1)) for shape in ((1, 1), (3, 5), (40, 33))]
)
@pytest.mark.parametrize("interlaced", [False, True])
def test_a_png_whose_rows_end_early_is_refused(tmp_path, form, shape, interlaced):
    numbers = draw(shape, form)
    content = interlace(numbers, form[1]) if interlaced else pack(numbers.reshape(shape[0], -1), form[1])
    path = write_png(tmp_path / "a.png", shape, form, content, interlaced)
    assert read_image(path).spatial_shape == shape
    if form[0] in (0, 3):
        # Stored numbers, of grey and of a palette.
        np.testing.assert_array_equal(read_label(path).array[0], numbers[..., 0])
    for kept in {0, len(content) // 2, len(content) - 1}:
        write_png(path, shape, form, content[:kept], interlaced)
        assert_refused(f"a.png is truncated or corrupt .*{kept} bytes of pixels where ", path)


def test_a_png_with_more_rows_than_stated_is_refused(tmp_path):
    numbers = draw((9, 7), (0, 8))
    content = pack(numbers[..., 0], 8)
    assert_refused(
        "a.png is truncated or corrupt .* of pixels where", write_png(tmp_path / "a.png", (8, 7), (0, 8), content)
    )
    path = write_png(tmp_path / "a.png", (9, 7), (0, 8), content + b"\0")
    np.testing.assert_array_equal(read_image(path).array[0], numbers[..., 0])


@pytest.mark.parametrize(("bits", "factor"), [(2, 85), (4, 17)])
def test_grey_of_fewer_bits_is_spread(tmp_path, bits, factor):
    # 3 * 85 and 15 * 17 are 255.
    numbers = np.arange(2**bits).reshape(-1, 4)
    path = write_png(tmp_path / "a.png", numbers.shape, (0, bits), pack(numbers, bits))
    np.testing.assert_array_equal(read_image(path).array[0], numbers * factor)
    np.testing.assert_array_equal(read_label(path).array[0], numbers)


@pytest.mark.parametrize("read", [read_image, read_label])
def test_grey_of_16_bits_with_transparency_is_refused(tmp_path, read):
    # Pillow reads the upper eight bits alone: of 1 and 2 both are 0.
    path = write_png(tmp_path / "a.png", (1, 2), (4, 16), pack([[1, 65535, 2, 65535]], 16))
    with pytest.raises(DataError, match="a.png has colours of 16 bits"):
        read(path)


# In the pixels, in their checksum, in that of the end; and without the end.
@pytest.mark.parametrize(("place", "fault"), [(-20, "checksum"), (-13, "checksum"), (-1, "checksum"), (None, "no end")])
def test_a_wrong_byte_and_a_missing_end_are_refused(tmp_path, place, fault):
    path = write_png(tmp_path / "a.png", (9, 7), (0, 8), pack(draw((9, 7), (0, 8))[..., 0], 8))
    content = bytearray(path.read_bytes())
    if place is None:
        del content[-12:]
    else:
        content[place] ^= 1
    path.write_bytes(content)
    assert_refused(f"a.png is truncated or corrupt .*{fault}", path)
