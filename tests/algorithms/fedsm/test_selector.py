import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.fedsm.selector import SQUARE, SiteSelector, TrainedEnsemble
from silofl.base.files import load_state, save_state
from silofl.models.roles import add_role, read_role, select_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.load import start_parts
from silofl.parts.part import Compared
from silofl.parts.task import Exchange, Message, SiteResults

from ...conftest import assert_alike

SITES = ("east", "north", "west")
INSTANCE = {"normalization": "instance"}
STEP = Exchange("selector", 1, 2)
HEAD = "network.head.weight"


@pytest.fixture
def begin(make_study):
    def start(extra_rounds=0, **selector):
        study = make_study(name="fedsm", model=INSTANCE, selector=selector, extra_rounds=extra_rounds)
        return start_parts(study, SITES, None)["selector"]

    return start


@pytest.fixture
def beside(play):
    """Begin a run with a selector by what is special about it."""

    def start(folder="state", sites=SITES, rounds=2, federation=None, **selector):
        options = {"rounds": rounds, "federation": federation, "selector": selector}
        return play(sites, folder=folder, name="fedsm", model=INSTANCE, **options)

    return start


def filled(arrays, value):
    return {name: np.full_like(array, value) for name, array in arrays.items()}


def after(part, answers, *row):
    """Return the part after a step of these answers, each site listening to all alike or with the weights of a row."""
    row = row or [1 / len(answers)] * len(answers)
    site_results = SiteResults({site: Message(arrays) for site, arrays in answers.items()})
    return part.merged(STEP, site_results, lambda role: np.tile(row, (len(answers), 1)), run=None)


def sent(part):
    return part.to_send("east", STEP, run=None).arrays


# --- the server's half


def test_outputs_are_the_sites_or_the_global_model_and_them(begin):
    assert begin().outputs == ("east", "north", "west")
    assert begin(labels="best_model", extra_rounds=1).outputs == ("global", "east", "north", "west")


def test_local_steps_are_averaged_by_weight(begin):
    part = begin(learning="local_steps")
    answers = {site: filled(sent(part), value) for site, value in zip(SITES, (1.0, 2.0, 5.0), strict=True)}
    new = after(part, answers, 0.5, 0.25, 0.25)
    for name, array in part.parameters.items():
        # 0.5 * 1 + 0.25 * 2 + 0.25 * 5 = 2.25
        np.testing.assert_allclose(new.parameters[name], array + 2.25, rtol=1e-6)


def test_the_codes_selector_averages_weights_and_both_moments(begin):
    part = begin(learning="moments")
    assert len(sent(part)) == 3 * len(part.parameters)
    answers = {site: filled(sent(part), value) for site, value in zip(SITES, (1.0, 3.0, 5.0), strict=True)}
    new = after(part, answers)
    np.testing.assert_allclose(new.parameters[HEAD], part.parameters[HEAD] + 3, rtol=1e-6)
    np.testing.assert_allclose(new.adam.mean[HEAD], 3, rtol=1e-6)
    np.testing.assert_allclose(new.adam.square[HEAD], 3, rtol=1e-6)
    assert new.adam.steps == 1


def test_rounding_never_leaves_a_square_below_zero(begin):
    part = begin(learning="moments")
    answer = filled(sent(part), 0) | filled(add_role("selector", add_role(SQUARE, part.adam.square)), -1e-9)
    new = after(part, dict.fromkeys(SITES, answer))
    assert all(np.all(array >= 0) for array in new.adam.square.values())


def test_a_site_that_withholds_the_selector_moves_it_not(begin):
    part = begin(learning="local_steps")
    some = filled(sent(part), 9.0)
    some.popitem()
    answers = {"east": filled(sent(part), 1.0), "north": {}, "west": filled(sent(part), 3.0), "zoo": some}
    new = after(part, answers, 0.2, 0.5, 0.2, 0.1)
    np.testing.assert_allclose(new.parameters[HEAD], part.parameters[HEAD] + 2, rtol=1e-6)
    assert after(part, {"east": {}}, 1.0) is part


