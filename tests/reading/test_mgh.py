import gzip
import struct

import nibabel
import numpy as np
import pytest

from silofl.errors import DataError
from silofl.reading.header import read_header
from silofl.reading.images import read_image

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


# The version, no voxels, a negative number of them, too few, and the type.
@pytest.mark.parametrize(("place", "value"), [(0, 2), (4, 0), (4, -5), (4, 50), (20, 9)])
def test_a_file_that_is_not_whole_is_refused(path, place, value):
    with pytest.raises(DataError, match=f"{path.name} must be a whole file, not a truncated or corrupt one"):
        read_image(change(write(path), place, ">i", value))


@pytest.mark.parametrize("length", [0, 100, -30])
def test_a_file_that_ends_early_is_refused(path, length):
    write(path).write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=f"{path.name} must be a whole file"):
        read_image(path)


def test_sizes_beyond_all_memory_are_refused_before_it_is_taken(path):
    with pytest.raises(DataError, match=f"{path.name} must hold at most 2 GiB once decoded"):
        read_image(change(write(path), 4, ">4i", 30000, 30000, 30000, 1))


def test_a_stream_of_much_more_than_the_voxels_is_refused(tmp_path):
    path = write(tmp_path / "a.mgz")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(1 << 22)))
    with pytest.raises(DataError, match="a.mgz must be a whole file.*much more than its voxels"):
        read_image(path)


@pytest.mark.parametrize("size", [0, np.nan, np.inf])
def test_a_grid_that_is_none_is_refused(path, size):
    # the size along x
    with pytest.raises(DataError, match=f"{path.name} must have axes of a finite size in three directions"):
        read_image(change(write(path), 30, ">f", size))
