import json
import shutil

import nibabel
import numpy as np
import pytest
from PIL import Image

from silofl_hospital.importing.importers import LAYOUTS


def test_help_says_what_source_must_hold(silofl):
    code, out, error = silofl("import", "--help")
    assert (code, error) == (0, "")
    for layout, form in LAYOUTS.items():
        # The tree has a colon before it, and stands in by four.
        assert f"\n{layout}:\n\n{form.description}" in out and ":\n\n    SOURCE" in form.description


@pytest.mark.parametrize(("option", "value"), [("--test", "x"), ("--validation", "1"), ("--layout", "brats")])
def test_an_imports_bad_value_is_refused_with_its_option(refused, tmp_path, option, value):
    assert option in refused("import", "folders", tmp_path, tmp_path / "out", option, value)


@pytest.mark.parametrize(
    ("layout", "options", "sentence"),
    [
        ("table", ["--resample-masks"], "resample-masks must not be given with layout 'table'"),
        ("dicom", ["--layout", "bids"], "layout must not be given with layout 'dicom'"),
        ("hmp", [], "'import hmp' is a recipe now. Call python recipes/hmp.py SOURCE TARGET."),
        ("bids", [], "'import bids' is an option now. Call silofl import folders SOURCE TARGET --layout bids, with a"),
    ],
)
def test_an_imports_option_without_use_and_a_former_layout_are_refused(refused, tmp_path, layout, options, sentence):
    assert sentence in refused("import", layout, tmp_path, tmp_path / "out", *options)


@pytest.mark.parametrize(("site", "is_known"), [("ward", True), ("clinic", False)])
def test_an_import_counts_for_people_and_for_programs(silofl, tmp_path, site, is_known):
    for kind in ("images", "masks"):
        (tmp_path / "source" / site / kind).mkdir(parents=True)
        for number in range(5):
            # every image another, every mask with both its values
            pixels = np.full((4, 4), number, np.uint8) if kind == "images" else np.eye(4, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "source" / site / kind / f"{number}.png")
    if is_known:
        rows = [f"{number}.png,p{number}\n" for number in range(5)]
        (tmp_path / "source" / site / "patients.csv").write_text("".join(["file,patient\n", *rows]))
    code, out, error = silofl("import", "folders", tmp_path / "source", tmp_path / "first")
    counts, *notes = out.splitlines()
    patients = "5 patients" if is_known else "patients unknown"
    # a fifth of 5 patients, or of 5 files, for the test, a fifth of the other 4 for the validation
    assert (code, counts, error) == (0, f"{site}: 3 training, 1 validation, 1 test, {patients}", "")
    *unknown, few = notes
    assert [note.partition(":")[0] for note in unknown] == ([] if is_known else ["PATIENTS UNKNOWN"])
    assert few.startswith(f"a verdict on joining takes at least 20 test patients per site, not 1 ({site}): put more")
    code, out, error = silofl("import", "folders", tmp_path / "source", tmp_path / "second", "--json")
    wanted = {"examples": {site: {"training": 3, "validation": 1, "test": 1}}, "patients": {site: 5 * is_known}}
    wanted |= {"tested": {site: 1}, "notes": notes}
    assert (code, json.loads(out), error) == (0, wanted, "")


