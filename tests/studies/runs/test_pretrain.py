import hashlib
import re

import numpy as np
import pytest
from rich.console import Console

from silofl.base.errors import ConfigError
from silofl.base.files import load_tensors
from silofl.command_line.cli import main
from silofl.data.parts import Examples
from silofl_desk.studies.runs.pretrain import draw_share, pretrain
from silofl_desk.studies.runs.simulation import Simulation, check_pretrained, settle_job


def make_part(count):
    names = tuple(f"case{i}" for i in range(count))
    return Examples(np.zeros((count, 1, 1, 4), np.float32), np.arange(count), names, (None,) * count, names)


def test_a_share_is_drawn_by_the_seed_and_never_empty():
    part = make_part(20)
    first, again, other = (draw_share(part, 0.2, seed, "ann") for seed in (0, 0, 1))
    assert len(first) == 4 and first.cases == again.cases != other.cases
    assert len(draw_share(make_part(2), 0.2, 0, "ann")) == 1
    assert draw_share(part, 1.0, 0, "ann").cases == part.cases


@pytest.fixture
def job(write_windows_job):
    return write_windows_job("adafed_activity")


@pytest.fixture
def trained(windows, job, tmp_path, capsys):
    """Pretrain by the command; returns the model and what is printed."""

    def run(out, *options):
        arguments = ["pretrain", job, "--data", windows, "--out", tmp_path / out, *options]
        assert main([str(argument) for argument in arguments]) == 0
        return load_tensors(tmp_path / out), " ".join(capsys.readouterr().out.split())

    return run


def test_a_model_is_trained_on_pooled_training_data_and_says_so_loudly(trained, job, windows, tmp_path):
    state, printed = trained("f.pt", "--share", "0.5", "--epochs", "12")
    # half of 26, 25 and 8 training windows: 13 + 12 + 4
    assert "PRETRAIN: this pools 29 training examples of 3 sites, 50% of each, in one place." in printed
    out = tmp_path / "f.pt"
    assert "12 epochs on 29 examples" in printed and float(re.search(r"accuracy (0\.\d+)", printed)[1]) > 0.7
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    assert f"model.pretrained_sha256: {digest}" in printed and "network.head.weight" in state
    study, simulation = settle_job(job, Simulation(str(windows), pretrained=str(out)), {})
    check_pretrained(job, study, simulation)


def test_the_studys_settings_can_be_changed_as_in_a_run_and_what_it_freezes_is_learnt(trained, tmp_path):
    state, printed = trained("f.pt", "--epochs", 1, "--cache", tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("*/index.json"))) == 3 and ": 1 epoch on " in printed
    other, _ = trained("g.pt", "--epochs", 1, "--set", "training.learning_rate=0.5", "--seed", "3")
    assert not state["network.head.weight"].equal(other["network.head.weight"])
    frozen, _ = trained("h.pt", "--epochs", 1, "--set", "training.frozen=[features.*]")
    assert all(state[name].equal(frozen[name]) for name in state)


@pytest.mark.parametrize(
    ("out", "share", "message"),
    [("f.txt", 0.2, "must be a new file that ends in .pt"), ("f.pt", 0.0, "--share must be above 0 and at most 1")],
)
def test_a_place_or_a_share_that_cannot_be_is_refused(windows, job, tmp_path, out, share, message):
    with pytest.raises(ConfigError, match=message):
        pretrain(job, tmp_path / out, Simulation(str(windows)), {}, share, 1, Console(quiet=True))
