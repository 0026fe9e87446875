import copy

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.pfedme import Envelope, forward_step
from silofl.core.steps import plain_step, pulled_step

from .conftest import assert_is, average, batch_of, network

MSE = nn.functional.mse_loss


class Point(nn.Module):
    """A model that is its own output."""

    def __init__(self, start):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(start))

    def forward(self, inputs):
        return self.theta


def test_the_inner_steps_reach_a_quadratics_proximal_point(vectors):
    v = vectors("baselines/pfedme")
    a, b, w = (torch.tensor(v[f"quad_{name}"]) for name in ("A", "b", "w"))
    model = Point(v["quad_w"])
    optimizer = torch.optim.SGD(model.parameters(), float(v["hyper_personal_lr"]))
    step = pulled_step(plain_step, {"theta": w}, float(v["hyper_lam"]))

    def quadratic(theta, targets):
        return theta @ a @ theta / 2 - b @ theta

    for row in v["quad_path"][1:]:
        step(model, optimizer, quadratic, (w, w))
        np.testing.assert_allclose(model.theta.detach().numpy(), row, rtol=1e-6)
    for _ in range(200):
        step(model, optimizer, quadratic, (w, w))
    np.testing.assert_allclose(model.theta.detach().numpy(), v["quad_limit"], rtol=1e-6)


def test_a_whole_run_follows_the_reference(vectors):
    v = vectors("baselines/pfedme")
    eta, beta, sites = float(v["hyper_eta"]), float(v["hyper_beta"]), range(len(v["n"]))
    constants = {"strength": float(v["hyper_lam"]), "inner_learning_rate": float(v["hyper_personal_lr"])}
    answer = Envelope(inner_steps=int(v["hyper_inner_steps"]), **constants)
    shared, own = network(v, "init"), [network(v, "init") for _ in sites]
    for r in range(len(v["x"])):
        trained = {}
        for i in sites:
            site = copy.deepcopy(shared)
            pair = answer.begin(site, own[i], {})
            optimizers = [torch.optim.SGD(model.parameters(), eta) for model in (site, own[i])]
            for k in range(v["x"].shape[2]):
                batch = batch_of(v, r, i, k)
                before = MSE(site(batch[0]), batch[1]).item()
                assert pair.shared(plain_step)(site, optimizers[0], MSE, batch).item() == pytest.approx(before)
                pair.personal(own[i], optimizers[1], MSE, batch)
                assert_is(own[i], v, "personal", r, i, k)
                assert_is(site, v, "site", r, i, k)
            trained[i] = site.state_dict()
        mean = average(trained, v["p"], trained[0])
        shared.load_state_dict({key: (1 - beta) * x + beta * mean[key] for key, x in shared.state_dict().items()})
        assert_is(shared, v, "global", r)


def test_the_shared_models_pass_moves_its_statistics_and_no_parameter():
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batch = torch.tensor([[0.0], [2.0]]), torch.zeros(2, 1)
    mean = 0.1 * model[0](batch[0]).mean().item()
    value = forward_step(model, torch.optim.SGD(model.parameters(), 1.0), MSE, batch)
    assert not value.requires_grad and model[1].running_mean.item() == pytest.approx(mean)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())
