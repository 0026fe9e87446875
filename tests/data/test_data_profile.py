from dataclasses import replace

import numpy as np
import pytest

from silofl.base.errors import ConfigError, DataError
from silofl.base.schema import dump_record, read_record
from silofl.data.contrasts import ImageFiles
from silofl.data.data_profile import (
    DataProfile,
    Form,
    Range,
    VoxelSizes,
    measure_data_profile,
    measure_images,
    read_form,
)
from silofl.reading.header import Header
from silofl.reading.image import Image
from tests.data.conftest import edit

VOLUME = Form("volumes", "grey", "LPS", Header("MR", True, True), modalities=("MR",))
LOSSLESS = {"compression": "LOSSLESS"}
THICK = VoxelSizes((0.5, 0.5, 2.0), (1.0, 1.0, 5.0))
MR = DataProfile(("volumes",), ("grey",), ("MR",), ("LPS",), (Range("mean", 0.2, 0.6), Range("roughness", 0.0, 0.3)))


def one_file(path):
    return ImageFiles(((path, path.name),))


def ramp(low=0.0, high=1.0, size=16):
    """Return one image (1, 1, H, W) whose rows rise evenly."""
    return np.tile(np.linspace(low, high, size, dtype=np.float32), (1, 1, size, 1))


def test_measures_are_mean_deviation_and_von_neumanns_ratio():
    # Rows of 0, 1, 0, 1: mean 1/2, variance 1/4, every step 1: 1 / (2 / 4) = 2.
    stripes = np.tile(np.float32([0, 1, 0, 1]), (1, 1, 4, 1))
    found = measure_images(np.concatenate([stripes, np.full_like(stripes, 0.25)]))
    np.testing.assert_allclose(found["mean"], [0.5, 0.25])
    np.testing.assert_allclose(found["contrast"], [0.5, 0])
    np.testing.assert_allclose(found["roughness"], [2, 0])


def test_a_range_is_four_deviations_around_the_mean():
    images = [np.full((1, 4, 4), value, np.float32) for value in (0.1, 0.2, 0.6)]
    # Mean 0.3, deviation sqrt((0.04 + 0.01 + 0.09) / 3) = 0.21602: 0.3 -+ 0.86410. None has contrast.
    (mean, contrast, roughness) = measure_data_profile([], images).intensities
    assert mean == Range("mean", -0.564, 1.16)
    assert (contrast.low, contrast.high) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6))
    assert roughness == Range("roughness", -0.01, 0.01)


def test_two_data_profiles_together_hold_the_images_of_both():
    other = DataProfile(("volumes",), (), ("CT",), ("RAS",), (Range("mean", 0.1, 0.5), Range("contrast", 0, 1)))
    both = MR | other
    assert (both.modalities, both.axes, both.colours) == (("CT", "MR"), ("LPS", "RAS"), ("grey",))
    ranges = {"mean": (0.1, 0.6), "roughness": (0.0, 0.3), "contrast": (0, 1)}
    assert {values.measure: (values.low, values.high) for values in both.intensities} == ranges
    assert MR | DataProfile() == DataProfile() | MR == MR | MR == MR


def test_a_data_profile_is_read_back_from_plain_values():
    whole = replace(MR, voxels=THICK)
    assert read_record(DataProfile, dump_record(whole), "model.json") == whole
    assert dump_record(DataProfile()) == {} and read_record(DataProfile, {}, "model.json") == DataProfile()
    # As version 0.4 wrote it.
    assert read_record(DataProfile, {"contrasts": {"T1": ["MR"]}}, "model.json") == DataProfile()


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Form("pictures", "grey"), "scan is unlike the training images: pictures, where they are volumes"),
        (Form("volumes", "colour"), "colour, where they are grey"),
        (Form("volumes", "grey", modalities=("CT", "MR")), "CT, where they are MR"),
        (Form("pictures", "colour", modalities=("XA",)), "pictures, colour, XA, where they are volumes, grey, MR"),
    ],
)
def test_only_an_image_of_a_known_other_kind_is_refused(form, reason):
    with pytest.raises(DataError, match=reason):
        MR.check(form, "scan")
    DataProfile().check(form, "scan")
    MR.check(VOLUME, "scan")
    MR.check(Form("volumes"), "scan")


def test_doubts_name_the_measure_and_the_axes():
    assert MR.image_warnings(ramp(), VOLUME, False) == MR.image_warnings(ramp(), None, False) == []
    assert MR.image_warnings(ramp(0, 0.1), VOLUME, False) == [
        "its intensities are unlike the training images': mean 0.05 after the preparation, theirs 0.2 to 0.6"
    ]
    # A mean of 0.6001, just beyond 0.6.
    assert "mean 0.6001 after" in MR.image_warnings(ramp(0.2001, 1.0001), VOLUME, False)[0]
    turned = replace(VOLUME, axes="RAS")
    assert MR.image_warnings(ramp(), turned, False) == [
        "it is unlike the training images: its axes run RAS, theirs LPS"
    ]
    assert MR.image_warnings(ramp(), turned, True) == []


