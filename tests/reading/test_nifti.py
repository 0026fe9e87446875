import gzip
import struct

import nibabel
import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.reading.images import read_image, read_label
from tests.data.conftest import assert_refused

VOLUME = np.random.default_rng(0).integers(-900, 900, (5, 6, 7), dtype=np.int16)
AFFINE = np.array([[2.0, 0, 0, 5], [0, 3, 0, 6], [0, 0, 4, 7], [0, 0, 0, 1]])
# Where fields of NIfTI-1 begin.
OFFSET, SCALE, UNITS, QFORM, QUATERNION, MAGIC = 108, 112, 123, 252, 256, 344


def write(path, array=VOLUME, fields=(), kind=nibabel.Nifti1Image):
    """Write a file and numbers into its header: (place, struct's format, numbers)."""
    content = bytearray(kind(array, AFFINE).to_bytes())
    for place, form, *numbers in fields:
        struct.pack_into(form, content, place, *numbers)
    path.write_bytes(gzip.compress(bytes(content), mtime=0) if path.suffix == ".gz" else bytes(content))
    return path


@pytest.fixture(params=["a.nii", "a.nii.gz"])
def path(request, tmp_path):
    return tmp_path / request.param


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("order", ["<", ">"])
def test_both_versions_are_read_in_either_order_of_bytes(path, kind, order):
    header = kind.header_class(endianness=order)
    header.set_data_dtype(np.int16)
    header.set_data_shape(VOLUME.shape)
    header.set_sform(AFFINE, 1)
    header.set_slope_inter(1, 0)
    header.set_data_offset(kind.header_class.single_vox_offset)
    content = header.binaryblock + bytes(4) + VOLUME.astype(f"{order}i2").tobytes("F")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    image = read_image(path)
    np.testing.assert_array_equal(image.array, VOLUME[None])
    np.testing.assert_allclose(image.affine, AFFINE)
    assert image.dtype_max == 32767


@pytest.mark.parametrize("scale", [(-np.inf, 0), (np.nan, 5), (np.nan, np.inf), (1, np.nan), (2, np.inf)])
def test_a_scale_that_is_not_finite_is_refused(path, scale):
    _assert_scale_is_refused(path, VOLUME, scale)


def _assert_scale_is_refused(path, array, scale):
    with pytest.raises(DataError, match="has a scale of intensities that is not finite .*scl_slope .*write 1 and 0"):
        read_image(write(path, array, [(SCALE, "<2f", *scale)]))
    # As it says.
    np.testing.assert_array_equal(read_image(write(path, array, [(SCALE, "<2f", 1, 0)])).array[0], array)


@pytest.mark.parametrize("inter", [np.nan, 0])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16])
def test_whole_numbers_have_no_scale_where_it_is_no_number(path, dtype, inter):
    numbers = np.abs(VOLUME).astype(dtype)
    write(path, numbers, [(SCALE, "<2f", np.nan, inter)])
    assert read_image(path).array.dtype == dtype
    for read in (read_image, read_label):
        np.testing.assert_array_equal(read(path).array[0], numbers)


@pytest.mark.parametrize("inter", [np.nan, 0])
def test_fractions_must_have_a_scale_that_is_a_number(path, inter):
    _assert_scale_is_refused(path, VOLUME.astype(np.float32), (np.nan, inter))


@pytest.mark.parametrize("inter", [0, 5, np.nan])
def test_a_slope_of_0_is_no_scale(path, inter):
    np.testing.assert_array_equal(read_image(write(path, fields=[(SCALE, "<2f", 0, inter)])).array[0], VOLUME)


# The lowest three bits are the unit of length, the next three that of time: 8 are seconds.
@pytest.mark.parametrize(("code", "factor"), [(0, 1), (1, 1000), (2, 1), (3, 0.001), (8 + 2, 1), (8 + 3, 0.001)])
def test_lengths_are_in_millimetres_whatever_the_unit_is(path, code, factor):
    affine = read_image(write(path, fields=[(UNITS, "<B", code)])).affine
    np.testing.assert_allclose(affine[:3], AFFINE[:3] * factor)
    assert affine[3].tolist() == [0, 0, 0, 1]


def quaternion(*numbers):
    """The fields of a grid by a quaternion alone, with voxels of 2 x 3 x 4 mm."""
    return [(QFORM, "<2h", 1, 0), (QUATERNION, "<6f", *numbers, 0, 0, 0), (76, "<4f", 1, 2, 3, 4)]


def test_a_rounded_quaternion_is_of_length_1(path):
    # (0.70711, 0.70711, 0) is half a turn about the axis between x and y, which exchanges them and turns z round.
    image = read_image(write(path, fields=quaternion(0.70711, 0.70711, 0)))
    np.testing.assert_allclose(image.affine[:3, :3], [[0, 3, 0], [2, 0, 0], [0, 0, -4]], atol=1e-5)
    np.testing.assert_array_equal(image.array[0], VOLUME)


def test_a_quaternion_that_is_wrong_is_refused(path):
    with pytest.raises(DataError, match="a.nii.* is truncated or corrupt"):
        read_image(write(path, fields=quaternion(0.8, 0.8, 0.5)))


@pytest.mark.parametrize("alpha", [False, True])
def test_colours_are_channels(path, alpha):
    names = "RGBA"[: 3 + alpha]
    voxels = np.zeros((5, 6, 7), [(name, "u1") for name in names])
    for number, name in enumerate(names):
        voxels[name] = np.arange(210).reshape(5, 6, 7) + number
    image = read_image(write(path, voxels))
    assert not image.has_contrasts and image.dtype_max == 255
    np.testing.assert_array_equal(image.array, np.arange(210).reshape(5, 6, 7) + np.reshape([0, 1, 2], (3, 1, 1, 1)))
    with pytest.raises(DataError, match="holds 3 channels that differ"):
        read_label(path)


def test_colours_at_several_time_points_and_complex_numbers_are_refused(path):
    voxels = np.zeros((5, 6, 7, 2), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    with pytest.raises(DataError, match="holds 4 axes of .* one time point a file"):
        read_image(write(path, voxels))
    with pytest.raises(DataError, match="a.nii.* holds complex numbers"):
        read_image(write(path, VOLUME.astype(np.complex64)))


def test_axes_of_one_voxel_at_the_end_are_no_axes(path):
    np.testing.assert_array_equal(read_image(write(path, VOLUME.reshape(5, 6, 7, 1, 1, 1))).array, VOLUME[None])


def test_voxels_elsewhere_than_behind_the_header_are_refused(tmp_path):
    path = write(tmp_path / "a.nii", fields=[(MAGIC, "4s", b"ni1\0")])
    assert_refused("a.nii does not hold its voxels .* an .img file", path)
    path = write(tmp_path / "a.nii", fields=[(OFFSET, "<f", 0)])
    assert_refused("a.nii does not hold its voxels .*vox_offset 0, below 352", path)


@pytest.mark.parametrize("lost", [1, VOLUME.nbytes])
def test_voxels_that_are_not_there_are_never_invented(path, lost):
    content = nibabel.Nifti1Image(VOLUME, AFFINE).to_bytes()[:-lost]
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    assert_refused("a.nii.* is truncated or corrupt", path)


def test_a_scaled_volume_has_64_bits(tmp_path):
    image = read_image(write(tmp_path / "a.nii", fields=[(SCALE, "<2f", 1, -1024)]))
    assert image.array.dtype == np.float64 and image.dtype_max is None
    np.testing.assert_array_equal(image.array[0], VOLUME.astype(int) - 1024)
