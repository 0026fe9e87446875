import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from silofl.data.manifest import read_manifest
from silofl.data.parts import join_examples
from silofl.data.pooled import pool_manifests
from silofl.data.site_data import load_site_data
from silofl.data.targets import IGNORED
from silofl.errors import DataError

pytestmark = pytest.mark.usefixtures("decoded_here")


def test_a_manifest_holds_its_records_by_part(site, study):
    manifest = read_manifest(site.write(), study())
    assert [record.case for record in manifest.training] == ["a", "b", "c"]
    assert [record.patient for record in manifest.test] == ["e", "f"]
    assert manifest.validation[0].label == "d-mask.png"
    assert (manifest.task, manifest.labels, manifest.split_unit) == ("segmentation", {1: "nucleus"}, "patient")


def test_places_say_where_files_lie(site, study):
    folder = site.write()
    assert read_manifest(folder, study()).places["a.png"] == (folder / "a.png").resolve()


@pytest.mark.parametrize("validation", [{"validation": []}, {}])
def test_validation_may_be_empty(site, study, validation):
    site.content.pop("validation")
    assert read_manifest(site.write(**validation), study()).validation == ()


def test_a_byte_order_mark_is_no_error(site, study):
    path = site.write() / "dataset.json"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert len(read_manifest(site.folder, study()).training) == 3


def test_a_missing_dataset_json_is_called_missing(site, study):
    with pytest.raises(DataError, match="dataset.json of the data folder 'north' must exist; it is not there"):
        read_manifest(site.folder, study())


def test_a_missing_data_folder_is_called_missing(site, study):
    shutil.rmtree(site.folder)
    with pytest.raises(DataError, match="must exist; the folder is not there"):
        read_manifest(site.folder, study())


def test_an_unreadable_dataset_json_is_a_permission_error_not_corrupt_data(site, study, deny):
    folder = site.write()
    deny("dataset.json")
    with pytest.raises(DataError, match="must be readable; permission was denied .*right to read it"):
        read_manifest(folder, study())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"task": "segmentation",', r"must be JSON, not broken at line 1, column \d+"),
        ("task: segmentation", r"must be JSON, not broken at line 1, column 1"),
        ("", "must be JSON, not broken"),
        ('{"training": [], "training": []}', "must give each key once; the key 'training' stands twice"),
        ("[" * 100_000, "must be JSON in UTF-8"),
        ("[]", "must hold an object, not a list"),
        ("3", "must hold an object, not a int"),
    ],
)
def test_a_file_that_is_no_json_object_is_refused(site, study, text, sentence):
    (site.folder / "dataset.json").write_text(text)
    with pytest.raises(DataError, match=sentence):
        read_manifest(site.folder, study())


def test_a_file_in_another_encoding_is_refused(site, study):
    (site.folder / "dataset.json").write_bytes(json.dumps({"task": "Gewebe"}).encode("utf-16"))
    with pytest.raises(DataError, match="must be JSON in UTF-8"):
        read_manifest(site.folder, study())


