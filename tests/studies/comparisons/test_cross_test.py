import json
import shutil

import pytest
import torch

from ...conftest import SMALL_UNET
from ..conftest import JOB

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def data(phantoms, tmp_path):
    return shutil.copytree(phantoms, tmp_path / "data", ignore=shutil.ignore_patterns(".silofl*"))


@pytest.mark.timeout(120)
def test_local_training_has_on_the_diagonal_what_its_run_reports_wherever_its_data_are_now(
    silofl, refused, data, tmp_path, monkeypatch
):
    run, small = tmp_path / "run", ["--set", f"model={json.dumps(SMALL_UNET)}", "--set", "baseline_comparison=false"]
    small += ["--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]", "--set", "algorithm={name: local}"]
    options = ["--data", data, "--out", "run", "--in-process", "--rounds", 1, "--cache", "cache", *small]
    assert silofl("simulate", JOB, *options)[0] == 0
    torch.manual_seed(0)
    code, out, _ = silofl("cross-test", "run", "--json")
    printed, written = json.loads(out), json.loads((run / "cross_test.json").read_text())
    sites = json.loads((run / "results.json").read_text())["sites"]
    assert code == 0 and printed == written and list(written["values"]) == ["north", "south"]
    # What a site reports has three decimals.
    assert {site: round(written["values"][site][site], 3) for site in sites} == {
        site: one["value"] for site, one in sites.items()
    }
    # Other data than the run learnt from are refused.
    other = shutil.copytree(data, tmp_path / "other")
    (other / "south" / "dataset.json").write_text((data / "south" / "dataset.json").read_text() + "\n")
    error = silofl("cross-test", "run", "--data", other)[2]
    assert "run learnt from other data of 'south' than those in" in error
    moved = data.rename(tmp_path / "moved")
    error = refused("cross-test", "run")
    assert f"Folder {data} of the sites' data is not there. Name it with --data." in error
    code, out, _ = silofl("cross-test", "run", "--data", moved)
    assert code == 0 and "model of" in out and "all sites" in out


def test_what_is_no_finished_simulation_is_refused(refused, tmp_path):
    (tmp_path / "run").mkdir()
    assert "holds no simulation; run.json is missing" in refused("cross-test", "run")
    (tmp_path / "run" / "run.json").write_text("{}")
    assert "has no result yet. Finish the run with silofl resume" in refused("cross-test", "run")
