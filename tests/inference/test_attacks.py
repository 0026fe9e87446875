"""Inputs and weights that must not be answered as if they were a patient of the study."""

from dataclasses import replace

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from PIL import Image

from silofl.base.errors import ConfigError, DataError
from silofl.data.data_profile import DataProfile
from silofl.inference import SuperModel
from silofl.inference.directory import write_model_folder
from silofl_desk.inference.export import export_bundle

CPU = torch.device("cpu")
RESIZE = {"transforms": [{"Resize": {"spatial_size": [32, 32]}}]}
SCANS = DataProfile(kinds=("volumes",), colours=("grey",), modalities=("MR",), axes=("LPS",))


@pytest.fixture
def make(make_contents, make_study):
    """Build a super model that learnt from images of a domain."""

    def build(data_profile=SCANS, rule="only", task="segmentation", **options):
        contents = make_contents(rule, study=make_study(task, data=RESIZE), **options)
        return SuperModel(replace(contents, data_profile=data_profile), CPU)

    return build


def spoilt(contents, value, key="weight"):
    """Return contents with one number of one array replaced."""
    state = {name: array.clone() for name, array in contents.models["global"].items()}
    name = next(name for name in state if name.endswith(key))
    state[name].view(-1)[0] = value
    return replace(contents, models={"global": state})


def edited(folder, **values):
    """Change elements of all files of a DICOM folder; None removes one."""
    for path in folder.iterdir():
        data = pydicom.dcmread(path)
        for name, value in values.items():
            delattr(data, name) if value is None else setattr(data, name, value)
        data.save_as(path)
    return folder


def smooth_volume(shape=(32, 32, 6)):
    """Return a volume of broad bumps, brighter towards one side."""
    x, y, z = np.meshgrid(*[np.linspace(0, 3, size) for size in shape], indexing="ij")
    return ((np.sin(x) * np.cos(y) + 1 + 0.1 * z) * 300).astype(np.int16)


# --- weights


@pytest.mark.parametrize(
    ("value", "key"),
    [(np.nan, "weight"), (np.inf, "weight"), (-1e7, "weight"), (np.nan, "running_var"), (1e30, "running_var")],
)
def test_weights_that_no_training_ends_with_are_refused(tmp_path, make_contents, value, key):
    write_model_folder(tmp_path / "supermodel", spoilt(make_contents("only"), value, key))
    with pytest.raises(ConfigError, match="of the weights of 'global' has NaN, infinity or numbers above 1e.(06|15)"):
        SuperModel.load(tmp_path / "supermodel", "cpu")
    with pytest.raises(ConfigError, match="the weights of 'global' has NaN"):
        export_bundle(tmp_path / "supermodel", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_weights_whose_answer_overflows_are_refused_with_the_image(make, write_volume):
    model = make()
    with torch.no_grad():
        for value in model.network("global").parameters():
            value.fill_(1e30)
    with pytest.raises(DataError, match="the model 'global' answered with NaN"):
        model.predict(write_volume())


# --- the grid


@pytest.fixture
def make_ct(make):
    """A super model that learnt from CT, as `write_dicom` writes."""
    return make(replace(SCANS, modalities=("CT",)))


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"PixelSpacing": None}, 6),
        ({"PixelSpacing": [0, 0]}, 6),
        # Of a single slice SimpleITK says 1 mm, whatever SliceThickness is.
        ({}, 1),
    ],
)
def test_dicom_without_the_size_of_its_voxels_gets_no_millilitres(make_ct, write_dicom, tmp_path, change, count):
    folder = edited(write_dicom(tmp_path / "series", smooth_volume((32, 32, count))), **change)
    prediction = make_ct.predict(folder)
    assert prediction.volumes_ml is None and prediction.label_map.any()
    assert any("no millilitres are given" in warning for warning in prediction.warnings)


@pytest.mark.parametrize(("task", "end"), [("classification", ""), ("segmentation", "; no millilitres are given")])
def test_resampling_by_an_unstated_size_of_voxels_is_warned_of(
    make_contents, make_study, write_volume, tmp_path, task, end
):
    study = make_study(task, data=RESIZE | {"volume_transforms": [{"Spacing": {"pixdim": [2, 2, 2]}}]})
    model = SuperModel(replace(make_contents("only", study=study), data_profile=SCANS), CPU)
    nibabel.save(nibabel.Nifti1Image(smooth_volume(), None), tmp_path / "bare.nii.gz")
    sentence = (
        "the file does not state the size of its voxels in mm; it was resampled as if they were 1 mm, or by "
        f"uncertain numbers{end}"
    )
    assert sentence in model.predict(tmp_path / "bare.nii.gz").warnings
    assert not any("resampled" in warning for warning in model.predict(write_volume()).warnings)


# --- images of another kind


def test_volumes_and_pictures_are_refused_by_models_of_the_others(make, write_volume, tmp_path):
    Image.fromarray(np.uint8(smooth_volume()[..., 0] / 4)).save(tmp_path / "photo.png")
    with pytest.raises(DataError, match="scan.nii.gz is unlike the training images: volumes, where they are pictures"):
        make(DataProfile(kinds=("pictures",))).predict(write_volume())
    with pytest.raises(DataError, match="photo.png is unlike the training images: pictures"):
        make().predict(tmp_path / "photo.png")


TWO = {"channels": 2, "channel_names": ["T1", "T2"]}


@pytest.mark.parametrize("data", [{}, {"neighbours": 1}, {"intensity": "raw"}])
def test_a_blank_contrast_is_refused_and_a_missing_one_answered(make_contents, make_study, write_volume, data):
    study = make_study(data=RESIZE | TWO | data)
    model = SuperModel(make_contents("only", study=study, shape=(study.data.in_channels, 32, 32)), CPU)
    # 0.1 is interpolated to neighbours of 0.1.
    blank = np.full((37, 53, 3), 0.1)
    files = {"T1": write_volume("t1.nii.gz", blank.shape), "T2": write_volume("t2.nii.gz", array=blank)}
    with pytest.raises(DataError, match="t1.nii.gz shows one intensity alone in T2; export it again, or leave that"):
        model.predict(files)
    assert "contrast T2 is missing; zeros stand in its place" in model.predict({"T1": files["T1"]}).warnings
    # Of one file for all contrasts nobody can leave one out.
    both = np.random.default_rng(0).random((37, 53, 3, 2)) * [1, 0]
    assert model.predict(write_volume("both.nii.gz", array=both.astype(np.float32))).label_map is not None
