"""Small files as scanners, annotation tools and careless exporters write them: each is read rightly or refused."""

import json
import re
import shutil

import nibabel
import numpy as np
import pytest

from silofl.data.site_data import load_site_data
from silofl.data.targets import IGNORED
from silofl.errors import DataError
from silofl.reading.images import read_image, read_label
from silofl.study import load_study
from silofl_desk.studies.simulation import study_file

from ..conftest import SMALL_UNET, case_builder
from .conftest import JOBS, carried_out, write_small_job

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here", "undrawn")]

MARKS = "training validation test".split()
TINY = ["--rounds", 1, "--set", f"model={json.dumps(SMALL_UNET)}", "--set", "device=cpu", "--set", "guard=false"]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build a case in a folder of its own, once."""
    return case_builder("build.py", tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def super_model(tmp_path_factory, phantoms):
    """Return the super model of one round of two phantom hospitals, whose voxels are of 1.5 x 1.5 x 8 mm."""
    root = tmp_path_factory.mktemp("super")
    job = write_small_job(root / "job", "fedsm_phantoms", rounds=1, model=SMALL_UNET)
    carried_out("simulate", job, "--data", phantoms, "--out", root / "run", "--alone")
    return root / "run" / "supermodel"


@pytest.fixture
def import_folders(silofl, tmp_path):
    """Import images/ and masks/ of all hospitals in a folder; returns what was said, and the data's folder."""

    def run(source, labels, *options, data=tmp_path / "data", ends_with=0):
        code, out, error = silofl("import", "folders", source, data, "--labels", labels, *options)
        assert code == ends_with, out + error
        return out + error, data

    return run


@pytest.fixture
def train(silofl, tmp_path):
    """Begin a study with a folder of hospitals and carry out a round of it; returns what was said."""

    def run(data, job=tmp_path / "job", out=tmp_path / "run", ends_with=0):
        code, printed, error = silofl("new-study", data, job, "--from", JOBS / "fedavg_phantoms")
        if code == 0:
            code, printed, error = silofl("simulate", job, "--data", data, "--out", out, "--alone", *TINY)
        assert code == ends_with, printed + error
        return printed + error

    return run


# -------- files


def read_or_refused(path, *words):
    """Return what a file holds, or None where it is refused in these words."""
    try:
        return read_image(path).array
    except DataError as error:
        assert all(word in str(error) for word in words) and "time point" not in str(error)
        return None


@pytest.mark.parametrize(
    ("case", "file"),
    [("big_endian_32", "x.dcm"), ("high_bit", "x.dcm"), ("mosaic", "mosaic.dcm"), ("whole_slide", "slide.dcm")],
)
def test_an_image_is_read_as_its_file_defines_it_or_refused_by_name(build, case, file):
    if (array := read_or_refused(build(case) / file, file, ";")) is not None:
        np.testing.assert_array_equal(array, np.load(build(case) / "right.npy"))


def test_a_colour_capture_with_a_rescale_is_the_one_without_or_refused(build):
    plain = read_image(build("colour_rescale") / "plain.dcm").array
    if (array := read_or_refused(build("colour_rescale") / "capture.dcm", "Rescale")) is not None:
        np.testing.assert_array_equal(array, plain)


@pytest.mark.parametrize("name", ["comma", "small", "word", "hex", "inf", "nan", "rest"])
def test_a_slope_that_is_no_decimal_number_is_refused(build, name):
    with pytest.raises(DataError, match=f"{name}.dcm.*RescaleSlope"):
        read_image(build("slope_text") / f"{name}.dcm")


@pytest.mark.parametrize("patient", ["patient_c.dcm", "patient_d"])
def test_pixels_that_are_not_there_are_not_those_of_another_patient(build, patient):
    folder = build("short_pixels")
    read_image(folder / "patient_a")
    with pytest.raises(DataError, match="PixelData"):
        read_image(folder / patient)


def test_a_dose_of_uneven_planes_is_refused(build):
    with pytest.raises(DataError, match="dose.dcm.*(even|GridFrameOffsetVector)"):
        read_image(build("dose_uneven") / "dose.dcm")


@pytest.mark.parametrize("name", ["shaped", "imagej"])
def test_a_stack_in_one_directory_of_a_tiff_is_refused(build, name):
    with pytest.raises(DataError, match=rf"{name}.tif.*\b5\b"):
        read_image(build("tiff_stack") / f"{name}.tif")


def test_a_quaternion_beyond_one_by_rounding_is_read(build):
    image = read_image(build("quaternion") / "x.nii")
    np.testing.assert_allclose(image.affine[:3, :3], [[0, 1, 0], [1, 0, 0], [0, 0, -2]], atol=1e-4)


