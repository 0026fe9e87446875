"""From a hospital's folders with several contrasts of a case to a model: import, new-study, simulate."""

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from silofl.study import load_study
from silofl_desk.studies.simulation import study_file
from tests.conftest import count_cases

from ..conftest import SMALL_UNET

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here", "undrawn")]
JOB = Path(__file__).resolve().parents[2] / "jobs" / "fedavg_phantoms"
PATTERNS = ["--image-pattern", "T1={case}/t1.nii.gz", "--image-pattern", "T2={case}/t2.nii.gz"]
PATTERNS += ["--mask-pattern", "{case}/seg.nii.gz"]


def write_cases(site, seed):
    """Write five patients with an organ (1) and a lesion (4) in it; the last one has no T2."""
    rng = np.random.default_rng(seed)
    for number in range(5):
        folder = site / f"p{number}"
        folder.mkdir(parents=True)
        mask = np.zeros((32, 32, 2), np.uint8)
        row, column = rng.integers(2, 14, 2)
        mask[row : row + 16, column : column + 16] = 1
        mask[row + 5 : row + 11, column + 5 : column + 11] = 4
        for name, lesion in (("t1", 0), ("t2", 400)):
            volume = rng.normal(300, 30, mask.shape) + 300 * (mask > 0) + lesion * (mask == 4)
            nibabel.save(nibabel.Nifti1Image(volume.astype(np.int16), np.eye(4)), folder / f"{name}.nii.gz")
        nibabel.save(nibabel.Nifti1Image(mask, np.eye(4)), folder / "seg.nii.gz")
    (site / "p4" / "t2.nii.gz").unlink()
    (site / "patients.csv").write_text("file,patient\n" + "".join(f"p{n},{n}\n" for n in range(5)))


def test_contrasts_come_from_folders_into_a_study_that_trains(silofl, tmp_path):
    for seed, site in enumerate(("clinic", "ward")):
        write_cases(tmp_path / "source" / site, seed)
    data, job, run = tmp_path / "data", tmp_path / "own", tmp_path / "run"
    code, _, error = silofl("import", "folders", tmp_path / "source", data, *PATTERNS, "--labels", "1=organ,4=lesion")
    assert (code, error) == (0, "")
    assert silofl("new-study", data, job, "--from", JOB)[0] == 0
    study = load_study(study_file(job))
    assert (study.data.channel_names, study.labels) == (("T1", "T2"), {1: "organ", 2: "lesion"})
    tiny = ["--rounds", 1, "--set", f"model={json.dumps(SMALL_UNET)}", "--set", "device=cpu", "--set", "guard=false"]
    assert silofl("simulate", job, "--data", data, "--out", run, "--alone", *tiny)[0] == 0
    results = json.loads((run / "results.json").read_text())
    # a fifth of five patients for the test
    assert (results["status"], count_cases(results)) == ("COMPLETE", {"clinic": 1, "ward": 1})
    assert set(results["sites"]["clinic"]["labels"]) == {"organ", "lesion"}
