import copy

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.feddyn import dynamic_step, new_gradient, server_update
from silofl.base.errors import ConfigError
from silofl.core.presets import find_recipe
from silofl.core.steps import plain_step
from silofl.models import build_plain_model
from silofl.training.losses import make_loss

from .conftest import assert_same_course

SITES = ("east", "north", "west")
SGD = {"optimizer": "sgd", "momentum": 0.0, "batch_size": 2, "learning_rate": 0.05}


def one(value):
    return {"w": torch.tensor([float(value)])}


def test_a_step_follows_gradient_pull_and_the_sites_own_gradient():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    step = dynamic_step(plain_step, {"weight": torch.tensor([[3.0]])}, {"weight": torch.tensor([[0.5]])}, alpha=0.25)
    batch = torch.ones(1, 1), torch.full((1, 1), 2.0)
    loss = step(model, torch.optim.SGD(model.parameters(), 0.5), nn.functional.mse_loss, batch)
    # gradient 2 (1 - 2), pull 0.25 (1 - 3), own gradient 0.5: w = 1 - 0.5 (-2 - 0.5 - 0.5)
    assert model.weight.item() == 2.5 and loss.item() == 1.0


def test_a_sites_gradient_moves_against_its_way():
    # 0.5 - 0.25 (3 - 1)
    assert new_gradient(one(0.5), one(3), one(1), alpha=0.25)["w"].item() == 0.0


def test_the_server_goes_beyond_the_mean_by_the_mean_gradient():
    arrays = [{"w": np.float32([value])} for value in (1, 3)]
    new, mean = server_update(*arrays, mean={}, alpha=0.5, share=1.0)
    # h = -0.5 (3 - 1), theta = 3 + 1 / 0.5
    assert mean["w"] == [-1.0] and new["w"] == [5.0] and new["w"].dtype == np.float32
    # Half of the sites: h = 1 - 0.5 * 0.5 (3 - 1) = 0.5, theta = 3 - 0.5 / 0.5
    new, mean = server_update(*arrays, mean={"w": np.array([1.0])}, alpha=0.5, share=0.5)
    assert mean["w"] == [0.5] and new["w"] == [2.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixing": "softpull"}, "one model of all sites"),
        ({"stays": "everything"}, "one model of all sites"),
        ({"extra_rounds": 2}, "extra_rounds must be 0 .*, not 2"),
        ({"weights": "examples"}, "weights must be uniform .*, not 'examples'"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        find_recipe("feddyn", "paper", changes)


@pytest.fixture
def feddyn(play, make_study):
    """Begin a run of FedDyn."""

    def start(folder="state", rounds=3, **settings):
        return play(folder=folder, study=make_study(rounds=rounds, training=SGD, name="feddyn", **settings))

    return start


def test_the_mean_gradient_counts_absent_and_late_sites(feddyn):
    game = feddyn()
    game.round()
    game.round(absent=("north",))
    part = game.server.parts["dynamic"]
    own = [game.kept(site, 1 if site == "north" else 2)["dynamic"]["own"] for site in SITES]
    for name, array in part.mean.items():
        np.testing.assert_allclose(array, np.mean([one[name].numpy() for one in own], axis=0), atol=1e-6)
    later = part.joined("south")
    for name, array in part.mean.items():
        np.testing.assert_allclose(later.mean[name], 0.75 * array)


def test_rounds_are_those_of_a_plain_implementation(feddyn):
    alpha = 0.1
    game = feddyn(feddyn={"alpha": alpha})
    x = start = build_plain_model(game.study, game.study.seed).state_dict()
    parameters = [name for name, _ in build_plain_model(game.study, 0).named_parameters()]
    own = {site: {name: torch.zeros_like(x[name]) for name in parameters} for site in SITES}
    for number in (1, 2, 3):
        game.round()
        ends = {}
        for site in SITES:
            model = build_plain_model(game.study, 0)
            model.load_state_dict(x)
            model.train()
            for inputs, targets in (batch for batches in game.epochs(site, number) for batch in batches):
                model.zero_grad()
                make_loss(game.study)(model(inputs), targets).backward()
                with torch.no_grad():
                    for name, p in model.named_parameters():
                        p -= SGD["learning_rate"] * (p.grad - own[site][name] + alpha * (p - x[name]))
            ends[site] = copy.deepcopy(model.state_dict())
            own[site] = {name: h - alpha * (ends[site][name] - x[name]) for name, h in own[site].items()}
        mean = {name: sum(own[site][name] for site in SITES) / 3 for name in parameters}
        x = {
            name: sum(end[name] for end in ends.values()) / 3 - (mean[name] / alpha if name in mean else 0)
            if value.is_floating_point()
            else value
            for name, value in x.items()
        }
        assert_same_course(game.models("east"), x, start)