def with_voxels(*sides, axes="LPS"):
    return replace(VOLUME, axes=axes, voxel_mm=sides)


@pytest.mark.parametrize(
    ("sides", "is_unlike"),
    # Half of the shortest, twice the longest, and each a little beyond.
    [((0.25, 0.25, 1.0), False), ((2.0, 2.0, 10.0), False), ((0.24, 0.5, 2.0), True), ((0.5, 0.5, 10.1), True)],
)
def test_voxels_far_from_the_training_images_are_told(sides, is_unlike):
    found = replace(MR, voxels=THICK).image_warnings(ramp(), with_voxels(*sides), False)
    theirs = "theirs 0.5 x 0.5 x 2 to 1 x 1 x 5 mm"
    size = " x ".join(f"{side:g}" for side in sides)
    assert found == [f"it is unlike the training images: its voxels measure {size} mm, {theirs}"] * is_unlike


@pytest.mark.parametrize(
    "data_profile", [DataProfile(), replace(MR, voxels=VoxelSizes((1.0, 1.0, 1.0), (900.0, 900.0, 900.0)))]
)
def test_voxels_that_no_scanner_has_are_refused_whatever_is_known(data_profile):
    data_profile.check(with_voxels(1.0, 1.0, 50.0), "scan")
    with pytest.raises(DataError, match="scan has voxels of 145 x 145 x 350 mm, .* exceed 50 mm"):
        data_profile.check(with_voxels(145.0, 145.0, 350.0), "scan")


def test_training_voxels_are_told_as_a_range_around_their_mean():
    forms = [with_voxels(0.5, 1.0, 4.0), with_voxels(0.5, 1.0, 1.0), VOLUME]
    found = measure_data_profile(forms, []).voxels
    # The logarithms of 4 and 1 have the mean of that of 2, and the deviation of that of 2: 2 / 2^2 to 2 * 2^2.
    assert found == VoxelSizes((0.5, 1.0, 0.5), (0.5, 1.0, 8.0))
    other = VoxelSizes((0.3, 1.0, 1.0), (0.3, 1.0, 9.0))
    assert found | other == VoxelSizes((0.3, 1.0, 0.5), (0.5, 1.0, 9.0))
    assert (replace(MR, voxels=found) | DataProfile()).voxels == found


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((1, 4, 4), "grey"), ((3, 4, 4), "colour"), ((4, 4, 4), "colour"), ((2, 4, 4), None), ((7, 4, 4), None)],
)
def test_colour_is_three_channels_that_differ(tmp_path, shape, wanted):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    assert read_form(one_file(tmp_path / "a.png"), Image(array, None, 255)).colour == wanted
    same = np.broadcast_to(array[:1], shape)
    assert read_form(one_file(tmp_path / "a.png"), Image(same, None, 255)).colour == (wanted and "grey")


def test_axes_are_known_only_where_the_file_states_them(write_dicom, tmp_path):
    volume = Image(np.zeros((1, 4, 4, 4)), np.diag([-1.0, -1, 2, 1]), None)
    folder = write_dicom(tmp_path / "series", np.zeros((4, 4, 4), np.int16))
    found, header = read_form(one_file(folder), volume), Header("CT", True, True, True)
    assert found == Form("volumes", "grey", "LPS", header, (1.0, 1.0, 2.0), ("CT",), LOSSLESS)
    unknown = read_form(one_file(tmp_path / "a.png"), volume)
    assert unknown.axes is None and unknown.voxel_mm is None
    window = Image(np.zeros((3, 1, 8), np.float32), None, None, is_window=True)
    assert read_form(one_file(tmp_path / "a.npz"), window) == Form("windows")


def test_labels_and_units_of_pet_are_known_of_a_site(write_dicom, tmp_path):
    label_maps = [np.array([[0, 0, 1, 255]]), np.array([[1, 2, 2, 1]])]
    found = measure_data_profile([], [], label_maps)
    assert found.labelled == 0.62 and (found | DataProfile()).labelled is None and found.bare.labelled is None
    folder = write_dicom(tmp_path / "pet", np.zeros((2, 2, 3), np.int16))
    edit(folder, Modality="PT", Units="BQML")
    form = read_form(one_file(folder), Image(np.zeros((1, 2, 2, 3)), np.eye(4), None))
    assert form.units == measure_data_profile([form], []).units == ("BQML",)
    with pytest.raises(DataError, match="is unlike the training images: BQML, where they are GML"):
        DataProfile(kinds=("volumes",), units=("GML",)).check(form, "a")
    with pytest.raises(DataError, match=r"PET of one hospital counts in BQML and GML \(DICOM's Units\); convert all"):
        measure_data_profile([form, replace(form, units=("GML",))], [])


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(ConfigError, match="labelled must be a share from 0 to 1, not"):
        DataProfile(labelled=share)
