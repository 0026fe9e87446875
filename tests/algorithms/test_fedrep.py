import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.fedrep import HeadThenBody, head_or_body_step
from silofl.core.presets import find_recipe
from silofl.core.steps import plain_step
from silofl.errors import ConfigError
from silofl.models import build_plain_model
from silofl.study.sections import TrainingSettings
from silofl.training.losses import make_loss

from .conftest import assert_same_course

KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")
HEAD, BODY = KEYS[2:], KEYS[:2]


def network(arrays):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model.load_state_dict({key: torch.tensor(array) for key, array in arrays.items()})
    return model


def test_a_whole_run_follows_the_reference(vectors):
    v = vectors("baselines/fedrep")
    head_steps, body_steps = int(v["hyper_head_steps"]), int(v["hyper_body_steps"])
    body = {key: v[f"init/{key}"] for key in BODY}
    heads = [{key: v[f"init/{key}"] for key in HEAD} for _ in v["n"]]
    for r in range(len(v["x"])):
        ends = []
        for i in range(len(v["n"])):
            site = network(body | heads[i])
            phases = iter([True] * head_steps + [False] * body_steps)
            step = head_or_body_step(plain_step, HEAD, lambda phases=phases: next(phases))
            optimizer = torch.optim.SGD(site.parameters(), float(v["hyper_eta"]))
            for k in range(head_steps + body_steps):
                batch = torch.tensor(v["x"][r, i, k]), torch.tensor(v["y"][r, i, k])
                step(site, optimizer, nn.functional.mse_loss, batch)
                for key, p in site.named_parameters():
                    np.testing.assert_allclose(p.detach().numpy(), v[f"fedrep.site/{key}"][r, i, k], rtol=1e-6)
            ends.append({key: p.detach().numpy() for key, p in site.named_parameters()})
            heads[i] = {key: ends[i][key] for key in HEAD}
        body = {key: sum(p * end[key] for p, end in zip(v["p"], ends, strict=True)) for key in BODY}
        for key in BODY:
            np.testing.assert_allclose(body[key], v[f"fedrep.global/{key}"][r], rtol=1e-6)


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


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_round_without_an_epoch_for_the_head_is_refused(epochs):
    message = f"training.local_epochs must be above head_then_body.body_epochs, 2, .* not {epochs}"
    with pytest.raises(ConfigError, match=message):
        HeadThenBody(body_epochs=2).check_study(SimpleNamespace(training=TrainingSettings(local_epochs=epochs)))


@pytest.mark.parametrize(("part", "section"), [("scaffold", "control"), ("fednova", "normalized_steps")])
def test_what_divides_by_the_number_of_steps_is_refused(part, section):
    with pytest.raises(ConfigError, match=f"parts must be without {section}, which counts all steps"):
        find_recipe("fedrep", "paper", {"parts": [part]})


@pytest.mark.parametrize("home", ["nothing", "batchnorm", "everything"])
def test_a_head_that_leaves_is_refused(home):
    with pytest.raises(ConfigError, match=f"stays_home must be head where sites train it .* not {home}"):
        find_recipe("fedrep", "paper", {"stays_home": home})


COUNTS = {"east": 5, "north": 4, "west": 3}
SGD = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.05, "local_epochs": 3}
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
def test_rounds_with_an_absent_site_are_those_of_a_plain_implementation(fedrep, body_epochs):
    game = fedrep(head_then_body={"body_epochs": body_epochs})
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
        whole = sum(COUNTS[site] for site in sites)
        body = {name: sum(COUNTS[site] / whole * own[site][name] for site in sites) for name in body}
        assert game.models("east").keys() == {f"model/{name}" for name in body}
        assert_same_course(game.models("east"), body, start)


def test_a_site_that_comes_late_trains_a_head_of_its_own(fedrep):
    game = fedrep(federation={"max_missed_rounds": 3})
    game.round(absent=("north",))
    game.round()
    heads = [game.kept(site, 2)["models"]["home"][f"model/{OUTPUT[0]}"] for site in COUNTS]
    start = build_plain_model(game.study, game.study.seed).state_dict()[OUTPUT[0]]
    assert not any(torch.equal(head, start) for head in heads)
    assert len({tuple(head.ravel().tolist()) for head in heads}) == 3


@pytest.mark.parametrize("more", [{"parts": ["fedopt"]}, {"weights": "uniform"}, {"extra_rounds": 1}], ids=str)
def test_it_goes_with_the_other_answers(fedrep, more):
    game = fedrep(rounds=2, **more)
    assert set(game.finish().scores) == set(COUNTS)
    assert [record.answered for record in game.server.ledger] == [list(COUNTS)] * game.study.total_rounds


def test_the_guard_runs_beside_it_and_its_own_model_is_the_same(fedrep):
    ours, fedper = fedrep(rounds=2, guard=True), fedrep("fedper", rounds=2, guard=True, name="fedper")
    ours.round(), fedper.round()
    one, other = (game.kept("east", 1)["guard"]["local"]["state"] for game in (ours, fedper))
    assert one and all(torch.equal(value, other[name]) for name, value in one.items())
