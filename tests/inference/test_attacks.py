"""Inputs and weights that must not be answered as if they were a patient of the study."""

import re
from dataclasses import replace

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from PIL import Image

from silofl.base.errors import ConfigError, DataError
from silofl.data.domain import Domain, Range
from silofl.inference import SuperModel
from silofl.inference.directory import write_model_folder
from silofl_desk.inference.export import export_bundle

CPU = torch.device("cpu")
RESIZE = {"transforms": [{"Resize": {"spatial_size": [32, 32]}}]}
SCANS = Domain(kinds=("volumes",), colours=("grey",), modalities=("MR",), axes=("LPS",))


@pytest.fixture
def make(make_contents, make_study):
    """Build a super model that learnt from images of a domain."""

    def build(domain=SCANS, rule="only", task="segmentation", **options):
        contents = make_contents(rule, study=make_study(task, data=RESIZE), **options)
        return SuperModel(replace(contents, domain=domain), CPU)

    return build


@pytest.fixture
def write_grid(tmp_path):
    """Write a volume whose header has any affine, which nibabel refuses to derive a quaternion from."""

    def write_it(affine):
        header = nibabel.Nifti1Header()
        header.set_sform(affine, code=1)
        image = nibabel.Nifti1Image(smooth_volume(), None, header)
        image.header["sform_code"] = 1
        nibabel.save(image, tmp_path / "scan.nii.gz")
        return tmp_path / "scan.nii.gz"

    return write_it


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
def test_weights_that_no_training_ends_with_are_refused_by_predict_and_by_export(tmp_path, make_contents, value, key):
    write_model_folder(tmp_path / "supermodel", spoilt(make_contents("only"), value, key))
    with pytest.raises(ConfigError, match="the weights of 'global' must be finite numbers of at most 1e.(06|15)"):
        SuperModel.load(tmp_path / "supermodel", "cpu")
    with pytest.raises(ConfigError, match="the weights of 'global' must be finite"):
        export_bundle(tmp_path / "supermodel", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_selector_with_weights_that_are_not_finite_is_refused(make_contents):
    contents = make_contents()
    selector = {name: torch.full_like(value, torch.nan) for name, value in contents.selector.items()}
    with pytest.raises(ConfigError, match="the weights of 'selector' must be finite"):
        SuperModel(replace(contents, selector=selector), CPU)


def test_weights_whose_answer_overflows_are_refused_with_the_image(make, write_volume):
    model = make()
    with torch.no_grad():
        for value in model.network("global").parameters():
            value.fill_(1e30)
    with pytest.raises(DataError, match="the model 'global' must answer with finite probabilities"):
        model.predict(write_volume())


# --- the grid


@pytest.mark.parametrize("spacing", [1e30, 2000, 1e-5, 0])
def test_a_spacing_that_no_scanner_has_is_refused(make, write_grid, spacing):
    with pytest.raises(DataError, match=r"scan.nii.gz must have voxels of 0.001 to 1000 mm, not "):
        make().predict(write_grid(np.diag([-0.5, -0.75, spacing, 1])))


def test_an_affine_that_is_not_finite_or_has_parallel_axes_is_refused(make, write_grid):
    affine = np.diag([-0.5, -0.75, 2, 1.0])
    affine[0, 3] = np.nan
    with pytest.raises(DataError, match="scan.nii.gz must have a finite position"):
        make().predict(write_grid(affine))
    affine = np.diag([-0.5, -0.75, 2, 1.0])
    affine[:3, 1] = affine[:3, 0]
    with pytest.raises(DataError, match="scan.nii.gz must have axes in three directions"):
        make().predict(write_grid(affine))


@pytest.fixture
def make_ct(make):
    """A super model that learnt from CT, as `write_dicom` writes."""
    return make(replace(SCANS, modalities=("CT",)))


def test_a_stated_spacing_is_measured(make_ct, write_dicom, tmp_path):
    prediction = make_ct.predict(write_dicom(tmp_path / "series", smooth_volume()))
    # Voxels of 0.5 x 0.75 x 2 mm.
    wanted = {name: np.sum(prediction.label_map == n) * 0.75 / 1000 for n, name in ((1, "organ"), (2, "lesion"))}
    assert prediction.volumes_ml == pytest.approx(wanted)
    assert not any("millilitres" in one for one in prediction.warnings)


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
    assert any("no millilitres are given" in one for one in prediction.warnings)


def test_dicom_without_the_places_of_its_slices_is_no_volume(make_ct, write_dicom, tmp_path):
    folder = edited(write_dicom(tmp_path / "series", smooth_volume()), ImagePositionPatient=None)
    with pytest.raises(DataError, match="must hold slices that state where they lie .*; name each file"):
        make_ct.predict(folder)


def save_scan(path, size, unit):
    image = nibabel.Nifti1Image(smooth_volume(), np.diag([-size, -size, size, 1.0]))
    image.header["xyzt_units"] = unit
    nibabel.save(image, path)
    return path


def test_nifti_gets_the_millilitres_of_its_size_in_the_unit_that_it_states(make, tmp_path):
    model = make()
    # 2 are millimetres, 3 are micrometres, and 5 is none.
    wanted, found, none = (
        model.predict(save_scan(tmp_path / f"scan{unit}.nii.gz", size, unit)).volumes_ml
        for size, unit in ((0.5, 2), (500, 3), (0.5, 5))
    )
    assert found == pytest.approx(wanted) and sum(found.values()) > 0 and none is None


def test_nifti_that_states_no_grid_gets_no_millilitres_and_a_warning_on_its_axes(make, tmp_path):
    nibabel.save(nibabel.Nifti1Image(smooth_volume(), None), tmp_path / "scan.nii.gz")
    prediction = make().predict(tmp_path / "scan.nii.gz")
    assert prediction.volumes_ml is None
    assert any("does not state how its axes lie" in one for one in prediction.warnings)


@pytest.mark.parametrize(("task", "end"), [("classification", ""), ("segmentation", "; no millilitres are given")])
def test_a_volume_that_was_resampled_by_a_size_that_its_file_does_not_state_is_warned_of(
    make_contents, make_study, write_volume, tmp_path, task, end
):
    study = make_study(task, data=RESIZE | {"volume_transforms": [{"Spacing": {"pixdim": [2, 2, 2]}}]})
    model = SuperModel(replace(make_contents("only", study=study), domain=SCANS), CPU)
    nibabel.save(nibabel.Nifti1Image(smooth_volume(), None), tmp_path / "bare.nii.gz")
    sentence = (
        "the file does not state the size of its voxels in mm; it was resampled as if they were 1 mm, or by "
        f"uncertain numbers{end}"
    )
    assert sentence in model.predict(tmp_path / "bare.nii.gz").warnings
    assert not any("resampled" in one for one in model.predict(write_volume()).warnings)


# --- images of another kind


def test_a_volume_is_refused_by_models_of_pictures_and_a_picture_by_models_of_volumes(make, write_volume, tmp_path):
    Image.fromarray(np.uint8(smooth_volume()[..., 0] / 4)).save(tmp_path / "photo.png")
    with pytest.raises(DataError, match="scan.nii.gz must be like .* which are pictures, not volumes"):
        make(Domain(kinds=("pictures",))).predict(write_volume())
    with pytest.raises(DataError, match="photo.png must be like the training images, which are volumes, not pictures"):
        make().predict(tmp_path / "photo.png")


def test_a_photograph_in_colour_is_refused_by_models_of_grey_pictures(make, tmp_path):
    model = make(Domain(kinds=("pictures",), colours=("grey",)))
    colours = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "photo.png")
    with pytest.raises(DataError, match="photo.png must be like the training images, which are grey, not colour"):
        model.predict(tmp_path / "photo.png")
    Image.fromarray(colours[..., :1].repeat(3, axis=2)).save(tmp_path / "grey.png")
    assert model.predict(tmp_path / "grey.png").label_map.any()