@pytest.mark.parametrize("learning", ["local_steps", "moments", "gradients"])
def test_an_update_counts_up_to_three_times_the_others_median(begin, learning):
    part = begin(learning=learning)
    honest = {site: filled(sent(part), 1.0) for site in ("east", "north")}
    answers = {site: SiteAnswer(arrays) for site, arrays in honest.items()}
    answers["west"] = SiteAnswer(filled(sent(part), -1e6))
    run = SimpleNamespace(study=part.study)
    compared = part.compared(STEP, answers, run)
    # Of Adam's squares 3 * 3 times.
    for name, array in compared.answers["west"].arrays.items():
        np.testing.assert_allclose(array, -9 if f"/{SQUARE}/" in name else -3, rtol=1e-5)
    assert compared.outliers == {"west": {"selector": pytest.approx(1e6)}}
    # What is not too long is the same object, so that honest runs give the same weights.
    assert compared.answers["east"] is answers["east"]
    few = {site: answers[site] for site in ("east", "west")}
    assert part.compared(STEP, few, run) == Compared(few)


def test_a_new_output_starts_undecided(begin):
    part = begin()
    new = after(part, dict.fromkeys(SITES, filled(sent(part), 0.5))).joined("zoo")
    assert new.outputs == (*SITES, "zoo")
    for arrays in (new.parameters, new.adam.mean, new.adam.square):
        assert np.all(arrays[HEAD][3] == 0) and arrays[HEAD].shape[0] == 4
    assert np.all(new.adam.mean[HEAD][:3] != 0)


# --- with its sites


def test_the_selector_takes_adams_step_on_the_pooled_gradient(beside):
    game = beside()
    before = game.server.parts["selector"].parameters
    game.round()
    assert {read_role(name) for name in game.answers["train"]["east"].arrays} == {"global", "personal", "selector"}
    assert "selector" not in game.kept("east", 1)
    answers = {site: select_role("selector", answer.arrays) for site, answer in game.answers["train"].items()}
    # 5, 4 and 3 training images
    for name, array in before.items():
        mean = sum(answers[site][name].astype(np.float64) * n for site, n in (("east", 5), ("north", 4), ("west", 3)))
        # Adam's first step: lr * g / (|g| + eps)
        step = 1e-3 * (mean / 12) / (np.abs(mean / 12) + 1e-8)
        np.testing.assert_allclose(game.server.parts["selector"].parameters[name], array - step, rtol=1e-3, atol=2e-5)


def test_further_steps_follow_the_first_one_of_a_round(beside):
    game = beside(steps=3)
    game.rounds(2)
    assert game.asked == ["train", "selector", "selector"] * 2
    assert game.server.parts["selector"].adam.steps == 6
    assert {read_role(name) for name in game.sent["selector"]["east"].arrays} == {"selector"}
    assert game.sent["selector"]["east"].meta["step"] == 3


@pytest.mark.parametrize("learning", ["local_steps", "moments"])
def test_a_site_that_joins_late_gets_an_output(beside, learning):
    game, late = (beside(sites=s, folder=s[0], learning=learning) for s in (("east", "west"), ("north",)))
    game.round()
    before = game.server.parts["selector"]
    game.server.join("north")
    game.sites["north"] = late.sites["north"]
    new = game.server.parts["selector"]
    assert new.outputs == ("east", "west", "north")
    np.testing.assert_array_equal(new.parameters[HEAD][:2], before.parameters[HEAD])
    assert list(game.server.parts["personal"].own) == ["east", "north", "west"]
    assert game.upcoming("train")["north"].find_entry("selector")["outputs"] == ["east", "west", "north"]
    assert game.round().answered == ["east", "north", "west"]


# --- the selector that learns the best model


