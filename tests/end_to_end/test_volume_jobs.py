"""The shipped jobs in 3D on fewer phantoms: from the job's folder to a result and a whole volume's labels."""

import json

import nibabel as nib
import numpy as np
import pytest

from silofl.cli import main
from silofl.data.phantoms import VOLUMES, make_phantoms
from tests.end_to_end.conftest import JOBS

pytestmark = pytest.mark.long

SITES = ("north", "west")
SMALL = (
    "model.features=[4, 4, 4, 4, 4, 4]",
    "data.patches.per_volume=2",
    "training.local_epochs=1",
    "training.batch_size=2",
    "rounds=1",
)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Volumes of two sites with 6 patients each, of whom one is in training and three are in the test."""
    return make_phantoms(tmp_path_factory.mktemp("volumes") / "data", patients=dict.fromkeys(SITES, 6), kind=VOLUMES)


@pytest.mark.parametrize(("job", "guard"), [("harmofl_volumes", "true"), ("fedsm_volumes", "false")])
def test_a_shipped_job_trains_volumes_and_labels_a_whole_one(volumes, tmp_path, job, guard):
    changes = [text for one in (*SMALL, f"guard={guard}") for text in ("--set", one)]
    run = tmp_path / "run"
    assert main(["simulate", str(JOBS / job), "--data", str(volumes), "--out", str(run), "--alone", *changes]) == 0
    results = json.loads((run / "results.json").read_text())
    assert results["status"] == "COMPLETE" and results["cases"] == dict.fromkeys(SITES, 3)
    assert {*results.get("joining", ())} == ({*SITES} if guard == "true" else set())
    models = run / "supermodel" if (run / "supermodel").is_dir() else next(run.rglob("supermodel"))
    record = json.loads((volumes / "north" / "dataset.json").read_text())["test"][0]
    t1, t2 = (volumes / "north" / name for name in record["image"])
    out = tmp_path / "out"
    assert main(["predict", str(models), f"T1={t1},T2={t2}", "--out", str(out)]) == 0
    (path,) = out.rglob("*_labels.nii.gz")
    found, scan = nib.load(path), nib.load(t1)
    assert found.shape == scan.shape and {*np.unique(found.dataobj)} <= {0, 1, 2}
    np.testing.assert_allclose(found.affine, scan.affine, atol=1e-4)
