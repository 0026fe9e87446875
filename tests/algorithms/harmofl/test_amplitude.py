import numpy as np
import pytest
import torch

from silofl.algorithms.harmofl.amplitude import MEAN
from silofl.parts.task import Message

PAPER = {"name": "harmofl", "preset": "paper"}


def changing(wrong, spoil):
    """Return a change of the arrays that one site sends; those that become None are missing."""

    def change(task, site, answer):
        if (task, site) != ("train", wrong):
            return answer
        return Message({name: a for name, a in spoil(answer.arrays).items() if a is not None}, answer.meta)

    return change


def validating(*values):
    """Return a change by which the rounds validate with these values, one after the other."""

    def change(task, site, answer):
        number = answer.meta["round"] - (task == "train")
        if task in ("train", "validate") and number >= 1:
            answer.meta["metrics"]["validation"] |= {"value": values[number - 1]}
        return answer

    return change


def test_the_amplitude_is_the_mean_sent_once_then_fixed(play):
    game = play(**PAPER)
    game.round()
    assert game.sent["train"]["east"].find_entry("amplitude") == {"is_wanted": True}
    amplitudes = [answer.arrays[MEAN] for answer in game.answers["train"].values()]
    part = game.server.parts["amplitude"]
    np.testing.assert_allclose(part.amplitude, np.mean(amplitudes, axis=0), rtol=1e-6)
    game.round()
    assert all(MEAN in task.arrays for task in game.sent["train"].values())
    assert not any(MEAN in answer.arrays for answer in game.answers["train"].values())
    # A site that has trained with it holds it.
    assert not any(MEAN in task.arrays for task in game.upcoming("train").values())
    assert game.server.parts["amplitude"].amplitude is part.amplitude
    for site in game.sites:
        kept = game.kept(site, 2)["models"]["home"]
        np.testing.assert_array_equal(kept["model/input_norm.running_amplitude"].numpy(), part.amplitude)
        assert kept["model/input_norm.is_fixed"]


def test_a_site_that_missed_the_amplitude_gets_it_later(play):
    game = play(rounds=4, **PAPER)
    game.round()
    game.round(absent=("north",))
    tasks = game.upcoming("train")
    assert MEAN in tasks["north"].arrays and MEAN not in tasks["east"].arrays
    game.round()
    assert MEAN not in game.upcoming("train")["north"].arrays


@pytest.mark.parametrize(("values", "is_sent"), [((0.9, 0.1), True), ((0.1, 0.9), False)])
def test_the_first_rounds_model_is_tested_with_the_later_amplitude(play, values, is_sent):
    game = play(rounds=2, **PAPER)
    game.finish(change=validating(*values))
    assert game.server.best_round == (1 if is_sent else 2)
    assert (MEAN in game.sent["test"]["east"].arrays) == is_sent


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda mean: {}, "lacks 'amplitude/mean'"),
        (
            lambda mean: {MEAN: np.ones((1, 16, 9), np.float32)},
            "sent 'amplitude/mean' with shape (1, 16, 9) in place of (1, 32, 17) as the other sites' images have it",
        ),
        (lambda mean: {MEAN: np.full_like(mean, -1)}, "has a value below 0"),
        (lambda mean: {MEAN: np.full_like(mean, np.nan)}, "holds NaN or infinity"),
    ],
    ids=["missing", "of another size", "below zero", "not finite"],
)
def test_an_amplitude_unlike_the_others_is_refused(play, spoil, sentence):
    game = play(**PAPER)
    record = game.round(change=changing("west", lambda arrays: arrays | {MEAN: None} | spoil(arrays[MEAN])))
    assert record.failed.keys() == {"west"} and sentence in record.failed["west"]
    amplitudes = [game.answers["train"][site].arrays[MEAN] for site in ("east", "north")]
    np.testing.assert_allclose(game.server.parts["amplitude"].amplitude, np.mean(amplitudes, axis=0), rtol=1e-6)


def test_a_site_that_trains_alone_fixes_its_own_amplitude(play):
    game = play(name="local", input="harmofl", amplitude={"band": "full"}, rounds=3)
    game.round(absent=("north",))
    assert game.round().missed == game.round().missed == []
    assert not any(MEAN in answer.arrays for answer in game.answers["train"].values())

    def amplitude(site, number):
        state = game.kept(site, number)["models"]["home"]
        assert state["model/input_norm.is_fixed"]
        return state["model/input_norm.running_amplitude"]

    assert torch.equal(amplitude("north", 2), amplitude("north", 3))
    assert torch.equal(amplitude("east", 1), amplitude("east", 3))
    assert not torch.equal(amplitude("east", 3), amplitude("west", 3))
    # Before its first round north had no model to validate.
    assert [set(record.validation) for record in game.server.ledger[:2]] == [{"east", "west"}, set(game.sites)]
