import re
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from silofl.base.errors import ConfigError, DataError
from silofl.data.contrasts import build_source, parse_case, read_source
from silofl.data.data_profile import DataProfile
from silofl.data.drop_channels import DropChannels
from silofl.data.manifest import read_manifest
from silofl.data.preparation import build_preparation, prepare_case
from silofl.data.prepared_image import prepare_image, prepare_with_inverse
from silofl.data.transforms import build_augmentation
from tests.data.conftest import edit

RNG = np.random.default_rng(0)
T1, T2 = (RNG.integers(0, 1000, (4, 5, 3), dtype=np.int16) for _ in range(2))
LABEL = (T1 > 500).astype(np.uint8)
GRID = np.diag([1.0, 1, 2, 1])
NAMES = {"channels": 2, "channel_names": ["T1", "T2"], "intensity": "raw"}


@pytest.fixture
def volumes(empty_site):
    """Write two contrasts and the label map of each patient; a record names what a test asks for."""

    def write(images=("T1", "T2"), names=("T1", "T2"), affine=None, t2=T2, image=None, of_all=GRID):
        arrays = {"T1": T1, "T2": t2, "both": np.stack([T1, T2], axis=3)}
        for part, patient in {"training": "a", "test": "b"}.items():
            folder = empty_site.folder / patient
            folder.mkdir(exist_ok=True)
            for name, array in {**arrays, "label": LABEL}.items():
                # Two patients have no file in common.
                shift = patient == "b" and name != "label"
                grid = affine if name == "T2" and affine is not None else of_all
                nibabel.save(nibabel.Nifti1Image(array + np.int16(shift), grid), folder / f"{name}.nii.gz")
            files = [None if name is None else f"{patient}/{name}.nii.gz" for name in images]
            record = {"image": files if image is None else f"{patient}/{image}.nii.gz", "patient": patient}
            empty_site.content[part] = [record | {"label": f"{patient}/label.nii.gz"}]
        return empty_site.write(**({"channel_names": list(names)} if names else {}))

    return write


@pytest.fixture
def read(study):
    """Read the first case of a site's training under a study's data settings."""

    def run(folder, **data):
        settings = study(**NAMES | data)
        manifest = read_manifest(folder, settings)
        return read_source(manifest.source(manifest.training[0]), settings.data).array

    return run


def test_one_or_several_files_become_channels_in_the_studys_order(volumes, read):
    np.testing.assert_array_equal(read(volumes()), [T1, T2])
    np.testing.assert_array_equal(read(volumes(), channel_names=["T2", "T1"]), [T2, T1])
    np.testing.assert_array_equal(read(volumes(images=("T2", "T1"), names=("T2", "T1"))), [T1, T2])
    np.testing.assert_array_equal(read(volumes(image="both")), [T1, T2])
    np.testing.assert_array_equal(read(volumes(image="both", names=("T2", "T1"))), [T2, T1])


def test_a_missing_contrast_of_dataset_json_becomes_zeros(volumes, read, study):
    blank = np.zeros_like(T1)
    np.testing.assert_array_equal(read(volumes(images=(None, "T2"))), [blank, T2])
    assert read_manifest(volumes(images=(None, "T2")), study(**NAMES)).missing(["T1", "T2"]) == ["T1"]
    np.testing.assert_array_equal(read(volumes(image="T1", names=("T1",))), [T1, blank])
    three = {"channels": 3, "channel_names": ["FLAIR", "T2", "T1"]}
    np.testing.assert_array_equal(read(volumes(), **three), [blank, T2, T1])
    settings = study(**NAMES | three)
    assert read_manifest(volumes(), settings).missing(settings.data.channel_names) == ["FLAIR"]


def test_contrasts_on_different_grids_are_refused(volumes, read):
    moved = GRID.copy()
    moved[0, 3] = 3
    sentence = "a/T2.nii.gz lies up to 3.0 mm away from a/T1.nii.gz (by origin, spacing or axes)"
    remedy = "; resample it to a/T1.nii.gz, or train with data.resample: true"
    with pytest.raises(DataError, match=re.escape(sentence + remedy)):
        read(volumes(affine=moved))
    with pytest.raises(DataError, match=r"T2.nii.gz has the size \(8, 5, 3\), and a/T1.nii.gz \(4, 5, 3\)"):
        read(volumes(t2=np.repeat(T2, 2, axis=0)))