def test_too_few_test_patients_for_a_verdict_are_named_and_a_larger_share_helps(silofl, tmp_path):
    for site, number in (("north", 100), ("south", 40)):
        rows = ["file,label,patient\n"]
        folder = tmp_path / "source" / site
        folder.mkdir(parents=True)
        # Two pictures per patient.
        for image in range(2 * number):
            pixels = np.random.default_rng(image).integers(0, 255, (4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{image}.png")
            rows.append(f"{image}.png,{'ab'[image % 4 > 1]},p{image // 2}\n")
        (folder / "labels.csv").write_text("".join(rows))
    # A fifth of 100 are 20, of 40 eight.
    said = {
        share: silofl("import", "table", tmp_path / "source", share, "--test", share)[1] for share in ("0.2", "0.5")
    }
    assert "takes at least 20 test patients per site, not 8 (south): put more patients into the test" in said["0.2"]
    assert "a verdict" not in said["0.5"]
    new_study = {share: silofl("new-study", share, f"study-{share}")[1] for share in said}
    assert "CAUTION  a verdict on joining takes at least 20 test patients per site, not 8 (south)" in new_study["0.2"]
    assert "a verdict" not in new_study["0.5"]


@pytest.fixture
def ward(tmp_path):
    """Write the images of one site, and their masks of some values; returns the command that imports them."""

    def write(*values):
        for kind in ("images", "masks"):
            (tmp_path / "source" / "ward" / kind).mkdir(parents=True)
            for number in range(2):
                pixels = np.full((3, 3), number, np.uint8) if kind == "images" else np.uint8([values] * 3)
                Image.fromarray(pixels).save(tmp_path / "source" / "ward" / kind / f"{number}.png")
        return ["import", "folders", tmp_path / "source"]

    return write


@pytest.mark.parametrize(
    ("last", "labels", "wrong", "sentence"),
    [
        (2, "organ,lesion", (), "must hold the label values 0 (background), 1 (foreground), not 2"),
        (4, "4=lesion, 1=organ", ("--labels", "organ,lesion"), "name each value with --labels"),
    ],
)
def test_an_import_takes_the_names_and_the_values_of_labels(silofl, ward, tmp_path, last, labels, wrong, sentence):
    command = ward(0, 1, last)
    assert sentence in silofl(*command, tmp_path / "a", *wrong)[2]
    assert silofl(*command, tmp_path / "target", "--labels", labels)[0] == 0
    site = tmp_path / "target" / "ward"
    assert json.loads((site / "dataset.json").read_text())["labels"] == {"1": "organ", "2": "lesion"}
    np.testing.assert_array_equal(np.asarray(Image.open(site / "masks" / "0.png")), [[0, 1, 2]] * 3)


def test_to_import_again_another_folder_is_named_or_the_old_one_removed(silofl, ward, tmp_path):
    command = ward(0, 1, 1)
    assert silofl(*command, "again")[0] == 0
    code, _, error = silofl(*command, "again", "--test", "0.5")
    assert code == 2 and error.endswith("; name another, or remove this one to import again\n")
    assert silofl(*command, "other", "--test", "0.5")[0] == 0
    shutil.rmtree("again")
    assert silofl(*command, "again", "--test", "0.5")[0] == 0


@pytest.mark.parametrize("labels", ["1=organ,lesion", "one=organ", "-1=organ", "1=", "1=organ,2", "9999999999=organ"])
def test_labels_with_values_for_some_are_refused(refused, tmp_path, labels):
    error = refused("import", "folders", tmp_path, tmp_path / "out", f"--labels={labels}")
    assert "must be names, as organ,lesion, or a value and a name for each label, as 1=organ,4=lesion, not" in error


def test_an_import_takes_patterns(silofl, refused, tmp_path):
    for number in range(4):
        folder = tmp_path / "source" / "ward" / f"p{number}"
        folder.mkdir(parents=True)
        for name in ("t1", "t2", "seg"):
            pixels = np.full((3, 3), number % 2 if name == "seg" else 50 * number + len(name), np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}.png")
    patterns = ["--image-pattern", "T1={case}/t1.png,T2={case}/t2.png", "--mask-pattern", "{case}/seg.png"]
    command = ["import", "folders", tmp_path / "source", tmp_path / "target"]
    assert "must be given together" in refused(*command, *patterns[:2])
    code, out, error = silofl(*command, *patterns)
    # of 4: round(4 * 0.2) = 1 test, round(3 * 0.2) = 1 validation, 2 training
    assert (code, out.splitlines()[0], error) == (0, "ward: 2 training, 1 validation, 1 test, patients unknown", "")
    content = json.loads((tmp_path / "target" / "ward" / "dataset.json").read_text())
    assert content["channel_names"] == ["T1", "T2"]


def test_an_import_of_classes_counts_them_and_draws_who_has_which(silofl, tmp_path):
    for name in ("well", "ill"):
        (tmp_path / "source" / "ward" / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.full((4, 4), number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "source" / "ward" / name / f"{number}.png")
    command = ["import", "table", tmp_path / "source"]
    code, out, error = silofl(*command, tmp_path / "first", "--json")
    # of 5 of each class: 1 test, round(4 * 0.2) = 1 validation, 3 training
    ward = {part: {"ill": count, "well": count} for part, count in (("training", 3), ("validation", 1), ("test", 1))}
    assert (code, json.loads(out)["classes"], error) == (0, {"ward": ward}, "")
    assert {path.name for path in (tmp_path / "first").iterdir()} == {"ward", "partition.png", "partition.md"}
    code, out, _ = silofl(*command, tmp_path / "second")
    assert code == 0 and "well" in out


def test_masks_on_another_grid_are_refused_and_resampled_on_request(silofl, tmp_path):
    for kind, side in (("images", 4), ("masks", 2)):
        (folder := tmp_path / "source" / "north" / kind).mkdir(parents=True)
        for case in range(4):
            # Voxels of 8 mm in all: the mask's cover eight of the image's each.
            volume = np.zeros((side, side, side), np.int16)
            volume[: side // 2] = 1
            affine = np.diag([8 / side, 8 / side, 8 / side, 1.0])
            affine[:3, 3] = 4 / side
            nibabel.save(nibabel.Nifti1Image(volume, affine), folder / f"c{case}.nii.gz")
    words = ("import", "folders", tmp_path / "source", tmp_path / "out")
    code, _, error = silofl(*words)
    assert code == 2 and "--resample-masks" in error
    code, _, error = silofl(*words, "--resample-masks")
    assert code == 0, error
    north = tmp_path / "out" / "north"
    (record, *_) = json.loads((north / "dataset.json").read_text())["training"]
    found = nibabel.load(north / record["label"]).get_fdata()
    assert found.shape == (4, 4, 4) and (found[:2] == 1).all() and (found[2:] == 0).all()
