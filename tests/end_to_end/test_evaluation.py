"""A model that some hospitals trained is tested at another one, without training: in process, by NVFlare and TLS."""

import json

import numpy as np
import pytest

from provisioning.fill_kits import Contents, fill_kit
from provisioning.make_kits import make_kits, make_project
from provisioning.network import Network
from provisioning.workspace import PROJECT, find_kits, kits_folder
from silofl.base.files import read_json
from silofl.federation.results import read_results
from silofl_desk.phantoms.stains import make_stains

from ..provisioning.conftest import write_wheels
from .conftest import carried_out, silofl


@pytest.fixture(scope="module")
def stains(tmp_path_factory):
    """Five hospitals with two classes of tissue, and a model of four of them: with thresholds, and a rule of its use.

    Of the patients of north only four are left for the test.
    """
    folder = tmp_path_factory.mktemp("stains")
    data = make_stains(folder / "data")
    rule = {"operating_point": {"specificity": 0.8}, "do_not_use": {"on_unlike_image": True, "label_below": 0.5}}
    rule |= {"algorithm": {"name": "fedavg"}}
    changes = [part for key, value in rule.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    sites = ("--sites", "north,east,south,west", "--rounds", "6")
    arguments = ("--data", data, *sites, *changes, "--out", folder / "run", "--in-process")
    carried_out("simulate", "harmofl_stains", *arguments)
    path = data / "north" / "dataset.json"
    content = json.loads(path.read_text())
    first = sorted({record["patient"] for record in content["test"]})[:4]
    content["test"] = [record for record in content["test"] if record["patient"] in first]
    path.write_text(json.dumps(content))
    return data, folder / "run" / "supermodel"


@pytest.mark.slow
def test_a_fifth_hospital_tests_a_classification_over_tls_at_the_threshold_that_travels(stains, tmp_path, free_port):
    (data, model), job = stains, tmp_path / "job"
    carried_out("evaluation-job", model, "--out", job)
    operating_point = read_json(model / "model.json")["calling"]
    assert operating_point["temperature"] != 1 and operating_point["thresholds"].keys() == {"large"}
    project = make_project(PROJECT, "localhost", free_port())
    for one in project["participants"]:
        one["name"] = "midland" if one["name"] == "south" else one["name"]
    folder = make_kits(project, tmp_path / "workspace")
    wheel = write_wheels(tmp_path)
    for kit in find_kits(kits_folder(folder)):
        fill_kit(kit, Contents(wheel, data_root=data))
    with Network(folder, tmp_path / "logs") as network:
        number, status = network.run_job(job, 300)
        (path,) = network.download(number, tmp_path / "results", "lead").rglob("results.json")
    found = read_json(path.with_name("evaluations.json"))
    assert status == "FINISHED:COMPLETED" and [*found["sites"]] == ["east", "midland"]
    (reason,) = read_results(path.parent).reasons
    assert "north did not test the model" in reason and "evaluation leave only from 5 patients" in reason

    # at the desk of midland, which took no part in the training
    assert silofl("evaluate", model, data / "midland", "--part", "test", "--out", tmp_path / "desk").returncode == 0
    desk, ours = read_json(tmp_path / "desk" / "evaluation.json"), found["sites"]["midland"]["scores"]
    large, of_all = ours["large"], ours[""]
    for name in ("recall", "specificity", "auroc", "average_precision"):
        assert large[name] == desk["scores"]["large"][name]
    assert all(of_all[name] == desk["scores"][""][name] for name in ("accuracy", "ece"))
    # by the threshold that the model brought, from the table of cases
    decision_thresholds = found["decision_thresholds"]["large"]
    assert (decision_thresholds, found["temperature"]) == (
        desk["decision_thresholds"]["large"],
        operating_point["temperature"],
    )
    (kept,) = (data / ".silofl").rglob("midland/*/cases.csv")
    rows = [line.split(",") for line in kept.read_text().splitlines()]
    columns = {name: np.array([row[rows[0].index(name)] for row in rows[1:]]) for name in rows[0]}
    is_called = columns["probability of large"].astype(float) >= decision_thresholds - 1e-6
    is_large = columns["true class"] == "large"
    assert large["recall"]["value"] == pytest.approx(is_called[is_large].mean())
    assert large["specificity"]["value"] == pytest.approx(1 - is_called[~is_large].mean())

    # What left are scores alone.
    (record,) = (data / ".silofl").rglob("midland/*/egress.jsonl")
    records = [json.loads(line) for line in record.read_text().splitlines()]
    assert [one["kind"] for one in records] == ["evaluation", "numbers"] and not any(one["refused"] for one in records)
    (record,) = (data / ".silofl").rglob("north/*/egress.jsonl")
    assert [json.loads(line)["kind"] for line in record.read_text().splitlines()][-1] == "reason"

    carried_out("report", path.parent)
    page = path.with_name("report.html").read_text()
    for text in (
        f"calls large from a probability of {decision_thresholds:.3g} on",
        f"temperature, {operating_point['temperature']:.2f}",
        "chosen at each hospital on these very cases",
    ):
        assert text in page, text
