import json

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.adafed import adafed_weights, distances
from silofl.algorithms.adafed.statistics import StatisticsPart
from silofl.base.errors import ConfigError
from silofl.models import build_plain_model
from silofl.parts.load import start_parts
from silofl.parts.task import Message

from ...conftest import UNET, assert_alike

NAME = "model/network.model.2.conv.weight"


@pytest.fixture
def part(make_study):
    """The server half, which knows the statistics of a, b and c."""
    study = make_study(rounds=4, name="adafed")
    empty = start_parts(study, "abc", None)["statistics"]
    statistics = {site: random_statistics(empty, seed) for seed, site in enumerate("abc")}
    return StatisticsPart(study, empty.sizes, statistics=statistics)


def random_statistics(part, seed):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=size), rng.uniform(1, 2, size)) for size in part.sizes]


def sharing(**by_site):
    """Return a change of what some sites answer when they are asked for statistics."""

    def change(task, site, answer):
        return by_site[site](answer) if task == "statistics" and site in by_site else answer

    return change


def sending(spoil):
    return lambda answer: Message(spoil(answer.arrays), answer.meta)


def is_asked(game):
    """Return the sites that were asked for statistics the last time, and forget it."""
    return sorted(game.sent.pop("statistics", {}))


# --- the weights


def test_weights_are_adafeds_of_the_sites_that_are_present(part):
    def weights(sites):
        return part.weights("model", 3, sites, run=None)

    statistics = [random_statistics(part, seed) for seed in range(3)]
    np.testing.assert_allclose(weights("abc"), adafed_weights(distances(statistics), 0.5))
    # lambda stays on the diagonal, and of the two that are left each has the whole rest of the other's row
    np.testing.assert_allclose(weights("ac"), [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_array_equal(weights("b"), [[1]])


def test_the_shared_rounds_and_other_roles_are_not_its_own(part):
    # of 4 rounds, half are shared
    assert part.weights("model", 2, "abc", None) is None and part.weights("global", 3, "abc", None) is None
    assert part.weights("model", 3, "abc", None) is not None


def test_f_adafed_is_fedbn_until_the_statistics_are_taken(play):
    ours, theirs = (play(folder=name, rounds=4, name=name) for name in ("adafed", "fedbn"))
    for game in (ours, theirs):
        game.rounds(2)
    assert_alike(ours.models("east"), theirs.models("east"))
    assert "statistics" not in ours.asked
    record = ours.round()
    assert [record.weights[site][site] for site in record.answered] == [0.5] * 3
    assert not np.array_equal(ours.models("east")[NAME], ours.models("west")[NAME])
    assert ours.server.parts["statistics"].history[0]["round"] == 2


# --- whom to ask, and when


def test_sites_without_an_answer_are_asked_again(play):
    game = play(rounds=6, name="adafed", statistics={"rounds": 2})
    game.rounds(2)
    assert is_asked(game) == []
    record = game.round(change=sharing(north=lambda answer: answer.failed("no disk")))
    assert is_asked(game) == ["east", "north", "west"]
    assert record.answered == ["east", "north", "west"] and record.failed == {}
    (note,) = record.notes
    assert "site 'north' shares no statistics (no disk): it listens to all sites equally" in note
    # fewer than two compared in the row of north
    assert record.weights["north"] == pytest.approx(dict.fromkeys(game.sites, 1 / 3))
    withheld = sharing(north=lambda answer: Message(meta=answer.meta | {"statistics": {"withheld": "policy"}}))
    (note,) = game.round(change=withheld).notes
    assert is_asked(game) == ["north"] and "'north' shares no statistics (policy)" in note
    # It has said that it shares none.
    assert game.round().notes == [] and is_asked(game) == []


def test_a_site_that_has_not_trained_is_asked_again(play):
    game = play(rounds=4, name="adafed", statistics={"rounds": 1})
    game.round(absent=("west",))
    assert "has trained no round and so has no statistics" in game.round().notes[0]
    record = game.round()
    assert record.notes == [] and record.weights["west"]["west"] == 0.5


def test_a_late_answer_puts_no_refresh_off(play):
    game, asked = play(rounds=8, name="adafed", statistics={"rounds": 1, "refresh_every": 3}), {}
    for number in range(1, 9):
        game.round(absent=("west",) if number < 3 else ())
        asked[number] = is_asked(game)
    everyone = ["east", "north", "west"]
    # All before the rounds after 1, 4 and 7 finished ones; between them the site that had given no answer.
    assert [number for number, sites in asked.items() if sites == everyone] == [2, 5, 8]
    assert [number for number, sites in asked.items() if sites == ["west"]] == [3, 4]
    assert {1, 4, 7} <= {record["round"] for record in game.server.parts["statistics"].history}


# --- what a site shares


@pytest.fixture
def few(finished):
    """A run of two rounds whose sites need four patients: east has five training images, north four and west three."""
    return finished(rounds=2, name="adafed", min_patients=4)


def test_the_running_statistics_that_leave_are_the_sites_own(few):
    answer, home = few.answers["statistics"]["east"], few.kept("east", 1)["models"]["home"]
    names = [name for name in home if name.endswith("running_mean")]
    assert len(answer.arrays) == 2 * len(names) > 0
    for layer, name in enumerate(names):
        np.testing.assert_array_equal(answer.arrays[f"statistics/{layer}/mean"], home[name].double().numpy())


def test_a_site_with_few_examples_shares_nothing(few):
    assert few.answers["statistics"]["west"].arrays == {}
    record = few.server.ledger[-1]
    assert ["west" in note and "fewer than 4 patients in training" in note for note in record.notes] == [True]
    assert record.weights["west"] == {"east": 1 / 3, "north": 1 / 3, "west": 1 / 3}
    assert record.weights["east"] == {"east": 0.5, "north": 0.5, "west": 0.0}


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda a: a | {"statistics/1/mean": a["statistics/1/mean"] * np.nan},
            "'statistics/1/mean' of site 'north' holds NaN",
        ),
        (
            lambda a: a | {"statistics/0/variance": -1 - a["statistics/0/variance"]},
            "'statistics/0/variance' of site 'north' has a value below 0",
        ),
        (lambda a: a | {"statistics/0/mean": np.zeros(1)}, "'statistics/0/mean' with shape (1,) in place of (4,)"),
        (
            lambda a: {name: array for name, array in a.items() if name != "statistics/0/mean"},
            "sent only a part of its layers' statistics; it lacks ['statistics/0/mean']",
        ),
        (lambda a: a | {NAME: np.zeros(1)}, "which was not asked for"),
    ],
)
def test_statistics_that_do_not_fit_are_refused_by_name(play, spoil, sentence):
    game = play(rounds=2, name="adafed")
    record = game.rounds(2, change=sharing(north=sending(spoil)))
    reason = game.server.parts["statistics"].without["north"]
    assert "site 'north'" in reason and sentence in reason
    assert any(reason in note for note in record.notes) and record.failed == {}
    # The two others listen to each other, and not to north.
    assert record.weights["east"] == {"east": 0.5, "north": 0.0, "west": 0.5}
    assert record.weights["north"] == pytest.approx(dict.fromkeys(game.sites, 1 / 3))


