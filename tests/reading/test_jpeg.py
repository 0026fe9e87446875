import io

import numpy as np
import pytest
from PIL import Image

from silofl.base.errors import DataError
from silofl.reading.images import read_image, read_label
from tests.data.conftest import assert_refused

KINDS = {
    "baseline": {},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
    "both": {"progressive": True, "restart_marker_rows": 1},
    "small colours": {"subsampling": 2},
    "small colours and restarts": {"subsampling": 2, "restart_marker_rows": 1},
}
CASES = [((97, 131), True, kind) for kind in KINDS] + [((97, 131), False, "restarts"), ((16, 40), True, "baseline")]


def encode(shape, colours, **options):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3)[: 2 + colours], dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90, **options)
    return file.getvalue()


def state_rows(content, rows):
    """Return a JPEG whose header states another number of rows."""
    place = 2
    while content[place + 1] not in (0xC0, 0xC2):
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
    return content[: place + 5] + rows.to_bytes(2, "big") + content[place + 7 :]


@pytest.mark.parametrize(("shape", "colours", "kind"), CASES)
def test_a_jpeg_without_all_its_pixels_is_refused(tmp_path, shape, colours, kind):
    whole, path = encode(shape, colours, **KINDS[kind]), tmp_path / "a.jpeg"
    path.write_bytes(whole)
    with Image.open(path) as picture:
        right = np.atleast_3d(np.asarray(picture))
    np.testing.assert_array_equal(np.moveaxis(read_image(path).array, 0, 2), right)
    # A file that ends early and was closed by another program, by bytes of its last scan, has an end still.
    short = {f"{lost} bytes": whole[: -2 - lost] + b"\xff\xd9" for lost in (1, 2, 9, 65, len(whole) // 3)}
    # Blocks of 16 rows hold colours of half the size.
    short["rows"] = state_rows(whole, shape[0] + 16)
    for content in short.values():
        path.write_bytes(content)
        assert_refused("a.jpeg is truncated or corrupt", path)


def test_a_progressive_jpeg_without_its_last_scans_is_refused(tmp_path):
    whole = encode((64, 48), True, progressive=True)
    # libjpeg shows the blurred picture of the scans that are there.
    last = whole.rindex(b"\xff\xda")
    (tmp_path / "a.jpg").write_bytes(whole[:last] + b"\xff\xd9")
    assert_refused("a.jpg is truncated or corrupt .*scans are missing", tmp_path / "a.jpg")


def test_a_jpeg_with_a_thumbnail_is_whole(tmp_path):
    whole, thumbnail = encode((64, 48), False), encode((8, 8), False)
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    (tmp_path / "a.jpg").write_bytes(whole[:2] + segment + b"\xff\xff" + whole[3:] + b"a camera's notes")
    (tmp_path / "plain.jpg").write_bytes(whole)
    np.testing.assert_array_equal(read_image(tmp_path / "a.jpg").array, read_image(tmp_path / "plain.jpg").array)


@pytest.mark.parametrize("name", ["a.jpg", "a.tif"])
def test_a_label_map_in_jpeg_is_refused(tmp_path, name):
    pixels = np.zeros((16, 16), np.uint8)
    Image.fromarray(pixels).save(tmp_path / name, **({"compression": "jpeg"} if name == "a.tif" else {}))
    assert read_image(tmp_path / name).array.max() == 0
    with pytest.raises(DataError, match=f"{name} is a mask compressed as JPEG, .* as PNG"):
        read_label(tmp_path / name)
