import hashlib

import pytest
import torch

from silofl.base.errors import ConfigError
from silofl.base.files import save_tensors
from silofl_desk.studies.runs.weights import find_weights_file, with_weights

from ..conftest import JOB


@pytest.fixture
def model(tmp_path):
    """Write a file of one tensor."""

    def write(*place):
        path = tmp_path.joinpath(*place)
        save_tensors(path, {"a": torch.zeros(1)})
        return path

    return write


def test_a_file_is_itself_and_folders_have_their_one_model(tmp_path, model):
    plain, run = model("w.pt"), model("run", "model", "best.pt")
    assert find_weights_file(plain) == plain and find_weights_file(tmp_path / "run") == run


@pytest.mark.parametrize("name", ["absent", "empty", "w.txt"])
def test_what_holds_no_weights_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "w.txt").write_text("weights")
    with pytest.raises(ConfigError, match="--weights must be a file"):
        find_weights_file(tmp_path / name)


def test_the_study_settles_the_file_by_its_checksum(model):
    path = model("w.pt")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    changes = with_weights({"rounds": 2}, str(path))
    assert changes == {"rounds": 2, "model.weights": "weights.pt", "model.weights_sha256": digest}
    assert with_weights({"rounds": 2}, None) == {"rounds": 2}


def test_weights_that_fit_nowhere_are_refused_before_anything_is_written(refused, phantoms, model, tmp_path):
    out = tmp_path / "run"
    error = refused("simulate", JOB, "--data", phantoms, "--out", out, "--weights", model("w.pt"), "--in-process")
    assert "weights.pt holds" not in error and "w.pt holds" in error
    assert not out.exists()
