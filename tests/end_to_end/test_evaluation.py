"""A model that two hospitals trained is tested at a third one, without training, in process and by NVFlare."""

import json

import pytest

from silofl.data.phantoms import make_phantoms
from silofl.federation.results import read_results
from silofl.files import read_json

from .conftest import carried_out, find_super_model, silofl


@pytest.fixture(scope="module")
def third(tmp_path_factory):
    """A hospital that took no part, and has nothing but test cases."""
    data = make_phantoms(tmp_path_factory.mktemp("third") / "data", seed=8, patients={"east": 8})
    path = data / "east" / "dataset.json"
    content = json.loads(path.read_text())
    parts = {"training": [], "validation": [], "test": content["training"] + content["validation"] + content["test"]}
    path.write_text(json.dumps(content | parts))
    return data


@pytest.mark.slow
def test_a_third_hospital_tests_the_model_without_training(finished, third, tmp_path):
    model, job = find_super_model(finished[0]), tmp_path / "job"
    said = carried_out("evaluation-job", model, "--out", job)
    assert f"simulate {job}" in said
    arguments = ("simulate", job, "--data", third, "--sites", "east")
    printed = carried_out(*arguments, "--alone", "--out", tmp_path / "alone")
    silofl(*arguments, "--out", tmp_path / "flare")
    # of one hospital's own cases, at its desk
    carried_out("evaluate", model, third / "east", "--out", tmp_path / "desk")
    found, desk = read_json(tmp_path / "alone" / "evaluations.json"), read_json(tmp_path / "desk" / "evaluation.json")
    assert found == read_json(tmp_path / "flare" / "evaluations.json")
    assert found["fingerprint"] == desk["fingerprint"] and found["sites"]["east"]["num_cases"] == 8
    assert found["sites"]["east"]["scores"][""]["dice"] == desk["value"]
    assert found["sites"]["east"]["scores"]["organ"]["hd95"] == desk["labels"]["organ"]["hd95"]
    results = read_results(tmp_path / "flare")
    assert results.status == "COMPLETE" and results.rounds == 0 and results.sites["east"] == desk["value"]["value"]
    page = (tmp_path / "flare" / "report.html").read_text()
    for text in ("What hospitals say", "lesions found", "over all", "nothing was trained", "no medical device"):
        assert text in page and text in printed + page
    # A cases' table stays at the hospital.
    (cases,) = (tmp_path / "flare" / "sites").rglob("cases.csv")
    assert cases.read_text().count("\n") == 9
