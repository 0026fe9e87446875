import json

import numpy as np
import pytest

from silofl.base.errors import StateError
from silofl.base.files import load_state, save_state, save_tensors
from silofl.base.schema import dump_record
from silofl.base.settings import parse
from silofl.federation.checkpoint import FORMAT, checkpoint, restore_run
from silofl.federation.more_rounds import find_obstacle
from silofl.federation.run_folder import RunFolder
from silofl.study import Study

from ..conftest import DROPPING, UNET, assert_alike

pytestmark = pytest.mark.long


def taken_up(game, path):
    """Put a run on the disk, and go on with what comes back."""
    save_state(path, FORMAT, {"run": "run"}, checkpoint(game.server))
    game.server = restore_run(game.study, load_state(path, FORMAT, {"run": "run"}))


def test_a_checkpoint_brings_back_the_whole_run(play, tmp_path):
    game = play(name="harmofl")
    game.rounds(2)
    before = game.server
    assert before.data_profile.intensities
    taken_up(game, tmp_path / "checkpoint.pt")
    back = game.server
    assert_alike(back.parts["model"].common, before.parts["model"].common)
    assert_alike(back.best_parts["model"].common, before.best_parts["model"].common)
    np.testing.assert_array_equal(back.parts["amplitude"].amplitude, before.parts["amplitude"].amplitude)
    assert back.parts["amplitude"].informed == {"east": 2, "north": 2, "west": 2}
    assert back.data_profile == before.data_profile
    assert (back.best_round, back.id, back.sites, back.image_shape) == (1, "run", before.sites, (1, 32, 32))
    assert [dump_record(record) for record in back.ledger] == [dump_record(record) for record in before.ledger]


SGD = {"optimizer": "sgd", "momentum": 0.0}
OPTIONS = {
    "softpull": {"name": "softpull"},
    "adafed": {"name": "adafed", "statistics": {"rounds": 1}},
    "gradients": {"name": "fedsm", "model": {"normalization": "instance"}},
    "falling": {"name": "scaffold", "training": SGD | {"schedule": "poly"}},
    "server's moments": {"name": "fedopt"},
    "moon": {"name": "moon", "training": SGD, "network": UNET},
    "head, then body": {"name": "fedrep", "training": {"local_epochs": 2}},
    "meta-steps": {"name": "perfedavg", "training": {"local_epochs": 2}, "network": DROPPING},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if "network" in OPTIONS[name] else ()) for name in OPTIONS]
)
def test_run_from_its_checkpoint_goes_on_the_same(play, tmp_path, name):
    straight, broken = play(folder="straight", **OPTIONS[name]), play(folder="broken", **OPTIONS[name])
    straight.rounds(3)
    for number in (1, 2):
        broken.round()
        taken_up(broken, tmp_path / f"{number}.pt")
    record = broken.round()
    assert record.weights == straight.server.ledger[-1].weights
    for site in straight.sites:
        assert_alike(broken.models(site), straight.models(site))
    if "selector" in straight.server.parts:
        assert_alike(broken.server.parts["selector"].parameters, straight.server.parts["selector"].parameters)


@pytest.mark.parametrize(("learning", "rounds"), [("moments", (3,)), ("local_steps", (5,))])
def test_lost_round_is_repeated_with_the_same_result(play, tmp_path, learning, rounds):
    selector, model = {"learning": learning, "labels": "best_model"}, {"normalization": "group"}
    options = {"name": "fedsm", "selector": selector, "extra_rounds": 3, "rounds": 2, "model": model}
    straight = play(folder="straight", **options)
    straight.rounds(5)
    for lost in rounds:
        broken = play(folder=f"without {lost}", **options)
        broken.rounds(lost - 1)
        save_state(tmp_path / "before.pt", FORMAT, {"run": "run"}, checkpoint(broken.server))
        # The sites carry the round out and keep what they do; the server ends before it writes anything.
        broken.round()
        broken.server = restore_run(broken.study, load_state(tmp_path / "before.pt", FORMAT, {"run": "run"}))
        broken.rounds(6 - lost)
        for site in straight.sites:
            assert_alike(broken.models(site), straight.models(site))
        assert_alike(broken.server.parts["selector"].parameters, straight.server.parts["selector"].parameters)