def test_rgb_voxels_are_three_channels_or_refused_as_such(build):
    if (array := read_or_refused(build("rgb_nifti") / "rgb.nii.gz", "RGB")) is not None:
        assert array.shape == (3, 48, 48, 6) and (array[0] == 200).all() and not array[1:].any()


@pytest.mark.parametrize("bits", [2, 4])
def test_a_label_map_of_few_grey_bits_keeps_its_numbers(build, bits):
    folder = build("grey_bits")
    np.testing.assert_array_equal(read_label(folder / f"label{bits}.png").array, np.load(folder / "right.npy"))


# -------- folders of hospitals


def test_masks_of_zero_and_255_whose_slope_is_a_255th_are_zero_and_one(build, import_folders, train):
    _, data = import_folders(build("mask_slope") / "in", "organ")
    (path,) = (data / "south").rglob("masks/c0.nii.gz")
    assert sorted(np.unique(read_label(path).array)) == [0, 1]
    train(data)


@pytest.mark.parametrize(("case", "label"), [("dcm2niix_mask", "organ"), ("slicer_crop", "liver")])
def test_masks_that_are_turned_or_cropped_train_as_those_on_the_grid(
    build, import_folders, train, tmp_path, case, label
):
    tables = []
    for kind in ("in", "same"):
        _, data = import_folders(build(case) / kind, label, data=tmp_path / kind / "data")
        train(data, tmp_path / kind / "job", tmp_path / kind / "run")
        tables.append((tmp_path / kind / "run" / "metrics.csv").read_text())
    assert tables[0] == tables[1]


def test_masks_on_another_grid_are_resampled_on_request_alone(silofl, tmp_path):
    for i in range(4):
        # Slices of 3 mm, and masks with one for two of them.
        for kind, shape, step in (("images", (8, 8, 4), 3.0), ("masks", (8, 8, 2), 6.0)):
            folder, affine = tmp_path / "in" / "north" / kind, np.diag([1, 1, step, 1])
            folder.mkdir(parents=True, exist_ok=True)
            affine[2, 3] = step / 2
            voxels = np.random.default_rng(i).integers(0, 2, shape).astype(np.uint8)
            nibabel.save(nibabel.Nifti1Image(voxels, affine), folder / f"c{i}.nii.gz")
    code, _, error = silofl("import", "folders", tmp_path / "in", tmp_path / "data", "--labels", "organ")
    assert code == 2 and "or import with --resample-masks" in error and "c3.nii.gz" in error
    code, out, error = silofl("import", "folders", tmp_path / "in", tmp_path / "data", "--resample-masks")
    assert code == 0, out + error
    before, after = (read_label(tmp_path / place / "masks" / "c0.nii.gz") for place in ("in/north", "data/north"))
    np.testing.assert_array_equal(after.array, np.repeat(before.array, 2, axis=3))


def test_dicom_segmentations_are_masks_by_the_names_of_their_segments(build, import_folders, train, tmp_path):
    import pydicom

    patterns = ("--image-pattern", "{case}/ct", "--mask-pattern", "{case}/seg.dcm")
    _, data = import_folders(build("dicom_seg") / "in", "organ", *patterns)
    train(data)
    case = data / "north"
    label = read_label(case / "masks" / "c0.dcm", labels={1: "organ"}, image=read_image(case / "images/c0/ct"))
    # highdicom stores no frame of a slice without the organ: its pixels are those of the frames.
    assert label.array.sum() == pydicom.dcmread(case / "masks" / "c0.dcm").pixel_array.sum() > 0


def test_segments_count_by_their_names_in_the_header(build, import_folders, train, tmp_path):
    _, data = import_folders(build("slicer_names") / "in", "liver,tumor")
    train(data)
    study = load_study(study_file(tmp_path / "run" / "job"))
    for site in ("north", "south"):
        found = load_site_data(data / site, study, tmp_path / "cache" / site)
        for part in (found.training, found.validation, found.test):
            # a liver has 14 x 14 pixels, a tumor 10 x 10, in each slice of each case
            sizes = [[(truth == number).sum() for number in (1, 2)] for truth in part.targets]
            assert all(1.7 < liver / tumor < 2.3 for liver, tumor in sizes)


