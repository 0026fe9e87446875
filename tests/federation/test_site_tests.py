from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from silofl.federation.case_results import case_results
from silofl.federation.message import Message
from silofl.federation.site_tests import numbers, validate
from silofl.federation.super_rounds import SuperRounds
from silofl.inference import SuperModel
from silofl.models.members import Members
from silofl.training.evaluation import predict, score
from silofl.training.metrics import Score

CPU = torch.device("cpu")
SITES = ["east", "north", "west"]


class Always(nn.Module):
    """A selector that takes every image for one site."""

    def __init__(self, site):
        super().__init__()
        self.logits = torch.tensor([[9.0 * (name == site) for name in SITES]])

    def forward(self, images):
        return self.logits.expand(len(images), -1)


@pytest.fixture
def east(play):
    """The site, its validation data, and two models that differ."""
    game = play(name="fedsm", model={"normalization": "instance"})
    members = Members.build(game.study, (1, 32, 32))
    with torch.no_grad():
        members.models["personal"].network.final_conv.bias += 10
    return game.study, members, game.sites["east"].data.validation


def role_score(east, role):
    study, members, part = east
    return score(predict(members.models[role], part, 2, CPU), part, study)


@pytest.mark.parametrize(("taken_for", "role"), [("east", "personal"), ("north", "global")])
def test_a_case_counts_with_the_personalised_model_where_the_selector_knows_the_site(east, taken_for, role):
    study, members, part = east
    selector = SimpleNamespace(model=Always(taken_for), outputs=SITES)
    found = validate(members, selector, part, study, "east", CPU)
    assert found["value"] == role_score(east, role).value
    assert found["selector_accuracy"] == float(taken_for == "east")
    assert found["models"] == {name: role_score(east, name).value for name in ("global", "personal")}
    assert found["models"]["global"] != found["models"]["personal"]


def test_without_a_selector_the_personalised_model_counts(east):
    study, members, part = east
    found = validate(members, None, part, study, "east", CPU)
    assert found["value"] == role_score(east, "personal").value and "selector_accuracy" not in found


def test_what_leaves_of_a_score_names_no_case():
    result = Score.of({"Doe^Jane": 0.5, "other": None}, {1: {"Doe^Jane": 0.5}})
    assert numbers(result) == {"value": 0.5, "num_cases": 1, "num_excluded": 1, "labels": {"1": 0.5}}
    assert numbers(Score.of({}))["value"] is None


def test_every_model_and_their_ensemble_are_measured_on_every_case(play):
    game = play(name="fedsm", model={"normalization": "instance"}, rounds=1).all_rounds()
    end, tests = game.together()
    model, part = SuperModel(end.contents(), CPU), game.sites["west"].data.test
    results = case_results(model, part, game.study)
    assert list(results) == list(dict.fromkeys(part.cases))
    for result in results.values():
        assert set(result.measured) == {"global", *SITES, "ensemble"}
        np.testing.assert_allclose(result.scores.sum(), 1)
    mean = np.mean([result.measured["north"].value for result in results.values()])
    assert tests["west"]["models"]["north"] == pytest.approx(mean)


def test_models_that_come_with_the_test_are_not_measured_on_validation_data(play):
    game = play(name="fedsm", model={"normalization": "instance"}, rounds=1).all_rounds()
    end, west = SuperRounds(game.server, threshold=0.5), game.sites["west"]
    whole = west.data
    west.data = replace(whole, validation=replace(whole.validation, targets=None))
    task = end.task("west")
    assert task.arrays and "error" in west.answer("assemble", task).meta
    alone = west.answer("test_super_model", task).meta["metrics"]["test"]
    west.data = whole
    assert "error" not in west.answer("assemble", task).meta
    assert west.answer("test_super_model", Message(meta=task.meta)).meta["metrics"]["test"] == alone
