import copy

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.apfl import Mixture, new_alpha
from silofl.core.steps import plain_step

from .conftest import assert_is, average, batch_of, network

MSE = nn.functional.mse_loss


@pytest.mark.parametrize("form", [torch.tensor, np.asarray], ids=["torch", "numpy"])
@pytest.mark.parametrize("sign", ["plus", "minus"])
def test_a_step_of_alpha_follows_the_reference(vectors, sign, form):
    z = vectors("baselines/apfl")
    v, w, g = ([form(z[f"pure_{name}"])] for name in "vwg")
    g = g if sign == "plus" else [-g[0]]
    found = [new_alpha(0.4, v, w, g, float(rate)) for rate in z["pure_lr"]]
    np.testing.assert_allclose(found, z[f"pure_alpha_{sign}"], rtol=1e-6)
    # One array alone is its rows.
    assert new_alpha(0.4, v[0], w[0], g[0], float(z["pure_lr"][0])) == pytest.approx(found[0])


@pytest.mark.parametrize("variant", ["fixed", "adaptive"])
def test_a_whole_run_follows_the_reference(vectors, variant):
    v = vectors("baselines/apfl")
    eta, rate = float(v["hyper_eta"]), float(v["hyper_eta_alpha"]) if variant == "adaptive" else 0.0
    answer = Mixture(alpha=float(v["hyper_alpha"]), learning_rate=rate)
    sites = range(len(v["n"]))
    shared, own, kept = network(v, "init"), [network(v, "init") for _ in sites], [{} for _ in sites]
    for r in range(len(v["x"])):
        trained = {}
        for i in sites:
            site, model = copy.deepcopy(shared), copy.deepcopy(own[i])
            pair = answer.begin(site, model, kept[i])
            step = pair.shared(plain_step)
            shared_sgd, own_sgd = (torch.optim.SGD(one.parameters(), eta) for one in (site, model))
            for k in range(v["x"].shape[2]):
                batch = batch_of(v, r, i, k)
                step(site, shared_sgd, MSE, batch)
                pair.personal(model, own_sgd, MSE, batch)
                assert_is(site, v, f"{variant}.site", r, i, k)
                assert_is(model, v, f"{variant}.personal", r, i, k)
                assert pair.kept()["alpha"] == pytest.approx(v[f"{variant}.alpha"][r, i, k], rel=1e-6)
            trained[i], own[i], kept[i] = site.state_dict(), model, pair.kept()
        shared.load_state_dict(average(trained, v["p"], trained[0]))
        assert_is(shared, v, f"{variant}.global", r)
        for i in sites:
            deployed = copy.deepcopy(own[i])
            answer.begin(shared, deployed, kept[i])
            assert_is(deployed, v, f"{variant}.deployed", r, i)


def pair_of(alpha, learning_rate="same"):
    """Return a shared and a personal model with one weight each, w = 1 and v = 3, and how they learn."""
    shared, personal = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.constant_(shared.weight, 1.0)
    nn.init.constant_(personal.weight, 3.0)
    return shared, personal, Mixture(alpha=alpha, learning_rate=learning_rate).begin(shared, personal, {})


def taken(shared, personal, pair, steps=1, eta=0.125):
    """Take some steps of both models on x = 1, y = 0, where the gradient is twice the weight."""
    batch, step = (torch.ones(1, 1), torch.zeros(1, 1)), pair.shared(plain_step)
    for _ in range(steps):
        step(shared, torch.optim.SGD(shared.parameters(), eta), MSE, batch)
        pair.personal(personal, torch.optim.SGD(personal.parameters(), eta), MSE, batch)
    return personal.weight.item()


def test_alpha_moves_in_the_first_step_alone():
    shared, personal, pair = pair_of(0.5)
    assert personal.weight.item() == 2  # deployed: (3 + 1) / 2
    # g(mixture) = 4: v = 3 - 0.125 * 0.5 * 4, alpha = 0.5 - 0.125 * (3 - 1) * 4 is cut to 0
    assert taken(shared, personal, pair) == 2.75
    assert shared.weight.item() == 0.75 and pair.kept() == {"alpha": 0.0}
    # alpha = 0: v stays, although alpha's slope would not be 0
    assert taken(shared, personal, pair) == 2.75 and pair.kept() == {"alpha": 0.0}


def test_batchnorm_of_the_mixture_moves_by_its_own_pass_alone():
    shared, personal = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    personal.running_mean.fill_(5.0)
    pair = Mixture().begin(shared, personal, {})
    assert personal.running_mean.item() == 5 and personal.num_batches_tracked == 0
    batch = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
    pair.personal(personal, torch.optim.SGD(personal.parameters(), 0.1), MSE, batch)
    # 0.9 * 5 + 0.1 * 2
    assert personal.running_mean.item() == pytest.approx(4.7) and shared.running_mean.item() == 0
