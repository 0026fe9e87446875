import hashlib
import json

import pytest
import torch
import yaml

from silofl.base.errors import ConfigError
from silofl.base.files import save_tensors
from silofl_desk.studies.simulation import study_file
from silofl_desk.studies.weights import find_weights_file, with_weights

from ..conftest import SMALL_UNET
from .conftest import JOB


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


def test_a_bundle_gives_its_model_and_nothing_of_its_configs_is_read(tmp_path, model):
    path = model("bundle", "models", "model.pt")
    (tmp_path / "bundle" / "configs").mkdir()
    (tmp_path / "bundle" / "configs" / "inference.json").write_text('{"a": "$print(1)"')
    assert find_weights_file(tmp_path / "bundle") == path


def test_a_run_of_several_models_is_refused_with_the_name_of_one(tmp_path, model):
    model("run", "model", "best-north.pt"), model("run", "model", "best-south.pt")
    with pytest.raises(ConfigError, match=r"which has 2 files of models; name one of them, as .*model/best-north\.pt"):
        find_weights_file(tmp_path / "run")


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
    error = refused("simulate", JOB, "--data", phantoms, "--out", out, "--weights", model("w.pt"), "--alone")
    assert "weights.pt must hold weights" not in error and "w.pt must hold weights of study 'fedavg_phantoms'" in error
    assert not out.exists()


def test_a_simulation_says_what_is_from_the_file(silofl, phantoms, undrawn, tmp_path):
    first = tmp_path / "first"
    options = ["--data", phantoms, "--rounds", "1", "--alone"]
    options += ["--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]"]
    small = ["--set", f"model={json.dumps(SMALL_UNET)}", "--set", "guard=false"]
    assert silofl("simulate", JOB, "--out", first, *options, *small)[0] == 0
    # A network of the same names, the first level wider: what touches it has other shapes.
    arguments = {"channels": [8, 4], "strides": [2]}
    wider = ["--set", f"model={json.dumps(SMALL_UNET | {'arguments': arguments})}", "--set", "guard=false"]
    code, out, _ = silofl("simulate", JOB, "--out", tmp_path / "next", *options, *wider, "--weights", first)
    assert code == 0
    sentence = next(line for line in out.splitlines() if line.startswith("everybody starts from"))
    assert "tensors are not in weights.pt by name and shape, and start from the seed: network." in sentence
    job = tmp_path / "next" / "job"
    study = yaml.safe_load(study_file(job).read_text())["model"]
    best = (first / "model" / "best.pt").read_bytes()
    assert study["weights_sha256"] == hashlib.sha256(best).hexdigest()
    assert study_file(job).with_name("weights.pt").read_bytes() == best


def test_every_row_of_a_comparison_without_a_pretrained_model_starts_from_the_weights(silofl, model, monkeypatch):
    seen = []
    monkeypatch.setattr("silofl_desk.studies.compare.compare", lambda asked, *rest: seen.append(asked) or 0)
    silofl("compare", JOB, "--out", "new", "--weights", model("w.pt"))
    assert seen[0].weights == str(model("w.pt"))
