import gzip
import struct

import nibabel
import numpy as np
import pytest

from silofl.data import packed
from silofl.data.images import read_image
from silofl.errors import DataError

VOLUME = np.random.default_rng(0).integers(-900, 900, (5, 6, 7), dtype=np.int16)
CONTENT = nibabel.Nifti1Image(VOLUME, np.eye(4)).to_bytes()
# Where NIfTI-1 has its sizes.
SIZES = 42


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.nii.gz"


@pytest.mark.parametrize("cut", [1, 400])
@pytest.mark.parametrize("zeros", [0, 3, packed.PIECE])
def test_parts_that_follow_one_another_are_one_file(path, cut, zeros):
    parts = [gzip.compress(part) for part in (CONTENT[:cut], CONTENT[cut:], b"")]
    path.write_bytes(bytes(zeros).join(parts) + bytes(zeros))
    np.testing.assert_array_equal(read_image(path).array[0], VOLUME)


@pytest.mark.parametrize("zeros", [0, packed.PIECE])
def test_what_is_no_part_behind_the_voxels_is_refused(path, zeros):
    path.write_bytes(gzip.compress(CONTENT) + bytes(zeros) + b"more")
    with pytest.raises(DataError, match="a.nii.gz must be a whole file"):
        read_image(path)


@pytest.mark.parametrize("place", [-8, -4])
def test_a_wrong_checksum_or_length_is_refused(path, place):
    content = bytearray(gzip.compress(CONTENT))
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="a.nii.gz must be a whole file, .*incorrect"):
        read_image(path)


@pytest.mark.parametrize("lost", [1, 9, 200])
def test_a_stream_that_ends_early_is_refused(path, lost):
    path.write_bytes(gzip.compress(CONTENT)[:-lost])
    with pytest.raises(DataError, match="a.nii.gz must be a whole file, .*ends early"):
        read_image(path)


def test_a_few_bytes_behind_the_voxels_are_left_out(path):
    path.write_bytes(gzip.compress(CONTENT + bytes(1000)))
    content = b"".join(packed.unpack_nifti(path, "a").content)
    assert content == CONTENT
    np.testing.assert_array_equal(read_image(path).array[0], VOLUME)


def test_much_more_than_the_voxels_is_refused_before_all_is_unpacked(path):
    path.write_bytes(gzip.compress(CONTENT + bytes(1 << 24)))
    sizes = []
    with pytest.raises(ValueError, match="much more than its voxels"):
        sizes.extend(map(len, packed.unpack_nifti(path, "a").content))
    assert sum(sizes) == len(CONTENT)


def test_more_voxels_than_are_supported_are_refused_before_they_are_unpacked(path):
    content = bytearray(CONTENT)
    struct.pack_into("<3h", content, SIZES, 2048, 2048, 2048)
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match="a.nii.gz must hold at most 2 GiB once decoded, not 16 GiB; cut it into parts"):
        read_image(path)


@pytest.mark.parametrize("start", [b"", b"\x5c\x01", b"nothing", CONTENT[:40]])
def test_what_does_not_begin_as_nifti_is_refused(path, start):
    path.write_bytes(gzip.compress(start))
    with pytest.raises(DataError, match="a.nii.gz must be a whole file"):
        read_image(path)