def test_another_modality_is_refused_where_the_file_states_it(make, write_dicom, tmp_path):
    folder = write_dicom(tmp_path / "series", smooth_volume())
    with pytest.raises(DataError, match="series must be like the training images, which are MR, not CT"):
        make().predict(folder)
    edited(folder, Modality="MR")
    assert make().predict(folder).label_map is not None


TWO = {"channels": 2, "channel_names": ["T1", "T2"]}


@pytest.mark.parametrize("data", [{}, {"neighbours": 1}, {"intensity": "raw"}])
def test_a_contrast_that_shows_nothing_is_refused_and_one_that_is_not_there_is_answered(
    make_contents, make_study, write_volume, data
):
    study = make_study(data=RESIZE | TWO | data)
    model = SuperModel(make_contents("only", study=study, shape=(study.data.in_channels, 32, 32)), CPU)
    # 0.1 is interpolated to neighbours of 0.1.
    blank = np.full((37, 53, 3), 0.1)
    files = {"T1": write_volume("t1.nii.gz", blank.shape), "T2": write_volume("t2.nii.gz", array=blank)}
    with pytest.raises(
        DataError, match="t1.nii.gz must show something, .* alone in T2; export it again, or leave that"
    ):
        model.predict(files)
    assert "contrast T2 is missing; zeros stand in its place" in model.predict({"T1": files["T1"]}).warnings
    # Of one file for all contrasts nobody can leave one out.
    both = np.random.default_rng(0).random((37, 53, 3, 2)) * [1, 0]
    assert model.predict(write_volume("both.nii.gz", array=both.astype(np.float32))).label_map is not None