@pytest.mark.parametrize(
    ("key", "hint"), [("trainig", "did you mean 'training'"), ("split_units", "did you mean 'split_unit'"), ("x", "")]
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(site, study, key, hint):
    with pytest.raises(DataError, match=f"dataset.json must have known keys, not {key!r}.*{hint}"):
        read_manifest(site.write(**{key: []}), study())


@pytest.mark.parametrize("key", ["task", "labels"])
def test_a_missing_key_is_named(site, study, key):
    site.content.pop(key)
    with pytest.raises(DataError, match=f"must have the key '{key}'; it is missing"):
        read_manifest(site.write(), study())


@pytest.mark.parametrize("task", ["classification", "detection"])
def test_another_task_than_the_study_is_refused(site, study, task):
    with pytest.raises(DataError, match=f"must have task 'segmentation' as the study, not '{task}'"):
        read_manifest(site.write(task=task), study())


@pytest.mark.parametrize("labels", [{"1": "cell"}, {"1": "nucleus", "2": "wall"}, {"2": "nucleus"}, ["nucleus"], {}])
def test_other_labels_than_the_study_are_refused(site, study, labels):
    with pytest.raises(DataError, match="must have labels {'1': 'nucleus'} as the study, not"):
        read_manifest(site.write(labels=labels), study())


@pytest.mark.parametrize("unit", ["image", ["slices"]])
def test_an_unknown_split_unit_is_refused(site, study, unit):
    with pytest.raises(DataError, match="a split_unit among patient, recordings, slices, examples, unknown, not"):
        read_manifest(site.write(split_unit=unit), study())


@pytest.mark.parametrize("part", ["training", "test"])
@pytest.mark.parametrize("is_given", [True, False])
def test_an_empty_part_is_refused(site, study, part, is_given):
    site.content.pop(part)
    with pytest.raises(DataError, match=f"must have at least one case in {part}, not 0"):
        read_manifest(site.write(**({part: []} if is_given else {})), study())


@pytest.mark.parametrize("value", [{"image": "a.png"}, "a.png", None])
def test_a_part_that_is_no_list_is_refused(site, study, value):
    with pytest.raises(DataError, match="training in dataset.json must be a list of cases"):
        read_manifest(site.write(training=value), study())


def test_a_wrong_record_is_named_by_its_number_and_part(site, study):
    del site.content["test"][1]["label"]
    with pytest.raises(DataError, match="record 2 of test must have the key 'label'"):
        read_manifest(site.write(), study())


def test_a_record_without_a_patient_is_refused_unless_study_and_data_say_that_patients_are_unknown(site, study):
    for records in (site.content["training"], site.content["test"]):
        for record in records:
            del record["patient"]
    for unit, wanted in ((None, "patient"), ("unknown", "patient"), (None, "unknown")):
        content = {"split_unit": unit} if unit else {}
        with pytest.raises(DataError, match="must have a 'patient', by whom parts are kept apart; it is missing"):
            read_manifest(site.write(**content) if content else site.write(), study(split_unit=wanted))
        site.content.pop("split_unit", None)
    manifest = read_manifest(site.write(split_unit="unknown"), study(split_unit="unknown"))
    assert {record.patient for record in manifest.training} == {None}


def test_messages_hold_no_absolute_paths(site, study, tmp_path):
    (site.folder / "a.png").unlink()
    with pytest.raises(DataError) as error:
        read_manifest(site.write(), study())
    assert str(tmp_path) not in str(error.value)


ORGANS = {1: "organ", 2: "lesion"}


def test_a_site_may_annotate_some_of_the_labels(site, study, tmp_path):
    site.write(labels={"1": "organ", "2": "lesion"}, labels_annotated=[1])
    settings = study(labels=ORGANS)
    assert read_manifest(site.folder, settings).labels_annotated == (1,)
    data = load_site_data(site.folder, settings, tmp_path / "cache")
    assert [part.annotated for part in (data.training, data.validation, data.test)] == [(1,)] * 3
    site.write(labels={"1": "organ", "2": "lesion"}, labels_annotated=[2, 1])
    assert load_site_data(site.folder, settings, tmp_path / "cache").test.annotated is None


def test_a_label_map_holds_no_label_that_is_not_annotated(site, study, tmp_path):
    site.write(labels={"1": "organ", "2": "lesion"}, labels_annotated=[2])
    with pytest.raises(
        DataError,
        match=r"case 'a': a-mask.png must hold the label values 0 \(background\), 2 \(lesion\), not 1; save it with "
        "the study's numbers, and list every label that is drawn in all cases in labels_annotated of dataset.json",
    ):
        load_site_data(site.folder, study(labels=ORGANS), tmp_path / "cache")


@pytest.mark.parametrize("value", [[], [3], [1, 1], ["1"], 1, {"1": "organ"}, [True], None])
def test_labels_that_no_site_can_annotate_are_refused(site, study, value):
    site.write(labels={"1": "organ", "2": "lesion"}, labels_annotated=value)
    with pytest.raises(DataError, match="labels_annotated in dataset.json must list some of the study's labels once"):
        read_manifest(site.folder, study(labels=ORGANS))


def test_pixels_of_the_number_to_ignore_are_ignored_in_all_parts(site, study, tmp_path):
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
    with pytest.raises(DataError, match=r"a-mask.png must hold the label values .*, not 7"):
        load_site_data(site.folder, study(), tmp_path / "cache")


@pytest.mark.parametrize("value", [0, 1, -1, "2", 2.0, True, [2]])
def test_a_number_to_ignore_that_is_a_label_or_none_is_refused(site, study, value):
    site.write(ignore=value)
    with pytest.raises(DataError, match="ignore in dataset.json must be the number of pixels that nobody annotated"):
        read_manifest(site.folder, study())


def test_classes_are_annotated_always(site, study):
    content = {"task": "classification", "labels": {"0": "normal", "1": "tumour"}, "labels_annotated": [0]}
    site.write(**content, training=[], validation=[], test=[])
    with pytest.raises(DataError, match="labels_annotated in dataset.json must go with a segmentation"):
        read_manifest(site.folder, study("classification"))
