import struct

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.reading.images import read_image, read_label
from tests.data.conftest import assert_refused
from tests.reading.test_jpeg import encode

RNG = np.random.default_rng(0)
DEEP = RNG.integers(1, 2**16, (64, 48), dtype=np.uint16)
PIXELS = {
    "1": RNG.integers(0, 2, (64, 48)).astype(bool),
    "u1": RNG.integers(1, 256, (64, 48), dtype=np.uint8),
    "u2": DEEP,
    "f4": DEEP.astype(np.float32),
    "rgb": RNG.integers(1, 256, (64, 48, 3), dtype=np.uint8),
}
# How long a strip must be is told from its pixels where nothing is compressed, and by each way's decoder elsewhere.
WAYS = {"tiff_lzw": "u2", "tiff_adobe_deflate": "rgb", "packbits": "1"}
FORMS = [*(("raw", kind) for kind in PIXELS), ("jpeg", "u1"), ("jpeg", "rgb"), *WAYS.items()]
ROWS_PER_STRIP, STRIP_STARTS, STRIP_BYTES, LENGTH = 278, 273, 279, 257


def write(path, kind, way, rows=64):
    """Write a picture in strips of so many rows."""
    options = {} if way == "raw" else {"compression": way}
    Image.fromarray(PIXELS[kind]).save(path, tiffinfo={ROWS_PER_STRIP: rows}, **options)


def change(path, tag, value, index=0):
    """Write another number into the table of tags of a little-endian file."""
    content = bytearray(path.read_bytes())
    table = struct.unpack_from("<I", content, 4)[0]
    for entry in range(table + 2, table + 2 + 12 * struct.unpack_from("<H", content, table)[0], 12):
        found, kind, count, start = struct.unpack_from("<HHII", content, entry)
        if found == tag:
            form, size = {3: ("<H", 2), 4: ("<I", 4)}[kind]
            place = (entry + 8 if size * count <= 4 else start) + size * index
            old = struct.unpack_from(form, content, place)[0]
            struct.pack_into(form, content, place, value(old))
    path.write_bytes(content)


