import json

import pytest

from silofl.base.errors import DataError
from silofl_hospital.site.data import check_data
from tests.conftest import change_json


def test_cases_labels_and_patients_are_counted_by_part(candidate):
    answer = check_data(candidate())
    assert answer.status == "ok" and "5 training, 2 validation, 2 test cases" in answer.sentence
    assert answer.facts["patients"] == answer.facts["cases"] == {"training": 5, "validation": 2, "test": 2}
    assert answer.facts["labels"] == {"training": {"blob": 5}, "validation": {"blob": 2}, "test": {"blob": 2}}
    assert answer.facts["image_shape"] == [1, 32, 32]


def test_too_few_test_patients_for_a_verdict_are_a_warning(candidate):
    answer = check_data(candidate(baseline_comparison=True))
    assert answer.status == "warning"
    assert answer.sentence.startswith(
        "a verdict on joining takes at least 20 test patients per site, not 2 (north): put"
    )


def test_an_absent_label_and_an_empty_part_are_warnings(candidate, pictures):
    labels, path = {"1": "blob", "2": "spot"}, pictures / "dataset.json"
    change_json(path, labels=labels)
    answer = check_data(candidate(labels=labels))
    assert answer.status == "warning" and "no training case has spot;" in answer.sentence
    # Who has said that nobody drew it need not look.
    change_json(path, labels_annotated=[1])
    assert check_data(candidate(labels=labels)).status == "ok"
    change_json(path, validation=[])
    assert "no validation case is there" in check_data(candidate(labels=labels)).sentence


def test_unknown_patients_are_said_and_one_in_two_parts_refused(candidate, pictures):
    path = pictures / "dataset.json"
    text = path.read_text()
    path.write_text(text.replace('"patient": "secret-test0"', '"patient": "secret-training0"'))
    with pytest.raises(DataError, match="secret-training0"):
        check_data(candidate())
    content = json.loads(text) | {"split_unit": "unknown"}
    for part in ("training", "validation", "test"):
        for record in content[part]:
            del record["patient"]
    path.write_text(json.dumps(content))
    answer = check_data(candidate(data={"split_unit": "unknown"}))
    assert answer.facts["patients"] == {"training": 0, "validation": 0, "test": 0}
    assert "the patients are unknown, and one may be in two" in answer.sentence
