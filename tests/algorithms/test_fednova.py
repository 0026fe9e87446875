import copy

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.fednova import factors, norm
from silofl.algorithms.fedprox import proximal_step
from silofl.base.errors import AggregationError
from silofl.models import build_plain_model
from silofl.training.losses import make_loss

from .conftest import COUNTS, assert_is, batch_of, network

VARIANTS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "prox": {"mu": 0.5},
    "prox_momentum": {"momentum": 0.9, "mu": 0.5},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


def test_the_norm_is_how_far_steps_reach():
    assert norm(3) == 3
    # 1, 1 + 0.5, 1 + 0.5 + 0.25
    assert norm(3, momentum=0.5) == 4.25
    # 1, then 1 - 0.5 * 1, then 1 - 0.5 * 1.5
    assert norm(3, proximal=0.5) == 1.75
    # 1 + 0.5 * 1, then 1 + 0.5 * 1.5
    assert norm(2, momentum=0.5, nesterov=True) == 3.25


def test_norms_are_those_of_the_reference_table(vectors):
    v = vectors("baselines/fednova")
    found = [norm(int(steps), momentum, pull, bool(nesterov)) for steps, momentum, pull, nesterov in v["table"]]
    np.testing.assert_allclose(found, v["table_a"], rtol=1e-6)
    sums = [v[f"table_coefficients_{row}"].sum() for row in range(len(found))]
    np.testing.assert_allclose(found, sums, rtol=1e-6)


def test_equal_norms_give_the_shares():
    np.testing.assert_allclose(factors([0.25, 0.75], [3, 3]), [0.25, 0.75])
    # tau_eff = 0.5 * 2 + 0.5 * 6 = 4
    np.testing.assert_allclose(factors([0.5, 0.5], [2, 6]), [1, 1 / 3])
    np.testing.assert_allclose(factors([0.5, 0.5], [2, 6], tau_eff=6), [1.5, 0.5])


def test_steps_that_turn_back_to_where_they_began_are_refused():
    # 1, then 1 - 2 * 1: back at the start
    with pytest.raises(AggregationError, match="steps have the norm 0, .*; lower training.learning_rate"):
        factors([0.5, 0.5], [norm(2, proximal=2), 1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_whole_run_follows_the_reference(vectors, variant):
    v, chosen = vectors("baselines/fednova"), VARIANTS[variant]
    eta, nesterov = float(v["hyper_eta"]), "nesterov" in chosen
    mu, rho = chosen.get("mu", 0.0), chosen.get("momentum", 0.0)
    shared = network(v, "init")
    for r in range(len(v["x"])):
        differences, norms = [], []
        for i in range(len(v["n"])):
            site = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(site.parameters(), eta, momentum=rho, nesterov=nesterov)
            step = proximal_step(mu)
            for k in range(int(v["steps"][r, i])):
                step(site, optimizer, nn.functional.mse_loss, batch_of(v, r, i, k))
                assert_is(site, v, f"{variant}.site", r, i, k)
            differences.append({key: end - shared.state_dict()[key] for key, end in site.state_dict().items()})
            norms.append(norm(int(v["steps"][r, i]), rho, eta * mu, nesterov))
        weights = factors(v["p"], norms)
        np.testing.assert_allclose(norms, v[f"{variant}.a"][r], rtol=1e-6)
        np.testing.assert_allclose(weights, v[f"{variant}.weights"][r], rtol=1e-6)
        for key, p in shared.named_parameters():
            p.data += sum(w * d[key] for w, d in zip(weights, differences, strict=True))
        assert_is(shared, v, f"{variant}.global", r)


SGD = {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.02, "local_epochs": 2}


@pytest.fixture
def fednova(play, make_study):
    def start(folder="state", training=None, rounds=3, **algorithm):
        study = make_study(rounds=rounds, training=SGD | (training or {}), **({"name": "fednova"} | algorithm))
        return play(folder=folder, study=study)

    return start


def reach(steps, momentum, pull, nesterov):
    """Return how far torch's own SGD goes down a loss of slope 1 and a proximal term."""
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 1.0, momentum=momentum, nesterov=nesterov)
    for _ in range(steps):
        optimizer.zero_grad()
        (weight + pull / 2 * weight**2).backward()
        optimizer.step()
    return -weight.item()


def trained(game, site, number, x, rate, mu):
    """Return a site's model after a round from x, and its number of steps: few lines of torch."""
    training, model = game.study.training, build_plain_model(game.study, 0)
    model.load_state_dict(x)
    model.train()
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=training.momentum, nesterov=training.nesterov)
    steps = 0
    for batches in game.epochs(site, number):
        for inputs, targets in batches:
            optimizer.zero_grad()
            pull = sum(((p - s) ** 2).sum() for p, s in zip(model.parameters(), start, strict=True))
            (make_loss(game.study)(model(inputs), targets) + mu / 2 * pull).backward()
            optimizer.step()
            steps += 1
    return {name: value.double() for name, value in model.state_dict().items()}, steps


@pytest.mark.parametrize(
    ("training", "algorithm", "mu"),
    [
        ({}, {"weights": "uniform"}, 0.0),
        ({"nesterov": True}, {}, 0.0),
        ({"schedule": "poly"}, {"step": "fedprox", "fedprox": {"mu": 2.0}}, 2.0),
        ({}, {"fednova": {"tau_eff": "steps"}}, 0.0),
    ],
    ids=["momentum", "nesterov", "proximal and a falling rate", "mean steps"],
)
def test_two_rounds_are_those_of_a_plain_implementation(fednova, training, algorithm, mu):
    game = fednova(training=training, **algorithm)
    x = build_plain_model(game.study, game.study.seed).state_dict()
    counts = dict.fromkeys(COUNTS, 1) if "weights" in algorithm else COUNTS
    settings, parameters = game.study.training, [n for n, _ in build_plain_model(game.study, 0).named_parameters()]
    for number in (1, 2):
        game.round()
        rate = 0.02 * ((1 - (number - 1) / 3) ** 0.9 if settings.schedule == "poly" else 1)
        ends = {site: trained(game, site, number, x, rate, mu) for site in COUNTS}
        share = {site: count / sum(counts.values()) for site, count in counts.items()}
        norms = {
            site: reach(steps, settings.momentum, rate * mu, settings.nesterov) for site, (_, steps) in ends.items()
        }
        assert len(set(norms.values())) > 1
        lengths = {site: steps for site, (_, steps) in ends.items()} if "fednova" in algorithm else norms
        length = sum(share[site] * lengths[site] for site in COUNTS)
        for name, value in x.items():
            if name in parameters:
                weight = {site: share[site] * length / norms[site] for site in COUNTS}
            elif value.is_floating_point():
                weight = share
            else:
                continue
            moves = sum(weight[site] * (ends[site][0][name] - value.double()) for site in COUNTS)
            x[name] = (value.double() + moves).float()
            np.testing.assert_allclose(game.models("east")[f"model/{name}"], x[name].numpy(), rtol=1e-4, atol=1e-5)


def test_an_array_kept_back_moves_by_the_others_steps(fednova):
    game, name = fednova(training={"momentum": 0.0}), "model/network.model.2.conv.bias"
    before = game.models("east")[name]

    def keep_back(task, site, answer):
        kept = {key: array for key, array in answer.arrays.items() if site == "north" or key != name}
        return type(answer)(kept, answer.meta)

    game.round(change=keep_back)
    # Of one sender the length is its own: its difference itself.
    own = game.answers["train"]["north"].arrays[name]
    np.testing.assert_allclose(game.models("east")[name], before + own, rtol=1e-6)
