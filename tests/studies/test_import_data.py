import json

import numpy as np
import pytest
from PIL import Image


@pytest.mark.parametrize(("option", "value"), [("--test", "x"), ("--validation", "1"), ("--layout", "brats")])
def test_an_imports_bad_value_is_refused_with_its_option(refused, tmp_path, option, value):
    assert option in refused("import", "folders", tmp_path, tmp_path / "out", option, value)


@pytest.mark.parametrize(
    ("layout", "options", "sentence"),
    [
        ("dicom", ["--layout", "bids"], "Layout 'dicom' does not use layout"),
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
    assert [note.partition(":")[0] for note in notes] == ([] if is_known else ["PATIENTS UNKNOWN"])
    code, out, error = silofl("import", "folders", tmp_path / "source", tmp_path / "second", "--json")
    wanted = {"examples": {site: {"training": 3, "validation": 1, "test": 1}}, "patients": {site: 5 * is_known}}
    wanted = {key: value for key, value in (wanted | {"notes": notes}).items() if value}
    assert (code, json.loads(out), error) == (0, wanted, "")


@pytest.mark.parametrize("labels", ["1=organ,lesion", "one=organ", "-1=organ", "1=", "1=organ,2", "9999999999=organ"])
def test_labels_with_values_for_some_are_refused(refused, tmp_path, labels):
    error = refused("import", "folders", tmp_path, tmp_path / "out", f"--labels={labels}")
    assert "must be names, as organ,lesion, or a value and a name for each label, as 1=organ,4=lesion, not" in error