@pytest.mark.parametrize("case", ["nnunet_ignore", "nnunet_regions"])
def test_a_set_of_nnunet_goes_from_import_to_export(build, silofl, train, tmp_path, case):
    code, out, error = silofl("import", "nnunet", build(case) / "in", tmp_path / "data")
    assert code == 0, out + error
    train(tmp_path / "data")
    run, study = tmp_path / "run", load_study(study_file(tmp_path / "run" / "job"))
    code, out, error = silofl("export", run / "supermodel", "--out", tmp_path / "bundle")
    assert code == 0, out + error
    if case == "nnunet_regions":
        assert study.labels == {1: "whole 1", 2: "core"} and study.regions == {"whole": (1, 2), "core": (2,)}
        scored = json.loads((run / "results.json").read_text())
        assert scored["regions"] == {"whole": [1, 2], "core": [2]}
    else:
        data = load_site_data(tmp_path / "data" / "north", study, tmp_path / "cache")
        # the lower half of six slices of each case
        assert study.labels == {1: "organ"} and (np.asarray(data.training.targets[3]) == IGNORED).all()
        assert not (np.asarray(data.training.targets[2]) == IGNORED).any()


def test_label_maps_in_jpeg_are_refused(build, import_folders):
    said, _ = import_folders(build("jpeg_labels") / "in", "organ", ends_with=2)
    assert re.search("(?i)jpe?g", said) and "c0.jpg" in said


def test_images_that_a_tag_turns_beside_masks_without_one_are_counted(build, import_folders):
    said, _ = import_folders(build("exif_turn") / "in", "organ")
    assert re.search(r"\b8\b.*(EXIF|turned)", said)


def test_a_mask_of_another_size_is_refused_at_the_import(build, import_folders):
    said, _ = import_folders(build("mask_size") / "in", "organ", ends_with=2)
    assert "c5.png" in said and "40" in said


def test_the_patient_of_a_series_is_the_one_in_its_header(build, import_folders):
    _, data = import_folders(build("patient_in_header") / "in", "organ")
    content = json.loads((data / "north" / "dataset.json").read_text())
    parts = {part: {record["patient"] for record in content.get(part, ())} for part in MARKS}
    assert set().union(*parts.values()) and sum(map(len, parts.values())) == len(set().union(*parts.values()))


@pytest.mark.parametrize("kind", ["accents", "zero_width", "full_width"])
def test_one_patient_in_two_spellings_is_one(build, train, kind):
    said = train(build("patient_spelling") / kind, ends_with=2)
    assert "patient" in said and "Traceback" not in said


@pytest.mark.parametrize(("case", "names"), [("same_volume", ("i0", "i3")), ("same_index", ("0", "5"))])
def test_the_same_pixels_in_two_parts_are_refused(build, train, case, names):
    said = train(build(case) / "data", ends_with=2)
    assert all(name in said for name in names) and "Traceback" not in said


@pytest.mark.parametrize("name", ["octal", "sexagesimal", "underscore", "hex", "binary"])
def test_a_number_that_people_and_programs_read_differently_is_refused(silofl, tmp_path, build, name, monkeypatch):
    monkeypatch.chdir(JOBS.parent)
    study = build("yaml_numbers") / name / "app" / "config" / "study.yaml"
    text = re.search("(?m)^rounds: *(.*)$", study.read_text())[1]
    for arguments in (
        ("estimate", build("yaml_numbers") / name, "--sites", 2, "--bandwidth", "50Mbit"),
        ("estimate", JOBS / "fedavg_phantoms", "--sites", 2, "--bandwidth", "50Mbit", "--set", f"rounds={text}"),
    ):
        code, out, error = silofl(*arguments)
        assert code == 2 and text in error and "Traceback" not in error


# -------- a new patient


def test_an_organ_of_34_thousand_litres_is_not_reported(build, silofl, super_model, tmp_path):
    folder = build("huge_spacing")
    scans = (folder / "huge.nii.gz", folder / "usual.nii.gz")
    code, out, error = silofl("predict", super_model, *scans, "-o", tmp_path / "o")
    assert code == 3 and "145" in out + error and "usual.nii.gz" in out
    assert "huge" not in "".join(path.name for path in (tmp_path / "o").iterdir())


def test_a_name_of_dots_writes_nothing_outside_of_its_folder(build, silofl, super_model, tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(build("dotdot_name"), folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    silofl("predict", super_model, folder / "in" / "..nii.gz", "-o", folder / "out" / "precious")
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before
    assert all((folder / "out" / "precious") in path.parents for path in after.keys() - before.keys())


def test_a_short_file_predicts_nothing_after_another_patient(build, silofl, super_model, tmp_path):
    folder = build("short_pixels")
    scans = (folder / "patient_a", folder / "patient_c.dcm")
    code, out, error = silofl("predict", super_model, *scans, "-o", tmp_path / "o")
    assert code == 3 and "patient_c.dcm" in out + error and "PixelData" in out + error
    assert not [path for path in (tmp_path / "o").iterdir() if "patient_c" in path.name]