def test_it_learns_after_the_others_are_done(play):
    options = {"selector": {"labels": "best_model"}, "extra_rounds": 6, "model": INSTANCE, "rounds": 2}
    game = play(name="fedsm", **options)
    game.rounds(2)
    assert {read_role(name) for name in game.answers["train"]["east"].arrays} == {"global", "personal"}
    models = game.models("east")
    before = game.server.parts["selector"]
    game.rounds(2)
    assert game.server.finished_rounds == 4 and game.asked[-4:] == ["validate", "assemble", "selector", "selector"]
    assert_alike(game.models("east"), models)
    assert before.adam.steps == 0 and game.server.parts["selector"].adam.steps == 2
    path = game.folder("east") / "best_models.pt"
    best = load_state(path, 4, {"run": "run", "site": "east"})["models"]
    # 5 training images, and an output for the global model and each site
    assert best.shape == (5,) and set(best.tolist()) <= set(range(4))
    # Damaged, it is made again; with the whole folder gone, the models come again in the next round.
    path.write_bytes(path.read_bytes()[:-1])
    assert game.round().answered == list(SITES)
    assert torch.equal(load_state(path, 4, {"run": "run", "site": "east"})["models"], best)
    # As of other data, of which a patient was forgotten or a mask corrected: it is made again too.
    save_state(path, 4, {"run": "run", "site": "east", "data": "other"}, {"models": 9 + best})
    assert game.round().answered == list(SITES)
    assert torch.equal(load_state(path, 4, {"run": "run", "site": "east"})["models"], best)
    shutil.rmtree(game.folder("east"))
    assert game.round().failed.keys() == {"east"}
    assert game.round().answered == list(SITES)


# --- the selector that learns from the ensemble's loss


class Constant(nn.Module):
    """A model with the same logits for every image."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, images):
        return self.logits.expand(len(images), -1)


def test_the_ensembles_logits_are_those_of_the_mean_probability():
    selector = Constant(np.log(0.25), np.log(0.75))
    # probabilities 0.5, 0.5 and 0.75, 0.25: 0.25 * 0.5 + 0.75 * 0.75 = 0.6875
    models = [Constant(0.0, 0.0), Constant(np.log(3.0), 0.0)]
    logits = TrainedEnsemble(selector, models)(torch.zeros(2, 1, 4, 4))
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), [[0.6875, 0.3125]] * 2, rtol=1e-6)
    # of findings, sigmoids too: 0.75 is as above, and 0.5 with either model
    findings = TrainedEnsemble(selector, models, is_multilabel=True)(torch.zeros(2, 1, 4, 4))
    np.testing.assert_allclose(findings.sigmoid().numpy(), [[0.6875, 0.5]] * 2, rtol=1e-6)
    # of one output: sigmoids 0.5 and 0.75
    binary = TrainedEnsemble(selector, [Constant(0.0), Constant(np.log(3.0))])(torch.zeros(2, 1, 4, 4))
    np.testing.assert_allclose(binary.sigmoid().numpy(), [[0.6875]] * 2, rtol=1e-6)


def test_sure_models_give_finite_logits_and_gradients():
    selector = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    logits = TrainedEnsemble(selector, [Constant(100.0), Constant(100.0)])(torch.ones(1, 1, 2, 2))
    logits.sum().backward()
    assert torch.isfinite(logits).all() and torch.isfinite(selector[1].weight.grad).all()


def test_it_learns_the_ensembles_scores_of_least_loss(play, monkeypatch):
    # With three digits the losses of three rounds are the same.
    monkeypatch.setattr("silofl.parts.work.round_scores", lambda value, key: value)
    selector = {"labels": "ensemble", "steps": 5, "learning_rate": 0.01}
    options = {"super_model": {"answer": "ensemble"}, "extra_rounds": 3, "model": INSTANCE, "rounds": 1}
    game = play(name="fedsm", selector=selector, **options)
    game.round()
    models = game.models("east")
    losses = [game.round().metrics["east"]["loss"] for _ in range(3)]
    assert losses[-1] < losses[0]
    # the models stay as they were, and the selector's gradients alone travel
    assert_alike(game.models("east"), models)
    assert {read_role(name) for name in game.answers["selector"]["east"].arrays} == {"selector"}
    tests = game.finish()
    assert tests.scores.keys() == set(SITES)


# --- what it makes of a validation


def test_a_combined_score_is_only_given_where_the_selector_came(make_study):
    work = SimpleNamespace(message=Message(), study=make_study(name="fedsm", model=INSTANCE))
    assert SiteSelector(work).judged({}, None, True) is None