def test_an_older_checkpoint_is_refused_in_one_sentence(make_study, tmp_path):
    folder = RunFolder(tmp_path / "run", make_study())
    save_tensors(folder.path / "checkpoint.pt", {"format": 2, "json": "{}"})
    with pytest.raises(StateError, match="^checkpoint.pt has format 3 or older, .* reads 4; go on with the version"):
        folder.load()


# --- the study that a run was begun with


def gone_on(game, **changes):
    """Return a run whose study has changed since its checkpoint."""
    values = game.study.model_dump() | {"algorithm": game.study.algorithm.model_dump()}
    for key, value in changes.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    return restore_run(parse(Study, values, "study.yaml"), checkpoint(game.server))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training": {"learning_rate": 0.5}}, "training.learning_rate was 0.01 and is 0.5"),
        ({"algorithm": {"name": "fedbn"}}, 'algorithm.name was "fedavg" and is "fedbn"'),
        (
            {"torch_threads": 2, "training": {"local_epochs": 2}},
            "torch_threads was 1 and is 2, training.local_epochs was 1 and is 2",
        ),
        ({"algorithm": {"server_lr": 0.5}}, "algorithm.server_lr was absent and is 0.5"),
    ],
)
def test_a_run_does_not_go_on_with_another_study(ended, changes, named):
    with pytest.raises(StateError) as caught:
        gone_on(ended(rounds=2)[0], **changes)
    assert str(caught.value).startswith(f"study.yaml has changed since run run was begun: {named}")


@pytest.mark.parametrize(
    "changes",
    [
        {"continue_run": "run"},
        {"federation": {"task_timeout_s": 5.0, "join_timeout_s": 6.0, "min_sites": 2, "max_missed_rounds": 4}},
        {"rounds": 9},
    ],
)
def test_run_goes_on_with_other_waiting_times_and_rounds(ended, changes):
    server = gone_on(ended(rounds=2)[0], **changes)
    assert server.finished_rounds == 2 and server.study.rounds == changes.get("rounds", 2)


def of_study(game, change):
    """Return a run's checkpoint with a change of what it says of the study's training."""
    state = checkpoint(game.server)
    content = json.loads(state["json"])
    change(content["study"]["training"])
    return state | {"json": json.dumps(content)}


def test_older_run_gets_defaults_of_new_keys(ended):
    game, _ = ended(rounds=2)
    older = of_study(game, lambda training: training.pop("batch_dice"))
    assert restore_run(game.study, older).finished_rounds == 2
    values = game.study.model_dump() | {"algorithm": game.study.algorithm.model_dump()}
    values["training"] |= {"batch_dice": True}
    with pytest.raises(StateError, match="training.batch_dice was false and is true"):
        restore_run(parse(Study, values, "study.yaml"), older)


def test_number_of_rounds_must_keep_finished_ones_valid(ended, monkeypatch):
    game, _ = ended(rounds=2)
    assert gone_on(game, rounds=2).study.rounds == 2
    with pytest.raises(StateError, match="rounds must be at least 2,.* not 1"):
        gone_on(game, rounds=1)
    monkeypatch.setattr("silofl.federation.checkpoint.find_obstacle", lambda before, now, finished: "they were others")
    with pytest.raises(StateError, match="Run run cannot go on to 6 rounds: they were others. Leave rounds at 2, or"):
        gone_on(game, rounds=6)


@pytest.mark.parametrize(
    ("options", "rounds", "obstacle"),
    [
        # The second round was the first of three to come after the mean of all; of six it would be the second of three.
        ({"name": "adafed", "rounds": 3}, 6, "the sites would have shared one model for longer"),
        # Round 2 went on from the shared model alone.
        ({"name": "finetuning", "rounds": 1, "extra_rounds": 2}, 2, "its extra rounds have begun"),
        # A rate that falls to the end of three rounds was not the one of six.
        ({"training": {"schedule": "poly"}}, 6, "its learning rate falls over all its rounds"),
        ({}, 6, ""),
    ],
)
def test_two_rounds_go_on_to_more_unless_they_differ(make_study, options, rounds, obstacle):
    assert find_obstacle(make_study(**options), make_study(**options | {"rounds": rounds}), 2) == obstacle