# --- what is kept


def test_the_history_is_plain_and_says_who_was_compared(few):
    files = json.dumps(few.server.parts["statistics"].outcome(few.server, {}).make_files())
    (record,) = json.loads(files)["weights.json"]
    found = (record["round"], record["source"], record["sites"], record["without"])
    assert found == (1, "running", ["east", "north", "west"], {"west": "fewer than 4 patients in training"})
    assert record["distances"][2] == [None, None, None] and record["distances"][0][1] > 0
    np.testing.assert_allclose(np.sum(record["weights"], axis=1), 1)


# --- by a pretrained model


PAPER = {"rounds": 2, "name": "adafed", "preset": "paper", "model": {"pretrained": "f.pt"}}


@pytest.fixture
def pretrained(make_study):
    state = build_plain_model(make_study(rounds=2, seed=7), 7).state_dict()
    arrays = {name: value.numpy().copy() for name, value in state.items() if value.is_floating_point()}
    return arrays | {name: arrays[name] + 0.25 for name in arrays if name.endswith("running_mean")}


def test_a_pretrained_model_compares_sites_before_the_first_round(play, pretrained):
    game = play(pretrained=pretrained, **PAPER)
    record = game.round()
    assert game.asked == ["statistics", "train"]
    # The pretrained BatchNorm is where a site begins.
    assert_alike(game.sent["train"]["east"].of("model"), pretrained)
    (first,) = game.server.parts["statistics"].history
    assert (first["round"], first["source"], first["layers"]) == (0, "pretrained", "all")
    assert record.weights["east"]["east"] == 0.5
    means = {name for name in pretrained if name.endswith("running_mean")}
    assert not means & game.upcoming("train")["east"].of("model").keys(), "the pretrained BatchNorm travels once"


def test_a_site_measures_the_inputs_of_the_pretrained_models_layers(play, pretrained):
    game = play(pretrained=pretrained, **PAPER)
    game.round()
    model = build_plain_model(game.study, 0)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in pretrained.items()}, strict=False)
    seen = []
    first = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    first.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].double()))
    with torch.no_grad():
        model.eval()(torch.from_numpy(np.array(game.sites["west"].data.training.images)))
    sent = game.answers["statistics"]["west"].arrays
    np.testing.assert_allclose(sent["statistics/0/mean"], seen[0].mean(dim=(0, 2, 3)), rtol=1e-5, atol=1e-7)
    variance = seen[0].var(dim=(0, 2, 3), correction=0)
    np.testing.assert_allclose(sent["statistics/0/variance"], variance, rtol=1e-5)


def test_running_statistics_of_frozen_layers_tell_no_sites_apart(make_study):
    frozen = {"frozen": ["conv_0.*", "down_*", "upcat_*"]}
    with pytest.raises(ConfigError, match=r"training\.frozen leaves no BatchNorm layer .*source: pretrained"):
        start_parts(make_study(rounds=4, name="adafed", training=frozen, network=UNET), "abc", None)
    start_parts(make_study(rounds=4, name="adafed", training={"frozen": ["down_*"]}, network=UNET), "abc", None)