def test_only_contrasts_on_different_grids_are_resampled_if_asked_for(volumes, read):
    assert read(volumes(), resample=True).dtype == np.int16
    # A file of half the voxels along x, turned along y: the first grid's voxels 0 and 2 are its voxels 0 and 1.
    grid = np.diag([2.0, -1, 2, 1])
    grid[1, 3] = 4
    found = read(volumes(t2=T2[::2, ::-1], affine=grid), resample=True)
    np.testing.assert_array_equal(found[0], T1)
    np.testing.assert_allclose(found[1][::2], T2[::2], atol=1e-3)
    np.testing.assert_allclose(found[1][1], (T2[0].astype(float) + T2[2]) / 2, atol=1e-3)


def test_a_contrast_that_lies_beside_the_first_is_refused(volumes, read):
    # T1 has four voxels of 1 mm, the last centre at 3 mm; T2's first voxel begins half of one before its centre.
    grid = GRID.copy()
    for x in (3.4, -3.4):
        grid[0, 3] = x
        assert read(volumes(affine=grid), resample=True).shape == (2, 4, 5, 3)
    for x in (4.4, -4.4):
        grid[0, 3] = x
        with pytest.raises(DataError, match="a/T2.nii.gz lies outside of a/T1.nii.gz, to whose grid data.resamp"):
            read(volumes(affine=grid), resample=True)


@pytest.mark.parametrize("name", ["T1", "T2"])
@pytest.mark.parametrize("fault", ["no grid", "identity", "no unit"])
def test_a_contrast_without_a_stated_grid_is_not_resampled(volumes, read, name, fault):
    folder = volumes(affine=np.diag([1.5, 1, 2, 1]))
    image = nibabel.load(folder / "a" / f"{name}.nii.gz")
    affine = {"no grid": None, "identity": np.eye(4)}.get(fault, image.affine)
    stored = nibabel.Nifti1Image(np.asarray(image.dataobj), affine)
    if fault == "no unit":
        stored.header["xyzt_units"] = 5  # stands for none
    nibabel.save(stored, folder / "a" / f"{name}.nii.gz")
    with pytest.raises(
        DataError, match=f"a/{name}.nii.gz does not state its voxels' size in mm, how its axes lie and where"
    ):
        read(folder, resample=True)


