"""AdaFed in one process and in NVFlare's simulator, on windows of two movements at three sites."""

import json

import numpy as np
import pytest
import torch

from .conftest import carried_out

pytestmark = pytest.mark.long


def batchnorm_of(run, site):
    state = torch.load(next((run / "sites" / site).glob("*/supermodel/weights/*.pt")), weights_only=True)
    return {name: value for name, value in state.items() if ".running_" in name}


@pytest.mark.parametrize("way", [["--in-process"], pytest.param([], id="simulator", marks=pytest.mark.slow)])
def test_a_study_from_a_pretrained_model_to_the_heat_map(windows, write_windows_job, tmp_path, way):
    f, run, job = tmp_path / "f.pt", tmp_path / "run", write_windows_job("adafed_activity")
    carried_out("pretrain", job, "--data", windows, "--out", f, "--epochs", 5)
    carried_out("simulate", job, "--data", windows, "--out", run, "--pretrained", f, *way)
    (record,) = json.loads((run / "weights.json").read_text())
    assert record["without"] == {}
    weights, distances = np.array(record["weights"]), np.array(record["distances"])
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_allclose(np.diag(weights), 0.5)
    # The nearer of two others is listened to more.
    assert all((np.argsort(-row) == np.argsort(apart)).all() for row, apart in zip(weights, distances, strict=True))
    results = json.loads((run / "results.json").read_text())
    assert results["status"] == "COMPLETE" and results["split_unit"] == "recordings"
    assert json.loads((run / "ledger.json").read_text())[0]["notes"] == []
    assert "Who listens to whom" in (run / "report.html").read_text()
    left, right = (batchnorm_of(run, site) for site in ("ann", "bob"))
    assert all(not torch.equal(left[name], right[name]) for name in left)
