import shutil
from dataclasses import replace

import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.manifest import read_manifest
from silofl.data.site_data import load_site_data
from silofl.data.targets import IGNORED
from silofl_desk.studies.comparisons.pooled_folder import pool_manifests
from silofl_desk.studies.runs.joined_examples import join_examples

pytestmark = pytest.mark.usefixtures("decoded_here")


@pytest.mark.parametrize("validation", [{"validation": []}, {}])
def test_validation_may_be_empty_behind_a_byte_order_mark(site, study, validation):
    site.content.pop("validation")
    path = site.write(**validation) / "dataset.json"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    manifest = read_manifest(site.folder, study())
    assert manifest.validation == () and len(manifest.training) == 3


def test_a_missing_dataset_json_or_folder_is_called_missing(site, study):
    with pytest.raises(DataError, match="dataset.json of the data folder .north. does not exist; write it"):
        read_manifest(site.folder, study())
    shutil.rmtree(site.folder)
    with pytest.raises(DataError, match="does not exist; write it with silofl import"):
        read_manifest(site.folder, study())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"task": "segmentation",', r"is no JSON in UTF-8 .*line 1 column \d+"),
        ('{"training": [], "training": []}', "with each key once .the key 'training' stands twice"),
        ("[" * 100_000, "is no JSON in UTF-8"),
        ('{"task": "Gewebe"}'.encode("utf-16"), "is no JSON in UTF-8"),
        ("[]", "holds a list in place of an object"),
        ("3", "holds a int in place of an object"),
    ],
)
def test_a_file_that_is_no_json_object_is_refused(site, study, text, sentence):
    (site.folder / "dataset.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=sentence):
        read_manifest(site.folder, study())


IGNORE = "ignore of dataset.json must be the number of pixels that nobody annotated"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"trainig": []}, "has the unknown key 'trainig'.*did you mean 'training'"),
        ({"x": []}, "has the unknown key 'x'"),
        ({"task": ...}, "lacks the key 'task'"),
        ({"labels": ...}, "lacks the key 'labels'"),
        (
            {"task": "classification"},
            "task of dataset.json must be 'segmentation' as in the study, not 'classification'",
        ),
        ({"labels": {"1": "cell"}}, "labels of dataset.json must be {'1': 'nucleus'} as in the study, not"),
        (
            {"labels": {"1": "nucleus", "2": "wall"}},
            "labels of dataset.json must be {'1': 'nucleus'} as in the study, not",
        ),
        ({"labels": {"0": "nucleus"}}, "labels of dataset.json must be {'1': 'nucleus'} as in the study, not"),
        ({"labels": {"": None}}, "labels of dataset.json must be {'1': 'nucleus'} as in the study, not"),
        ({"labels": ["nucleus"]}, "labels of dataset.json must be {'1': 'nucleus'} as in the study, not"),
        (
            {"split_unit": "image"},
            "split_unit of dataset.json must be one of patient, recordings, slices, examples, unknown, not",
        ),
        (
            {"split_unit": ["slices"]},
            "split_unit of dataset.json must be one of patient, recordings, slices, examples, unknown, not",
        ),
        ({"training": ...}, "has no case in training"),
        ({"test": []}, "has no case in test"),
        ({"training": {"image": "a.png"}}, "training of dataset.json must be a list of cases"),
        ({"training": None}, "training of dataset.json must be a list of cases"),
        ({"ignore": 0}, IGNORE),
        ({"ignore": 1}, IGNORE),
        ({"ignore": -1}, IGNORE),
        ({"ignore": "2"}, IGNORE),
        ({"ignore": 2.0}, IGNORE),
        ({"ignore": True}, IGNORE),
    ],
)
def test_a_key_without_a_right_value_is_refused(site, study, changes, sentence):
    site.content |= changes
    site.content = {key: value for key, value in site.content.items() if value is not ...}
    with pytest.raises(DataError, match=sentence):
        read_manifest(site.write(), study())


def test_a_record_without_a_patient_is_refused_unless_unknown(site, study):
    for records in (site.content["training"], site.content["test"]):
        for record in records:
            del record["patient"]
    for of_data, of_study in (("patient", "patient"), ("unknown", "patient"), ("patient", "unknown")):
        with pytest.raises(DataError, match="has no 'patient', by which parts are kept apart"):
            read_manifest(site.write(split_unit=of_data), study(split_unit=of_study))
    manifest = read_manifest(site.write(split_unit="unknown"), study(split_unit="unknown"))
    assert {record.patient for record in manifest.training} == {None}


ORGANS = {1: "organ", 2: "lesion"}


