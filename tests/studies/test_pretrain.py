import hashlib
import json

import numpy as np
import pytest
import yaml
from rich.console import Console

from silofl.cli import main
from silofl.data.parts import Examples
from silofl.errors import ConfigError
from silofl.files import load_tensors
from silofl.studies.pretrain import draw_share, pretrain
from silofl.studies.simulation import Simulation, check_pretrained, settle_job


def make_part(count):
    names = tuple(f"case{i}" for i in range(count))
    return Examples(np.zeros((count, 1, 1, 4), np.float32), np.arange(count), names, (None,) * count, names)


def test_a_share_is_drawn_by_the_seed_and_never_empty():
    part = make_part(20)
    first, again, other = (draw_share(part, 0.2, seed, "ann") for seed in (0, 0, 1))
    assert len(first) == 4 and first.cases == again.cases != other.cases
    assert len(draw_share(make_part(2), 0.2, 0, "ann")) == 1
    assert draw_share(part, 1.0, 0, "ann").cases == part.cases


def test_a_model_is_trained_on_pooled_training_data_and_says_so_loudly(windows, write_windows_job, tmp_path, capsys):
    job, out = write_windows_job("adafed_activity"), tmp_path / "f.pt"
    arguments = ["pretrain", str(job), "--data", str(windows), "--out", str(out), "--share", "0.5", "--epochs", "12"]
    assert main(arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    # half of 26, 25 and 8 training windows: 13 + 12 + 4
    assert "PRETRAIN: this pools 29 training examples of 3 sites, 50% of each, in one place." in printed
    facts = json.loads(out.with_suffix(".json").read_text())
    assert (facts["examples"], facts["epochs"], facts["sites"]) == (29, 12, ["ann", "bob", "eva"])
    assert facts["accuracy"] > 0.7 and facts["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert f"model.pretrained_sha256: {facts['sha256']}" in printed
    study, simulation = settle_job(job, Simulation(str(windows), pretrained=str(out)), {})
    check_pretrained(job, study, simulation)
    state = load_tensors(out)
    assert "network.head.weight" in state


def test_images_are_decoded_into_the_folder_that_is_named(windows, write_windows_job, tmp_path, capsys):
    job, cache = write_windows_job("adafed_activity"), tmp_path / "cache"
    arguments = ["pretrain", job, "--data", windows, "--out", tmp_path / "f.pt", "--epochs", 1, "--cache", cache]
    assert main([str(argument) for argument in arguments]) == 0
    assert len(list(cache.glob("*/index.json"))) == 3 and ": 1 epoch on " in " ".join(capsys.readouterr().out.split())


def test_the_studys_settings_can_be_changed_as_in_a_run(windows, write_windows_job, tmp_path):
    job, states = write_windows_job("adafed_activity"), []
    for name, changes in {"f": [], "g": ["--set", "training.learning_rate=0.5", "--seed", "3"]}.items():
        out = tmp_path / f"{name}.pt"
        arguments = ["pretrain", job, "--data", windows, "--out", out, "--epochs", 1, *changes]
        assert main([str(argument) for argument in arguments]) == 0
        states.append(load_tensors(out))
    facts = json.loads((tmp_path / "g.json").read_text())
    assert facts["changes"] == {"training.learning_rate": 0.5, "seed": 3} and facts["seed"] == 3
    assert not states[0]["network.head.weight"].equal(states[1]["network.head.weight"])


def test_a_pretrained_model_learns_what_the_study_freezes(windows, write_windows_job, tmp_path):
    job, states = write_windows_job("adafed_activity"), []
    for name, changes in {"f": [], "g": ["--set", "training.frozen=[features.*]"]}.items():
        out = tmp_path / f"{name}.pt"
        arguments = ["pretrain", job, "--data", windows, "--out", out, "--epochs", 1, *changes]
        assert main([str(argument) for argument in arguments]) == 0
        states.append(load_tensors(out))
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


@pytest.mark.parametrize(
    ("out", "share", "message"),
    [("f.txt", 0.2, "must be a new file that ends in .pt"), ("f.pt", 0.0, "--share must be above 0 and at most 1")],
)
def test_a_place_or_a_share_that_cannot_be_is_refused(windows, write_windows_job, tmp_path, out, share, message):
    job = write_windows_job("adafed_activity")
    with pytest.raises(ConfigError, match=message):
        pretrain(job, tmp_path / out, Simulation(str(windows)), {}, share, 1, Console(quiet=True))


def test_a_study_without_its_pretrained_model_is_refused_before_any_round(windows, write_windows_job, tmp_path):
    job = write_windows_job("adafed_activity")
    study, simulation = settle_job(job, Simulation(str(windows)), {})
    with pytest.raises(ConfigError, match="with silofl pretrain, then put it there or give --pretrained$"):
        check_pretrained(job, study, simulation)


def test_a_pretrained_model_that_would_do_nothing_is_refused(windows, write_windows_job, tmp_path):
    job = write_windows_job("adafed_activity", {"name": "fedbn"})
    study, simulation = settle_job(job, Simulation(str(windows), pretrained="f.pt"), {})
    with pytest.raises(ConfigError, match="--pretrained must go with a study that needs a pretrained model"):
        check_pretrained(job, study, simulation)


def test_a_pretrained_model_begins_with_the_seeds_weights(windows, write_windows_job, tmp_path):
    job = write_windows_job("adafed_activity", {"name": "fedbn"})
    path = job / "app" / "config" / "study.yaml"
    values = yaml.safe_load(path.read_text())
    values["model"] |= {"weights": "w.pt", "weights_sha256": "0" * 64}
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match="model.weights must be left out for a pretrained model"):
        pretrain(job, tmp_path / "f.pt", Simulation(str(windows)), {}, 0.2, 1, Console(quiet=True))