def test_one_file_is_not_two_contrasts(make_contents, make_study, write_volume, tmp_path):
    model = SuperModel(make_contents("only", study=make_study(data=RESIZE | TWO), shape=(2, 32, 32)), CPU)
    scan, link = write_volume(), tmp_path / "link.nii.gz"
    link.symlink_to(scan)
    for other in (scan, tmp_path / ".." / tmp_path.name / scan.name, link):
        with pytest.raises(DataError, match=f"scan.nii.gz and {other.name} must be different files, a contrast each"):
            model.predict({"T1": scan, "T2": other})


def test_each_contrast_must_be_of_its_own_modality(make_contents, make_study, write_dicom, tmp_path):
    study = make_study(data=RESIZE | TWO | {"channel_names": ["CT", "PET"]})
    known = Domain(("volumes",), modalities=("CT", "PT"), contrasts={"CT": ("CT",), "PET": ("PT",)})
    model = SuperModel(replace(make_contents("only", study=study, shape=(2, 32, 32)), domain=known), CPU)
    folders = {name: write_dicom(tmp_path / name, smooth_volume() + i) for i, name in enumerate(("CT", "PET", "more"))}
    edited(folders["PET"], Modality="PT")
    # In whatever order they are named.
    for order in (("CT", "PET"), ("PET", "CT")):
        assert model.predict({name: folders[name] for name in order}).warnings == ()
    with pytest.raises(DataError, match="must have a file of PT as PET, like the training images, not of CT"):
        model.predict({"CT": folders["CT"], "PET": folders["more"]})


def test_noise_is_answered_with_a_warning(make, write_volume):
    # Neighbours of smooth images are alike; those of noise differ as much as any two pixels.
    model = make(replace(SCANS, intensities=(Range("roughness", 0.0, 0.3),)))
    calm = model.predict(write_volume("calm.nii.gz", array=smooth_volume()))
    assert not any("roughness" in one for one in calm.warnings)
    (warning,) = [one for one in model.predict(write_volume()).warnings if "roughness" in one]
    assert re.match("its intensities are unlike the training images': roughness (0.9|1)", warning)
    assert "after the preparation, theirs 0 to 0.3" in warning


def test_axes_unlike_those_of_training_are_warned_of_unless_the_study_turns_them(
    make, make_contents, make_study, write_volume
):
    scan = write_volume(affine=np.diag([0.5, 0.75, 2, 1.0]))
    assert any("its axes run RAS, theirs LPS" in one for one in make().predict(scan).warnings)
    data = RESIZE | {"volume_transforms": [{"Orientation": {"axcodes": "LPS"}}]}
    turning = SuperModel(replace(make_contents("only", study=make_study(data=data)), domain=SCANS), CPU)
    assert turning.predict(scan).warnings == ()


def test_a_super_model_that_says_nothing_of_its_training_images_warns_of_it(make, write_volume):
    (warning,) = make(Domain()).predict(write_volume()).warnings
    assert warning.startswith("the super model does not say what images it learnt from")