def test_a_site_may_annotate_some_of_the_labels(site, study, tmp_path):
    site.write(labels={"1": "organ", "2": "lesion"}, labels_annotated=[1])
    settings = study(labels=ORGANS)
    assert read_manifest(site.folder, settings).labels_annotated == (1,)
    data = load_site_data(site.folder, settings, tmp_path / "cache")
    assert [part.annotated for part in (data.training, data.validation, data.test)] == [(1,)] * 3
    site.write(labels={"1": "organ", "2": "lesion"}, labels_annotated=[2, 1])
    assert load_site_data(site.folder, settings, tmp_path / "cache").test.annotated is None


def test_labels_in_another_order_are_those_of_their_names(site, study, tmp_path):
    masks = {name: np.arange(64, dtype=np.uint8).reshape(8, 8) % 4 for name in "abcdef"}
    for name, mask in masks.items():
        site.mask(f"{name}-mask.png", mask)
    site.write(labels={"1": "organ", "2": "lesion"}, ignore=3)
    wanted = load_site_data(site.folder, study(labels=ORGANS), tmp_path / "cache").test.targets
    site.write(labels={"2": "organ", "1": "lesion"}, ignore=3)
    data = load_site_data(site.folder, study(labels=ORGANS), tmp_path / "cache")
    np.testing.assert_array_equal(data.test.targets, np.array([0, 2, 1, IGNORED])[masks["a"]][None].repeat(2, 0))
    np.testing.assert_array_equal(wanted, np.array([0, 1, 2, IGNORED])[masks["a"]][None].repeat(2, 0))
    assert pool_manifests({"north": data.manifest})["labels"] == {"1": "lesion", "2": "organ"}
    site.write(labels={"1": "lesion"}, ignore=3)
    with pytest.raises(DataError, match="a-mask.png holds 2, but the labels are 0 .background., 1 .lesion."):
        load_site_data(site.folder, study(labels=ORGANS), tmp_path / "cache")


@pytest.mark.parametrize(("task", "labels", "wanted"), [("classification", 0, 1), ("multilabel", [0], 0b10)])
def test_classes_in_another_order_are_those_of_their_names(site, study, task, labels, wanted):
    records = {part: [record | {"label": labels} for record in site.content[part]] for part in ("training", "test")}
    site.write(task=task, labels={"0": "tumour", "1": "normal"}, validation=[], **records)
    settings = study("classification") if task == "classification" else study(task, {0: "normal", 1: "tumour"})
    manifest = read_manifest(site.folder, settings, needed=())
    assert {record.label for record in manifest.records} == {wanted}
    with pytest.raises(DataError, match="labels of dataset.json must be .'0': 'normal', '1': 'tumour'. as in the"):
        read_manifest(site.write(task=task, labels={"0": "tumour"}, validation=[], **records), settings, needed=())


def test_a_label_map_holds_no_label_that_is_not_annotated(site, study, tmp_path):
    site.write(labels={"1": "organ", "2": "lesion"}, labels_annotated=[2])
    sentence = r"case 'a': a-mask.png holds 1, but the labels are 0 .*, 2 .lesion.; .* in labels_annotated"
    with pytest.raises(DataError, match=sentence):
        load_site_data(site.folder, study(labels=ORGANS), tmp_path / "cache")


@pytest.mark.parametrize("value", [[], [3], [1, 1], ["1"], 1, [True], None])
def test_labels_that_no_site_can_annotate_are_refused(site, study, value):
    site.write(labels={"1": "organ", "2": "lesion"}, labels_annotated=value)
    with pytest.raises(
        DataError, match="labels_annotated of dataset.json must be some of the study's labels, each once"
    ):
        read_manifest(site.folder, study(labels=ORGANS))
    content = {"task": "classification", "labels": {"0": "normal", "1": "tumour"}, "labels_annotated": [0]}
    site.write(**content, training=[], validation=[], test=[])
    with pytest.raises(DataError, match="labels_annotated of dataset.json must be .*; leave it out"):
        read_manifest(site.folder, study("classification"))


def test_pixels_with_the_ignore_label_are_ignored_in_all_parts(site, study, tmp_path):
    masks = {name: np.where(np.arange(64).reshape(8, 8) % 3 == 2, 7, 1) for name in "abcdef"}
    for name, mask in masks.items():
        site.mask(f"{name}-mask.png", mask.astype(np.uint8))
    site.write(ignore=7)
    data = load_site_data(site.folder, study(), tmp_path / "cache")
    for part in (data.training, data.validation, data.test):
        assert part.has_ignored
        np.testing.assert_array_equal(part.targets, [np.where(masks[case] == 7, IGNORED, 1) for case in part.cases])
    joined = join_examples({"north": data.test, "south": replace(data.test, has_ignored=False)})
    assert joined.has_ignored and pool_manifests({"north": data.manifest})["ignore"] == 7
    site.write()
    with pytest.raises(DataError, match=r"a-mask.png holds 7, but the labels are"):
        load_site_data(site.folder, study(), tmp_path / "cache")
