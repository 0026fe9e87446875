import gzip
import os
import struct
import subprocess
import sys

import nibabel
import numpy as np
import pytest

from silofl.reading import packed
from silofl.reading.images import read_image
from tests.data.conftest import assert_refused

VOLUME = np.random.default_rng(0).integers(-900, 900, (5, 6, 7), dtype=np.int16)
CONTENT = nibabel.Nifti1Image(VOLUME, np.eye(4)).to_bytes()
# Where NIfTI-1 has its sizes.
SIZES = 42


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.nii.gz"


@pytest.mark.parametrize("cut", [1, 400])
@pytest.mark.parametrize("zeros", [0, 3, 1 << 16])
def test_parts_that_follow_one_another_are_one_file(path, cut, zeros):
    parts = [gzip.compress(part) for part in (CONTENT[:cut], CONTENT[cut:], b"")]
    path.write_bytes(bytes(zeros).join(parts) + bytes(zeros))
    np.testing.assert_array_equal(read_image(path).array[0], VOLUME)


@pytest.mark.parametrize("zeros", [0, 1 << 16])
def test_what_is_no_part_behind_the_voxels_is_refused(path, zeros):
    path.write_bytes(gzip.compress(CONTENT) + bytes(zeros) + b"more")
    assert_refused("a.nii.gz is truncated or corrupt", path)


@pytest.mark.parametrize("place", [-8, -4])
def test_a_wrong_checksum_or_length_is_refused(path, place):
    content = bytearray(gzip.compress(CONTENT))
    content[place] ^= 1
    path.write_bytes(content)
    assert_refused("a.nii.gz is truncated or corrupt .*(CRC check failed|Incorrect length)", path)


@pytest.mark.parametrize("lost", [1, 9, 200])
def test_a_stream_that_ends_early_is_refused(path, lost):
    path.write_bytes(gzip.compress(CONTENT)[:-lost])
    assert_refused("a.nii.gz is truncated or corrupt .*ended before the end-of-stream marker", path)


def test_a_few_bytes_behind_the_voxels_are_left_out(path):
    path.write_bytes(gzip.compress(CONTENT + bytes(1000)))
    content = b"".join(packed.unpack_nifti(path, "a").content)
    assert content == CONTENT
    np.testing.assert_array_equal(read_image(path).array[0], VOLUME)


def test_much_more_than_the_voxels_is_refused(path):
    path.write_bytes(gzip.compress(CONTENT + bytes(1 << 24)))
    sizes = []
    with pytest.raises(ValueError, match="much more than its voxels"):
        sizes.extend(map(len, packed.unpack_nifti(path, "a").content))
    assert sum(sizes) == len(CONTENT)


def test_too_many_voxels_are_refused_before_they_are_unpacked(path):
    content = bytearray(CONTENT)
    struct.pack_into("<3h", content, SIZES, 2048, 2048, 2048)
    path.write_bytes(gzip.compress(content))
    assert_refused("a.nii.gz takes 16 GiB once decoded, .* 2 GiB .*; cut it into parts", path)


# Reads headers and images of a folder, and writes by how many KiB the process has grown at its largest.
WATCHED = """
import re, sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from silofl.reading.header import read_dicom_element, read_header
from silofl.reading.image_grid import has_grid, is_turned
from silofl.reading.images import read_image, read_label
from silofl.base.errors import DataError

def read(path):
    looks = (read_header, partial(read_dicom_element, key="PatientID"), is_turned, read_image, read_label)
    for look in (*looks, lambda path: has_grid(path, (1, 1, 1), None)):
        with suppress(DataError, ValueError, EOFError):
            look(path)

def most():
    # Not that of getrusage, which begins with the parent's.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

small, large = map(Path, sys.argv[1:])
read(small)
before = most()
read(large)
print(most() - before)
"""
ATTACK = 1 << 26


def _nifti_attack(extension):
    content = bytearray(nibabel.Nifti1Image(np.ones((1, 1, 1), np.int16), np.eye(4)).to_bytes())
    struct.pack_into("<f", content, 108, 352 + extension)
    # An extension follows, of so many bytes.
    content[348:352] = bytes([1, 0, 0, 0])
    return gzip.compress(bytes(content[:352]) + struct.pack("<2i", extension, 4) + bytes(extension - 8 + 2), 1)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not say how large a process grew")
def test_what_unpacks_to_much_takes_no_memory_here(tmp_path):
    paths = [tmp_path / folder / "a.nii.gz" for folder in ("small", "large")]
    for path, size in zip(paths, (1 << 10, ATTACK), strict=True):
        path.parent.mkdir()
        path.write_bytes(_nifti_attack(size))
    assert paths[1].stat().st_size < ATTACK / 100
    command = [sys.executable, "-c", WATCHED, *map(str, paths)]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) << 10 < ATTACK / 4


def test_voxels_far_behind_their_header_are_refused(path):
    path.write_bytes(_nifti_attack(packed.MOST_BETWEEN - 1024))
    assert read_image(path).spatial_shape == (1, 1, 1)
    path.write_bytes(_nifti_attack(packed.MOST_BETWEEN + 1024))
    assert_refused("a.nii.gz has more than 16 MiB between its header and its voxels", path)
    path.write_bytes(gzip.compress(CONTENT))
    read_image(path)


@pytest.mark.parametrize("start", [b"", b"\x5c\x01", b"nothing", CONTENT[:40]])
def test_what_does_not_begin_as_nifti_is_refused(path, start):
    path.write_bytes(gzip.compress(start))
    assert_refused("a.nii.gz is truncated or corrupt", path)
