import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.moon import contrastive_loss, contrastive_step, pool_features
from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.core.presets import find_recipe
from silofl.core.steps import plain_step
from silofl.models import build_plain_model
from silofl.study import Study
from silofl.study.sections import ModelSettings
from silofl.training.losses import make_loss

from ..conftest import UNET, WINDOWS
from .conftest import assert_is, assert_plain_rounds, batch_of, network


def test_a_representation_between_the_two_loses_log_two():
    east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert contrastive_loss(torch.ones(1, 2), east, north, 0.5).item() == pytest.approx(math.log(2))
    # cosines 1 and 0, by tau = 0.5: log(1 + e^-2)
    assert contrastive_loss(3 * east, east, north, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_loss_and_gradient_are_those_of_the_reference(vectors, temperature):
    v = vectors("baselines/moon")
    z = torch.tensor(v["z"], requires_grad=True)
    loss = contrastive_loss(z, torch.tensor(v["z_global"]), torch.tensor(v["z_previous"]), temperature)
    loss.backward()
    np.testing.assert_allclose(loss.item(), v[f"loss_{temperature}"], rtol=1e-6)
    np.testing.assert_allclose(z.grad.numpy(), v[f"dz_{temperature}"], rtol=1e-6)
    assert contrastive_loss(v["z"], v["z_global"], v["z_previous"], temperature) == loss


def test_a_zero_vector_is_as_near_to_everything(vectors):
    v = vectors("baselines/moon")
    z = torch.tensor(v["z_zero"], requires_grad=True)
    loss = contrastive_loss(z, torch.tensor(v["z_global"]), torch.tensor(v["z_previous"]), float(v["hyper_tau"]))
    loss.backward()
    np.testing.assert_allclose(loss.item(), v["loss_zero"], rtol=1e-6)
    assert torch.isfinite(z.grad).all()


def test_maps_are_averaged_over_space_and_vectors_stay(vectors):
    v = vectors("baselines/moon")
    np.testing.assert_allclose(pool_features(torch.tensor(v["maps"])).numpy(), v["pooled"], rtol=1e-6)
    assert torch.equal(pool_features(torch.ones(2, 3)), torch.ones(2, 3))
    assert pool_features(torch.ones(2, 3, 4, 4, dtype=torch.bfloat16)).dtype == torch.float32


def test_steps_follow_the_reference(vectors):
    v = vectors("baselines/moon")
    model = network(v, "start")
    optimizer = torch.optim.SGD(model.parameters(), float(v["hyper_eta"]))
    others = [network(v, "init").eval(), network(v, "previous").eval()]
    step = contrastive_step(
        plain_step, others, lambda one: one[-1], mu=float(v["hyper_mu"]), temperature=float(v["hyper_tau"])
    )
    for k, (total, _) in enumerate(v["losses"]):
        loss = step(model, optimizer, nn.functional.mse_loss, batch_of(v, 0, 0, k))
        np.testing.assert_allclose(loss.item(), total, rtol=1e-6)
        for key, p in model.named_parameters():
            np.testing.assert_allclose(p.grad.numpy(), v[f"grad/{key}"][0, 0, k], rtol=1e-6)
        assert_is(model, v, "site", 0, 0, k)


def test_the_other_models_stay_and_statistics_move_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    others = [copy.deepcopy(model).eval().requires_grad_(False) for _ in range(2)]
    before = copy.deepcopy(model.state_dict())
    step = contrastive_step(plain_step, others, lambda one: one[-1], mu=1.0, temperature=0.5)
    batch = torch.rand(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    step(model, torch.optim.SGD(model.parameters(), 0.1), nn.functional.cross_entropy, batch)
    assert model[1].num_batches_tracked == 1
    for other in others:
        assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize(("preset", "width"), [("paper", 256), ("recommended", 0)])
def test_the_paper_and_its_code_have_a_projection_head(preset, width):
    recipe = find_recipe("moon", preset, {})
    assert recipe.option("moon").projection_head == width and bool(recipe.cautions) == (width > 0)
    assert ("a head of 256" in recipe.questions()["How does a site step?"]) == (width > 0)


@pytest.mark.parametrize("name", ["DynUNet", "SwinUNETR"])
def test_a_label_map_network_without_a_known_representation_is_refused(name):
    contrast = find_recipe("moon", "recommended", {}).step
    contrast.check(SimpleNamespace(model=ModelSettings(name="unet")))
    contrast.check(SimpleNamespace(model=ModelSettings(network="monai.networks.nets.DenseNet169")))
    with pytest.raises(ConfigError, match=f"model.network must be left out .*{name}', .*: take model.name unet"):
        contrast.check(SimpleNamespace(model=ModelSettings(network=f"monai.networks.nets.{name}")))


pytestmark = pytest.mark.long

NETWORK = UNET

SGD = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.05}


@pytest.fixture
def moon(play, make_study):
    def start(folder="state", rounds=3, **options):
        return play(folder=folder, study=make_study(rounds=rounds, **({"training": SGD, "name": "moon"} | options)))

    return start


@pytest.fixture
def moon_of_windows(play, windows):
    """A run of windows of two movements at three sites, with the paper's head, of width 6 unless it says otherwise."""

    def start(folder="state", rounds=3, head=6, baseline_comparison=False, data=windows, patience=None, **contrast):
        settings = WINDOWS | {
            "rounds": rounds,
            "baseline_comparison": baseline_comparison,
            "federation": {"patience": patience},
            "training": SGD | {"loss": "cross_entropy", "batch_size": 4},
            "algorithm": {"name": "moon", "preset": "paper", "moon": contrast | {"projection_head": head}},
        }
        return play(("ann", "bob", "eva"), folder, parse(Study, settings, "study.yaml"), data=data)

    return start


def of_head(model, windows):
    """Return what the projection head makes of windows, and the answer to that."""
    net = model.network
    first, _, second, answer = net.head
    z = second(torch.relu(first(net.hidden(net.features(windows)))))
    return z, answer(z)


def cosine(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def trained(game, site, number, x, last, mu, tau=0.5):
    """Return a site's model after a round from x: few lines of torch, which go through the network themselves."""
    model = build_plain_model(game.study, 0)
    model.load_state_dict(x)
    received, own = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    if last:
        own.load_state_dict(last)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for images, targets in (batch for batches in game.epochs(site, number) for batch in batches):
        z, answer = of_head(model, images)
        loss = make_loss(game.study)(answer, targets)
        if last:
            with torch.no_grad():
                others = [of_head(one, images)[0] for one in (received, own)]
            near, far = (torch.exp(cosine(z, other) / tau) for other in others)
            loss = loss - mu * torch.log(near / (near + far)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("mu", [1.0, 5.0])
def test_a_projection_head_follows_a_plain_implementation(moon_of_windows, mu):
    game, last = moon_of_windows(mu=mu), {}

    def train(site, number, x):
        # The absent site's own last model is still that of round 1 in round 3.
        last[site] = trained(game, site, number, x, last.get(site), mu)
        return last[site]

    x = assert_plain_rounds(game, train, "bob")
    # 100 features, two classes
    shapes = {name: tuple(x[f"network.head.{name}.weight"].shape) for name in (0, 2, 3)}
    assert shapes == {0: (100, 100), 2: (6, 100), 3: (2, 6)}


def test_no_run_without_a_projection_head_borrows_it(moon_of_windows, windows_to_choose_by):
    ended = {"rounds": 4, "baseline_comparison": True, "patience": 1, "data": windows_to_choose_by}
    first = []
    for folder, head in (("ours", 6), ("plain", 0), ("again", 6)):
        game = moon_of_windows(folder, head=head, **ended)
        game.round()
        first.append(game.kept("ann", 1)["guard"]["local"])
        game.finish()
        assert set(game.server.parts["guard"].choices) == {"ann", "bob", "eva"}
    ours, plain, again = first
    assert ours["state"]["network.head.2.weight"].shape == (6, 100) and ours["rounds"] == 1
    assert plain["state"]["network.head.weight"].shape == (2, 100) and plain["rounds"] == 1
    assert again["state"]["network.head.2.weight"].shape == (6, 100) and again["rounds"] > 1


def test_an_unknown_representation_is_refused_before_the_first_round(moon, monkeypatch):
    monkeypatch.setattr("silofl.algorithms.moon.build_plain_model", lambda study, seed: torch.nn.Conv2d(1, 1, 1))
    with pytest.raises(ConfigError, match="this algorithm compares representations"):
        moon()
