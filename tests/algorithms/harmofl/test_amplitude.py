import numpy as np
import pytest
import torch

from silofl.algorithms.harmofl.amplitude import MEAN, AmplitudePart
from silofl.files import load_tensors
from silofl.parts.load import list_kinds
from silofl.parts.task import Message

PAPER = {"name": "harmofl", "preset": "paper"}


def changing(wrong, spoil):
    """Return a change of what one site says is its amplitude."""

    def change(task, site, answer):
        return Message(spoil(answer.arrays), answer.meta) if (task, site) == ("train", wrong) else answer

    return change


def validating(*values):
    """Return a change by which the rounds validate with these values, one after the other."""

    def change(task, site, answer):
        number = answer.meta["round"] - (task == "train")
        if task in ("train", "validate") and number >= 1:
            answer.meta["metrics"]["validation"] |= {"value": values[number - 1]}
        return answer

    return change


def test_the_amplitude_is_the_plain_mean_sent_once_and_then_fixed(play):
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


def test_a_site_that_missed_the_amplitude_gets_it_when_it_comes_back(play):
    game = play(rounds=4, **PAPER)
    game.round()
    game.round(absent=("north",))
    tasks = game.upcoming("train")
    assert MEAN in tasks["north"].arrays and MEAN not in tasks["east"].arrays
    game.round()
    assert MEAN not in game.upcoming("train")["north"].arrays


def test_a_site_that_joins_late_gets_it_and_is_not_asked_for_its_own(play):
    game, late = play(sites=("east", "west"), **PAPER), play(sites=("north",), folder="late", **PAPER)
    game.rounds(2)
    game.server.join("north")
    game.sites["north"] = late.sites["north"]
    record = game.round()
    assert MEAN in game.sent["train"]["north"].arrays and record.answered == ["east", "north", "west"]
    assert MEAN not in game.answers["train"]["north"].arrays


@pytest.mark.parametrize(("values", "is_sent"), [((0.9, 0.1), True), ((0.1, 0.9), False)])
def test_the_first_rounds_model_is_tested_with_the_amplitude_that_came_after_it(play, values, is_sent):
    game = play(rounds=2, **PAPER)
    game.finish(change=validating(*values))
    assert game.server.best_round == (1 if is_sent else 2)
    assert (MEAN in game.sent["test"]["east"].arrays) == is_sent


def test_a_first_round_without_its_amplitude_is_refused(play):
    game = play(**PAPER)
    spoil = changing("west", lambda arrays: {name: array for name, array in arrays.items() if name != MEAN})
    record = game.round(change=spoil)
    assert record.refused == {"west": "site 'west' must send 'amplitude/mean'; it is missing from its answer"}
    amplitudes = [game.answers["train"][site].arrays[MEAN] for site in ("east", "north")]
    np.testing.assert_allclose(game.server.parts["amplitude"].amplitude, np.mean(amplitudes, axis=0), rtol=1e-6)


def test_sites_with_images_of_different_sizes_cannot_share_an_amplitude(play):
    game = play(**PAPER)
    wrong = np.ones((1, 16, 9), np.float32)
    record = game.round(change=changing("west", lambda arrays: arrays | {MEAN: wrong}))
    assert record.refused == {
        "west": "site 'west' must send 'amplitude/mean' with shape (1, 32, 17) as the other sites' images have it "
        "(name a Resize in data.transforms), not (1, 16, 9)"
    }


@pytest.mark.parametrize(("value", "sentence"), [(-1.0, "values of at least 0"), (np.nan, "holds NaN or infinity")])
def test_an_amplitude_that_is_none_is_refused(play, value, sentence):
    game = play(**PAPER)
    record = game.round(change=changing("east", lambda arrays: arrays | {MEAN: np.full_like(arrays[MEAN], value)}))
    assert sentence in record.refused["east"] and "'amplitude/mean'" in record.refused["east"]