@pytest.mark.parametrize(
    ("written", "data", "sentence"),
    [
        ({"names": ("T1", "FLAIR")}, {}, "channel_names of dataset.json must be some or all of the study's, T1"),
        ({"names": ()}, {}, "channel_names of dataset.json must be some or all of the study's, T1, T2, not none"),
        ({"names": ("T1", "T1")}, {}, "channel_names of dataset.json must be a list of different names"),
        ({"images": ("T1",) * 1}, {}, "channels in a/T1.nii.gz is 1, and that of its contrasts 2 (T1, T2)"),
        (
            {"images": ("T1", "T2", "both")},
            {},
            "case 'a/T1' lists 3 images; give one, or one for each of channel_names of dataset.json (T1, T2)",
        ),
        ({"images": ("T1", "both")}, {}, "channels in a/both.nii.gz is 2, and that of its contrasts 1 (T2)"),
        ({"image": "T1", "names": ("T1",)}, {"channel_names": [], "channels": 1}, "the study names none"),
        (
            {"names": ()},
            {"channel_names": [], "channels": 1},
            "case 'a/T1' lists 2 images; give one, or one for each of channel_names of dataset.json (none)",
        ),
        ({"image": "both", "names": ()}, {"channel_names": [], "channels": 1}, "holds 2 time points or contrasts"),
        # Without the names three contrasts would be taken for colours.
        ({"image": "both", "names": ()}, {"channel_names": [], "channels": 2}, "name 2 contrasts in"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(volumes, read, written, data, sentence):
    with pytest.raises(DataError, match=re.escape(sentence)):
        read(volumes(**written), **data)


def test_a_dropped_contrast_is_zeros_in_all_neighbours():
    # Channels of two contrasts in three slices; the draws of seed 0 are 0.549 and 0.715, so that the first one goes.
    image = torch.arange(1, 7).float().reshape(6, 1, 1).expand(6, 2, 2)
    found = DropChannels(0.6, 2).set_random_state(seed=0)({"image": image, "label": "kept"})
    assert found["image"][:, 0, 0].tolist() == [0, 2, 0, 4, 0, 6] and found["label"] == "kept"
    # Patches of a volume have two channels, however thin they are.
    for size in ((4, 5, 6), (2, 3, 2)):
        found = DropChannels(0.6, 2).set_random_state(seed=0)({"image": torch.ones(2, *size)})["image"]
        assert found.shape == (2, *size) and not found[0].any() and found[1].all()


@pytest.mark.parametrize(("name", "options"), [("RandShiftIntensity", {"offsets": [1, 2]}), ("RandGaussianNoise", {})])
@pytest.mark.parametrize("channels", [2, 6])
def test_a_missing_contrast_is_zeros_after_the_studys_augmentation(study, name, options, channels):
    augment = build_augmentation(study(**NAMES | {"augment": [{name: options | {"prob": 1.0}}]}), has_label_map=False)
    # T1 and T2 of each slice, as many of them as there are.
    image = torch.zeros(channels, 8, 8)
    image[1::2] = 1
    found = augment.set_random_state(seed=0)({"image": image.clone()})["image"]
    assert not found[0::2].any() and (found[1::2] != 1).all()


def test_a_new_case_may_lack_a_contrast_with_a_warning(volumes, study):
    folder, settings = volumes(), study(**NAMES)
    source = build_source({"T2": folder / "a" / "T2.nii.gz"}, settings.data)
    prepared = prepare_with_inverse(source, build_preparation(settings, has_label_map=False))
    assert not prepared.images[:, 0].any() and prepared.missing == ("T1",)
    warnings = prepared.image_warnings(DataProfile(), build_preparation(settings))
    assert "contrast T1 is missing; zeros stand in its place" in warnings


# 0 to 1000 becomes -1 to 1: the zeros of a contrast that is not there would be -1.
SCALED = {"transforms": [{"ScaleIntensityRange": {"a_min": 0, "a_max": 1000, "b_min": -1, "b_max": 1}}]}


@pytest.mark.parametrize(
    "data",
    [{"intensity": name} for name in ("zscore", "percentiles", "dtype", "raw")]
    + [SCALED, SCALED | {"neighbours": 1}, SCALED | {"dimensions": 3, "patches": {"size": [16, 16, 16]}}],
)
def test_a_missing_contrast_is_zeros_after_all_transforms(volumes, study, data):
    settings = study(**NAMES | data)
    folder = volumes(images=(None, "T2"))
    manifest = read_manifest(folder, settings)
    trained = prepare_case(manifest.training[0], manifest, build_preparation(settings)).images
    answered = prepare_image(build_source({"T2": folder / "a" / "T2.nii.gz"}, settings.data), settings)
    np.testing.assert_array_equal(answered, trained)
    # Of 2D images with neighbours, T1 and T2 of each slice.
    assert not trained[:, 0::2].any() and trained[:, 1::2].any()
    assert "transforms" not in data or trained[:, 1::2].min() < 0 < trained[:, 1::2].max()


def test_contrasts_of_two_patients_are_no_case(write_dicom, tmp_path, study):
    settings = study(**NAMES).data
    source = build_source({"T1": write_dicom(tmp_path / "T1", T1), "T2": write_dicom(tmp_path / "T2", T2)}, settings)
    # DICOM pads an identifier; one that is empty names nobody.
    for same in ("p1", "p1 ", ""):
        edit(tmp_path / "T2", PatientID=same)
        np.testing.assert_array_equal(read_source(source, settings).array, [T1, T2])
    edit(tmp_path / "T2", PatientID="p2")
    with pytest.raises(DataError, match="T1 and T2 are of 2 patients"):
        read_source(source, settings)


def test_a_command_names_one_file_or_one_for_each_contrast(tmp_path):
    assert parse_case("a/b.nii.gz") == Path("a/b.nii.gz")
    assert parse_case("T1=a.nii,T2=b.nii") == {"T1": Path("a.nii"), "T2": Path("b.nii")}
    odd = tmp_path / "T1=a,b.nii"
    odd.write_bytes(b"")
    assert parse_case(str(odd)) == odd
    # An empty variable of a script is not the folder that it runs in.
    for text in ("T1=a.nii,b.nii", "T1=a.nii,T1=b.nii", "", " ", "T1="):
        with pytest.raises(ConfigError, match="is neither FILE nor NAME=FILE,NAME=FILE"):
            parse_case(text)
