import json

import pytest

from ..conftest import SMALL_UNET
from .conftest import carried_out, silofl, write_small_job

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here", "undrawn")]


def fingerprint(folder):
    return json.loads((folder / "model.json").read_text())["fingerprint"]


def site_folders(run):
    return sorted((run / "sites").glob("*/*/supermodel"))


@pytest.fixture(scope="module")
def small_fedsm(tmp_path_factory):
    return write_small_job(tmp_path_factory.mktemp("jobs") / "job", "fedsm_phantoms")


@pytest.mark.parametrize("way", [["--in-process"], pytest.param([], id="simulator", marks=pytest.mark.slow)])
def test_every_site_ends_with_the_servers_super_model_which_predicts_a_scan(tmp_path, phantoms, small_fedsm, way):
    run, out = tmp_path / "run", tmp_path / "out"
    small = ("--set", f"model={json.dumps(SMALL_UNET)}")
    results = json.loads(carried_out("simulate", small_fedsm, "--data", phantoms, "--out", run, "--json", *small, *way))
    assert results["status"] == "COMPLETE" and results["super_model"]["threshold_without"] == {}
    assert len(site_folders(run)) == 2
    assert {fingerprint(folder) for folder in site_folders(run)} == {fingerprint(run / "supermodel")}
    for one in results["sites"].values():
        assert one["models"]["super"] == one["value"] and set(one["labels"]) == {"organ", "lesion"}
    scan = min((phantoms / "north" / "images").iterdir())
    printed = carried_out("predict", run / "supermodel", scan, "-o", out, "--picture")
    (record,) = json.loads((out / "prediction.json").read_text())
    assert record["model"] in ("global", "north", "south") and record["model"] in printed
    names = {"prediction.json", "prediction.lock", record["label_map"], record["picture"]}
    assert {path.name for path in out.iterdir()} == names


@pytest.mark.slow
def test_the_extra_rounds_train_the_selector_alone(tmp_path, phantoms):
    extra = {"name": "fedsm", "selector": {"labels": "best_model", "steps": 2}, "extra_rounds": 2}
    job, run = write_small_job(tmp_path / "job", "fedsm_phantoms", rounds=2, algorithm=extra), tmp_path / "run"
    results = json.loads(silofl("simulate", job, "--data", phantoms, "--out", run, "--json").stdout)
    found = results["super_model"]
    assert found["outputs"] == ["global", "north", "south"] and found["threshold"] is None
    ledger = json.loads((run / "ledger.json").read_text())
    assert [record["round"] for record in ledger] == [1, 2, 3, 4]
    assert ledger[0]["bytes_to"] == ledger[1]["bytes_to"]
    # all models come before the first extra round, and stay; after that the selector travels alone
    alone = ledger[3]["bytes_to"]
    assert ledger[2]["bytes_to"]["north"] > alone["north"]
    assert alone == ledger[2]["bytes_from"] == ledger[3]["bytes_from"]
    assert set(ledger[2]["metrics"]["north"]) == {"loss"} and ledger[2]["validation"] == {}