def test_means_of_zscored_images_are_compared_from_their_deviation_on(play, make_study):
    study = make_study(name="harmofl")
    game = play(study=study.model_copy(update={"data": study.data.model_copy(update={"intensity": "zscore"})}))

    def mean_of(west, *others):
        """Return a change of what sites say is their mean intensity; images have 32 x 32 pixels."""
        means = dict(zip(("west", "east", "north"), (west, *others), strict=True))

        def change(task, site, answer):
            if task != "train" or MEAN not in answer.arrays:
                return answer
            amplitude = np.zeros_like(answer.arrays[MEAN])
            amplitude[0, 0, 0] = 1024 * means[site]
            return Message(answer.arrays | {MEAN: amplitude}, answer.meta)

        return change

    # What rounding leaves of a mean of 0 says nothing, however many times the others' it is.
    record = game.round(change=mean_of(1e-3, 1e-8, 1e-7))
    assert record.unlike is None and record.notes == []
    other = play(study=game.study, folder="other")
    assert other.round(change=mean_of(7.0, 1e-8, 1e-7)).unlike == {"west": {"amplitude": 7.0}}


def test_an_amplitude_that_nobody_asked_for_is_refused(play):
    game = play(**PAPER)
    game.round()
    amplitude = game.server.parts["amplitude"].amplitude
    record = game.round(change=changing("east", lambda arrays: arrays | {MEAN: amplitude}))
    assert "must send only arrays that were asked for; 'amplitude/mean'" in record.refused["east"]


def test_all_models_of_a_site_get_the_same_amplitude(play):
    instance, band = {"normalization": "instance"}, {"band": 0}
    game = play(name="fedsm", input="harmofl", amplitude=band, model=instance, rounds=2)
    game.rounds(2)
    home = game.kept("east", 2)["models"]["home"]
    both = [home[f"{role}/input_norm.running_amplitude"] for role in ("global", "personal")]
    assert torch.equal(*both) and both[0].any()


def test_local_training_fixes_its_own_amplitude_after_the_first_round(play):
    game = play(name="local", input="harmofl", amplitude={"band": "full"}, rounds=2)
    game.finish()
    assert not any(MEAN in answer.arrays for answer in game.answers["train"].values())
    states = [game.kept(site, 2)["models"]["home"] for site in ("east", "west")]
    amplitudes = [state["model/input_norm.running_amplitude"] for state in states]
    assert all(state["model/input_norm.is_fixed"] for state in states)
    assert not torch.equal(*amplitudes)
    first = game.kept("east", 1)["models"]["home"]["model/input_norm.running_amplitude"]
    assert torch.equal(first, amplitudes[0])


def test_a_site_that_trains_alone_and_missed_the_first_round_fixes_it_after_its_own_first_one(play):
    game = play(name="local", input="harmofl", rounds=3)
    game.round(absent=("north",))
    assert game.round().missed == game.round().missed == []
    first, second = (game.kept("north", number)["models"]["home"] for number in (2, 3))
    assert first["model/input_norm.is_fixed"]
    assert torch.equal(*(state["model/input_norm.running_amplitude"] for state in (first, second)))
    # Before that it had no model to validate.
    assert [set(record.validation) for record in game.server.ledger[:2]] == [{"east", "west"}, set(game.sites)]


def test_every_written_model_holds_the_mean(play):
    game = play(rounds=1, **PAPER)
    game.finish()
    part = game.server.parts["amplitude"]
    assert part.to_save().keys() == {"input_norm.running_amplitude", "input_norm.is_fixed"}
    own = load_tensors(game.folder("east") / "supermodel" / "weights" / "east.pt")
    np.testing.assert_array_equal(own["input_norm.running_amplitude"].numpy(), part.amplitude)


def test_a_checkpoint_brings_back_mean_shape_and_who_holds_it(play):
    game = play(**PAPER)
    empty = game.server.parts["amplitude"]
    assert AmplitudePart(game.study).restored(empty.state()) == empty and empty.to_save() == {}
    game.round()
    part = game.server.parts["amplitude"]
    again = AmplitudePart(game.study).restored(part.state())
    np.testing.assert_array_equal(again.amplitude, part.amplitude)
    assert (again.shape, again.informed) == ((1, 32, 17), {})


def test_it_is_a_mean_over_images(make_study):
    (kind,) = [kind for kind in list_kinds(make_study(**PAPER)) if kind.role == "amplitude"]
    assert kind.is_of_images and kind.name == "amplitude"