SHORT = {
    "no bytes": (STRIP_BYTES, lambda old: 0),
    "half": (STRIP_BYTES, lambda old: old // 2),
    "nine bytes less": (STRIP_BYTES, lambda old: old - 9),
    "nowhere": (STRIP_STARTS, lambda old: 0),
    "behind the end": (STRIP_STARTS, lambda old: 1 << 24),
}


@pytest.mark.parametrize(("way", "kind"), FORMS)
@pytest.mark.parametrize("fault", [*SHORT, "more rows", "one strip of more rows"])
def test_a_tiff_without_all_its_pixels_is_refused(tmp_path, kind, way, fault):
    path, is_one_strip = tmp_path / "a.tif", fault == "one strip of more rows"
    write(path, kind, way, rows=64 if is_one_strip else 24)
    image = read_image(path)
    if way != "jpeg":
        np.testing.assert_array_equal(image.array, np.moveaxis(np.atleast_3d(PIXELS[kind]), 2, 0))
    if fault in SHORT:
        tag, value = SHORT[fault]
        change(path, tag, value, index=2)
    else:
        change(path, LENGTH, lambda old: 128)
        if is_one_strip:
            change(path, ROWS_PER_STRIP, lambda old: 128)
    assert_refused("a.tif is truncated or corrupt", path)


@pytest.mark.parametrize("way", ["group3", "group4", "tiff_ccitt"])
def test_a_fax_of_which_rows_may_be_missing_is_refused(tmp_path, way):
    write(tmp_path / "a.tif", "1", way)
    assert_refused("a.tif is compressed as a fax", tmp_path / "a.tif")


def build(path, tags, content, text=None):
    """Write a file whose table of tags lies behind its pixels, and its description behind that."""
    table, note = 8 + len(content), b"" if text is None else text.encode() + b"\0"
    entries = {tag: (4, 1, value) for tag, value in tags.items()}
    if text is not None:
        entries[270] = (2, len(note), table + 2 + 12 * (len(tags) + 1) + 4)
    head = struct.pack("<H", len(entries))
    head += b"".join(struct.pack("<HHII", tag, *entry) for tag, entry in sorted(entries.items())) + bytes(4)
    path.write_bytes(struct.pack("<2sHI", b"II", 42, table) + content + head + note)
    return path


def grey_tags(rows, columns, **changes):
    tags = {256: columns, 257: rows, 258: 16, 259: 1, 262: 1, 273: 8, 277: 1, 278: rows, 279: 2 * rows * columns}
    return tags | {int(tag[1:]): value for tag, value in changes.items()}


PLANES = RNG.integers(0, 60000, (3, 20, 30)).astype("<u2")
TEXTS = {
    "ImageJ": "ImageJ=1.54f\nimages=3\nslices=3\n",
    "tifffile": '{"shape": [3, 20, 30], "axes": "ZYX"}',
    "OME": '<OME><Image><Pixels ID="0" SizeX="30" SizeY="20" SizeZ="3" SizeT="1"/></Image></OME>',
}


# Each text, and without one the bytes of three planes, and the depth of SGI.
@pytest.mark.parametrize(
    ("changes", "text"),
    [*(({}, text) for text in TEXTS.values()), ({"_279": PLANES.nbytes}, None), ({"_32997": 3}, None)],
)
def test_a_stack_with_one_table_of_tags_is_refused(tmp_path, changes, text):
    path = build(tmp_path / "a.tif", grey_tags(20, 30, **changes), PLANES.tobytes(), text)
    assert_refused("a.tif holds 3 pictures", path)


@pytest.mark.parametrize("text", TEXTS)
def test_a_plane_that_tells_of_its_stack_is_read(tmp_path, text):
    path = build(tmp_path / "a.tif", grey_tags(20, 30), PLANES[0].tobytes(), TEXTS[text])
    np.testing.assert_array_equal(read_image(path).array[0], PLANES[0])


def test_planes_behind_the_one_that_the_tags_name_are_refused(tmp_path):
    # The table of tags, then three planes; the tags name the first.
    tags = grey_tags(20, 30)
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    head = struct.pack("<2sHI", b"II", 42, 8) + struct.pack("<H", len(tags))
    head += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items())) + bytes(4)
    (tmp_path / "a.tif").write_bytes(head + PLANES.tobytes())
    assert_refused("a.tif holds 3 pictures", tmp_path / "a.tif")
    (tmp_path / "a.tif").write_bytes(head + PLANES[0].tobytes() + b"notes")
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif").array[0], PLANES[0])


def test_a_strip_in_jpeg_of_too_few_rows_is_refused(tmp_path):
    content = encode((64, 48), False)
    tags = grey_tags(64, 48, _258=8, _259=7, _279=len(content))
    assert read_image(build(tmp_path / "a.tif", tags, content)).spatial_shape == (64, 48)
    with pytest.raises(DataError, match="a.tif is truncated or corrupt .* of 48 x 64 pixels .* 48 x 96"):
        read_image(build(tmp_path / "a.tif", tags | {257: 96, 278: 96}, content))


@pytest.mark.parametrize("bits", [2, 4])
def test_a_grey_tiff_keeps_its_numbers_as_a_label(tmp_path, bits):
    numbers = np.arange(2**bits, dtype=np.uint8).reshape(-1, 4)
    text = "".join(f"{number:0{bits}b}" for number in numbers.ravel())
    content = int(text, 2).to_bytes(len(text) // 8, "big")
    build(tmp_path / "a.tif", grey_tags(len(numbers), 4, _258=bits, _279=len(content)), content)
    np.testing.assert_array_equal(read_label(tmp_path / "a.tif").array[0], numbers)


def test_two_numbers_a_pixel_without_meaning_are_refused(tmp_path):
    tags = grey_tags(2, 3, _258=8, _277=2, _279=12, _338=0)
    with pytest.raises(DataError, match="a.tif holds a second number of unknown meaning"):
        read_image(build(tmp_path / "a.tif", tags, bytes(range(12))))
    found = read_image(build(tmp_path / "a.tif", tags | {338: 2}, bytes(range(12))))
    assert found.array.tolist() == [[[0, 2, 4], [6, 8, 10]]]


def test_a_label_map_without_a_known_zero_is_refused(tmp_path):
    # Pillow takes it for white, and turns the numbers round.
    tags = grey_tags(2, 3, _258=8, _279=6)
    del tags[262]
    with pytest.raises(DataError, match="a.tif stores white as 0"):
        read_label(build(tmp_path / "a.tif", tags, bytes(range(6))))
