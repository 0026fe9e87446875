"""The small inputs on which users failed, where they can be built, and what is right for each."""

import json

import pytest

from tests.conftest import case_builder

pytestmark = pytest.mark.usefixtures("decoded_here")
ORGAN = ["folders", "--labels", "organ"]
BUSI = ["folders", "--labels", "lesion", "--image-pattern", "benign/{case}.png"]
# Name -> what to import it with, the number of cases, and words of what is printed; no number where it is refused.
CASES = {
    "parts_as_classes": (["table"], 30, "NORMAL   PNEUMONIA"),
    "parts_as_sites": (["table"], 36, "in: 16 training, 8 validation, 12 test"),
    "masks_as_images": (["table"], 24, "masks of images are left out: 24"),
    "two_forms": (["table"], 16, "second forms of an image are left out: 16"),
    "float_patients": (["table"], 24, "north: 8 training, 2 validation, 2 test, 6 patients"),
    "float_labels": (["table"], None, "label writes one class as 0 and 0.0"),
    "other_words": (["table"], 24, "south has no class of north: ja, nein there, no, yes here"),
    "decomposed_table": (["table"], 24, "gesund   krank"),
    "no_endings": (["table"], 24, "melanoma   nevus"),
    "empty_rows": (["table"], 24, "healthy   sick"),
    "unicode_text": (["table"], 24, "healthy   sick"),
    "sform_of_ones": (
        ORGAN,
        12,
        "1 x 1 x 1 by sform and 1.316 x 1.316 x 10 by pixdim in c0.nii.gz; pixdim's are taken",
    ),
    "decomposed_masks": (ORGAN, 6, "north: 4 training"),
    "empty_rows_patients": (ORGAN, 6, "6 patients"),
    "grey_edges": (
        ORGAN,
        None,
        "smoothed edges, with 10 different numbers; cut them at half with --mask-threshold 128",
    ),
    "leavings": (ORGAN, 6, "north: 4 training"),
    "void_border": (["folders", "--labels", "1=disc,255=ignore"], 6, "counts in no loss"),
    "second_masks": ([*BUSI, "--mask-pattern", "benign/{case}_mask.png"], None, "'benign/{case}_mask*.png'"),
    "bmp_and_gif": ([*ORGAN, "--image-pattern", "{case}.bmp", "--mask-pattern", "{case}_mask.gif"], 6, "north"),
}


@pytest.fixture
def build(tmp_path):
    return case_builder("build5.py", tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_an_input_on_which_users_failed_is_read_or_refused_by_its_fault(name, build, silofl, tmp_path):
    (layout, *options), count, words = CASES[name]
    code, out, error = silofl("import", layout, build(name) / "in", tmp_path / "data", *options)
    assert words in out + error
    cases = 0
    for path in (tmp_path / "data").glob("*/dataset.json"):
        content = json.loads(path.read_text())
        cases += sum(len(content[part]) for part in ("training", "validation", "test"))
    assert (code == 0, cases) == (count is not None, count or 0)


@pytest.mark.parametrize(("name", "labels"), [("float_labels", "0=0.0,1=1.0"), ("other_words", "no=nein,yes=ja")])
def test_words_for_one_class_are_mapped(name, labels, build, silofl, tmp_path):
    code, _, _ = silofl("import", "table", build(name) / "in", tmp_path / "data", "--labels", labels)
    content = json.loads((tmp_path / "data" / "south" / "dataset.json").read_text())
    wanted = [pair.partition("=")[0] for pair in labels.split(",")]
    assert (code, list(content["labels"].values())) == (0, wanted)
    assert {record["label"] for record in content["training"]} == {0, 1}
