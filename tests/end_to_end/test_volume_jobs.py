"""The shipped jobs in 3D on fewer phantoms: from the job's folder to a result and a whole volume's labels."""

import json

import numpy as np
import pytest

from silofl_desk.phantoms.phantoms import VOLUMES, make_phantoms
from tests.conftest import SMALL_UNET, count_cases
from tests.end_to_end.conftest import JOBS, carried_out, find_super_model, predicted

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here", "undrawn")]

SITES = ("north", "west")
SMALL = (
    f"model={json.dumps(SMALL_UNET)}",
    "data.patches.per_volume=2",
    "training.local_epochs=1",
    "training.batch_size=2",
    "rounds=1",
    "baseline_comparison=false",
)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Volumes of two sites with 6 patients each, of whom one is in training and three are in the test."""
    return make_phantoms(tmp_path_factory.mktemp("volumes") / "data", patients=dict.fromkeys(SITES, 6), kind=VOLUMES)


@pytest.mark.parametrize("job", ["harmofl_volumes", pytest.param("fedsm_volumes", marks=pytest.mark.slow)])
def test_a_shipped_job_trains_volumes_and_labels_a_whole_one(volumes, tmp_path, job):
    changes = [text for one in SMALL for text in ("--set", one)]
    run = tmp_path / "run"
    carried_out("simulate", JOBS / job, "--data", volumes, "--out", run, "--in-process", *changes)
    results = json.loads((run / "results.json").read_text())
    assert results["status"] == "COMPLETE" and count_cases(results) == dict.fromkeys(SITES, 3)
    record = json.loads((volumes / "north" / "dataset.json").read_text())["test"][0]
    scan = {name: volumes / "north" / path for name, path in zip(("T1", "T2"), record["image"], strict=True)}
    found = predicted(find_super_model(run), scan, scan["T1"], tmp_path / "out")
    assert {*np.unique(found)} <= {0, 1, 2}
