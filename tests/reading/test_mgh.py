import gzip
import struct

import nibabel
import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.reading.header import read_header
from silofl.reading.images import read_image
from tests.data.conftest import assert_refused

# Columns run to the left, rows to the feet, slices to the front, as FreeSurfer's conformed volumes.
AFFINE = np.array([[-1.0, 0, 0, 5], [0, 0, 1.5, -6], [0, -0.8, 0, 7], [0, 0, 0, 1]])
VOLUME = np.random.default_rng(0).integers(0, 200, (5, 6, 7), dtype=np.int16)


def write(path, array=VOLUME):
    nibabel.save(nibabel.MGHImage(array, AFFINE), path)
    return path


def change(path, place, form, *values):
    """Write values into a file's header."""
    content = bytearray(gzip.decompress(path.read_bytes()) if path.suffix == ".mgz" else path.read_bytes())
    struct.pack_into(form, content, place, *values)
    path.write_bytes(gzip.compress(bytes(content)) if path.suffix == ".mgz" else bytes(content))
    return path


@pytest.fixture(params=["a.mgh", "a.mgz"])
def path(request, tmp_path):
    return tmp_path / request.param


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32])
def test_a_volume_is_what_nibabel_reads(path, dtype):
    image = read_image(write(path, VOLUME.astype(dtype)))
    np.testing.assert_array_equal(image.array[0], VOLUME)
    np.testing.assert_allclose(image.affine, nibabel.load(path).affine, atol=1e-4)
    assert image.array.dtype == dtype and not image.has_contrasts
    header = read_header(path)
    assert header.has_spacing and header.has_orientation


def test_frames_are_contrasts(path):
    frames = np.stack([VOLUME, VOLUME + 1], axis=3).astype(np.int16)
    image = read_image(write(path, frames))
    np.testing.assert_array_equal(image.array, np.moveaxis(frames, 3, 0))
    assert image.has_contrasts


def test_without_a_grid_the_slices_are_coronal_of_1_mm(path):
    # whether a grid follows
    change(write(path), 28, ">h", 0)
    # Columns to the left, rows to the feet, slices to the front; 0 lies at half of 5, 6 and 7 voxels.
    wanted = [[-1, 0, 0, 2.5], [0, 0, 1, -3.5], [0, -1, 0, 3], [0, 0, 0, 1]]
    np.testing.assert_array_equal(read_image(path).affine, wanted)
    assert not read_header(path).has_orientation


WHOLE = "be a whole file, not a truncated or corrupt one"
REFUSED = [
    # The version, no voxels, a negative number of them, too few, and the type.
    *((WHOLE, place, ">i", value) for place, value in ((0, 2), (4, 0), (4, -5), (4, 50), (20, 9))),
    ("hold at most 2 GiB once decoded", 4, ">4i", 30000, 30000, 30000, 1),
    # The size along x.
    *(("have axes of a finite size in three directions", 30, ">f", size) for size in (0, np.nan, np.inf)),
]


@pytest.mark.parametrize(("sentence", "place", "form", "values"), [(*row[:3], row[3:]) for row in REFUSED])
def test_a_header_that_cannot_be_is_refused(path, sentence, place, form, values):
    with pytest.raises(DataError, match=f"{path.name} must {sentence}"):
        read_image(change(write(path), place, form, *values))


@pytest.mark.parametrize("cut", [lambda whole: b"", lambda whole: whole[:100], lambda whole: whole[:-30]])
def test_a_file_that_ends_early_is_refused(path, cut):
    path.write_bytes(cut(write(path).read_bytes()))
    assert_refused(f"{path.name} must {WHOLE}", path)


def test_a_stream_of_much_more_than_the_voxels_is_refused(tmp_path):
    path = write(tmp_path / "a.mgz")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(1 << 22)))
    assert_refused(f"a.mgz must {WHOLE}.*much more than its voxels", path)
