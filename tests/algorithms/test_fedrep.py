import copy

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.fedrep import head_or_body_step
from silofl.core.steps import plain_step
from silofl.models import build_plain_model
from silofl.training.losses import make_loss

from .conftest import COUNTS, KEYS, SGD, assert_is, assert_same_course, average, batch_of, network

HEAD, BODY = KEYS[2:], KEYS[:2]
SGD = SGD | {"local_epochs": 3}


def test_a_whole_run_follows_the_reference(vectors):
    v = vectors("baselines/fedrep")
    head_steps, body_steps = int(v["hyper_head_steps"]), int(v["hyper_body_steps"])
    sites = [network(v, "init") for _ in v["n"]]
    for r in range(len(v["x"])):
        for i, site in enumerate(sites):
            phases = iter([True] * head_steps + [False] * body_steps)
            step = head_or_body_step(plain_step, HEAD, lambda phases=phases: next(phases))
            optimizer = torch.optim.SGD(site.parameters(), float(v["hyper_eta"]))
            for k in range(head_steps + body_steps):
                step(site, optimizer, nn.functional.mse_loss, batch_of(v, r, i, k))
                assert_is(site, v, "fedrep.site", r, i, k)
        for key in BODY:
            mean = sum(p * site.state_dict()[key] for p, site in zip(v["p"], sites, strict=True))
            np.testing.assert_allclose(mean, v[f"fedrep.global/{key}"][r], rtol=1e-6)
            for site in sites:
                site.state_dict()[key].copy_(mean)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_what_is_still_feels_neither_decay_nor_momentum(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    makers = {
        "momentum": lambda: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1),
        "adam": lambda: torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1),
    }
    optimizer, batch = makers[kind](), (torch.rand(6, 3), torch.tensor([0, 1, 1, 0, 1, 0]))
    phase = [False]
    step = head_or_body_step(plain_step, {"3.weight", "3.bias"}, lambda: phase[0])
    for phase[0] in (False, True, False, True):
        before = copy.deepcopy(model.state_dict())
        step(model, optimizer, nn.functional.cross_entropy, batch)
        moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        # BatchNorm belongs to the body, its statistics too.
        body = {name for name in before if not name.startswith("3.")}
        assert moved == (before.keys() - body if phase[0] else body)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_heads_phase_normalises_by_the_batch():
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1, bias=False))
    seen = []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    step = head_or_body_step(plain_step, {"1.weight"}, lambda: True)
    batch = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
    step(model, torch.optim.SGD(model.parameters(), 0.1), nn.functional.mse_loss, batch)
    # (1 - 2) / 1 and (3 - 2) / 1, and not by the running mean 0
    np.testing.assert_allclose(seen[0].numpy(), [[-1], [1]], rtol=1e-4)


OUTPUT = ("network.model.2.conv.weight", "network.model.2.conv.bias")


@pytest.fixture
def fedrep(play, make_study):
    def start(folder="state", rounds=3, training=None, **options):
        settings = {"name": "fedrep", "training": SGD | (training or {})} | options
        return play(folder=folder, study=make_study(rounds=rounds, **settings))

    return start


def train_part(game, model, epochs, is_head):
    """Train one part with an optimiser of its own; in the head's phase all statistics are put back."""
    parameters = [p for name, p in model.named_parameters() if (name in OUTPUT) == is_head]
    optimizer = torch.optim.SGD(parameters, 0.05)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    for images, targets in (batch for batches in epochs for batch in batches):
        model.zero_grad()
        make_loss(game.study)(model(images), targets).backward()
        optimizer.step()
        if is_head:
            for name, value in model.named_buffers():
                value.copy_(buffers[name])


@pytest.mark.parametrize("body_epochs", [1, 2])
def test_an_absent_site_follows_a_plain_implementation(fedrep, body_epochs):
    game = fedrep(fedrep={"body_epochs": body_epochs})
    start = build_plain_model(game.study, game.study.seed).state_dict()
    body = {name: value for name, value in start.items() if name not in OUTPUT and value.is_floating_point()}
    own = {site: copy.deepcopy(start) for site in COUNTS}
    for number, sites in ((1, COUNTS), (2, ("east", "west")), (3, COUNTS)):
        game.round(absent=tuple(COUNTS.keys() - set(sites)))
        for site in sites:
            model = build_plain_model(game.study, 0)
            model.load_state_dict(own[site] | body)
            epochs = game.epochs(site, number)
            train_part(game, model.train(), epochs[:-body_epochs], is_head=True)
            train_part(game, model, epochs[-body_epochs:], is_head=False)
            own[site] = copy.deepcopy(model.state_dict())
            home = game.kept(site, number)["models"]["home"]
            assert_same_course({name: home[f"model/{name}"] for name in OUTPUT}, own[site], start)
        body = average({site: own[site] for site in sites}, COUNTS, body)
        assert game.models("east").keys() == {f"model/{name}" for name in body}
        assert_same_course(game.models("east"), body, start)
