"""Run folders whose JSON files were altered: a page or one sentence, whichever command reads them."""

import json
import shutil

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from silofl.command_line.cli import main
from tests.conftest import JOBS

from .conftest import SECONDS, altered, ends_well

pytestmark = pytest.mark.fuzz
STUDY = {"name": "small", "task": "segmentation", "labels": {1: "blob"}, "rounds": 2, "device": "cpu"}
STUDY |= {"model": {"features": [4] * 6}, "training": {"batch_size": 2}, "algorithm": {"name": "fedsm"}}
FILES = ("results.json", "ledger.json", "run.json", "unseen.json", "data.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, site_data):
    """A finished run of FedSM, with a site that was left out."""
    folder = tmp_path_factory.mktemp("runs")
    job = folder / "job"
    shutil.copytree(JOBS / "fedsm_phantoms", job)
    (job / "app" / "config" / "study.yaml").write_text(yaml.safe_dump(STUDY))
    arguments = ("simulate", job, "--data", site_data, "--out", folder / "run", "--in-process", "--leave-out", "west")
    assert main([str(argument) for argument in arguments]) == 0
    return folder / "run"


@pytest.fixture
def with_altered(finished, capsys):
    """Alter one file of the run, run a command on it, and put the file back."""

    def run(name, random, *command, seconds=SECONDS):
        path = finished / name
        whole = path.read_bytes()
        path.write_text(json.dumps(altered(json.loads(whole), random)))
        try:
            return ends_well(command, capsys, seconds)
        finally:
            path.write_bytes(whole)

    return run


@given(random=st.randoms(use_true_random=False), name=st.sampled_from(FILES))
def test_report_shows_altered_records_or_refuses_them(with_altered, finished, random, name):
    # Figures are work.
    with_altered(name, random, "report", finished, seconds=20)


@given(random=st.randoms(use_true_random=False), name=st.sampled_from(FILES))
def test_resume_shows_altered_records_or_refuses_them(with_altered, finished, random, name):
    # What is missing is computed again.
    with_altered(name, random, "resume", finished, seconds=60)


@given(random=st.randoms(use_true_random=False))
def test_predict_refuses_an_altered_super_model_or_labels_with_it(with_altered, finished, tmp_path, random):
    out, case = tmp_path / "out", tmp_path / "case.png"
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(case)
    shutil.rmtree(out, ignore_errors=True)
    with_altered("supermodel/model.json", random, "predict", finished / "supermodel", case, "--out", out)
