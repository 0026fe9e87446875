import copy

import numpy as np
import pytest
import torch

from silofl.models import build_plain_model
from silofl.studies.traffic import count_traffic
from silofl.training.losses import make_loss

from ..conftest import UNET
from .conftest import assert_same_course

NETWORK = UNET

COUNTS = {"east": 5, "north": 4, "west": 3}
SGD = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.05, "local_epochs": 3}
HEAD = ("network.final_conv.weight", "network.final_conv.bias")


@pytest.fixture
def fedrep(play, make_study):
    def start(folder="state", rounds=3, training=None, **options):
        settings = {"name": "fedrep", "training": SGD | (training or {})} | options
        return play(folder=folder, study=make_study(rounds=rounds, **settings))

    return start


def train_part(game, model, epochs, is_head):
    """Train one part with an optimiser of its own; in the head's phase all statistics are put back."""
    parameters = [p for name, p in model.named_parameters() if (name in HEAD) == is_head]
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
    body = {name: value for name, value in start.items() if name not in HEAD and value.is_floating_point()}
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
            assert_same_course({name: home[f"model/{name}"] for name in HEAD}, own[site], start)
        whole = sum(COUNTS[site] for site in sites)
        body = {name: sum(COUNTS[site] / whole * own[site][name] for site in sites) for name in body}
        assert game.models("east").keys() == {f"model/{name}" for name in body}
        assert_same_course(game.models("east"), body, start)


def test_it_is_not_fedper_but_travels_like_it(fedrep):
    ours, fedper = fedrep(), fedrep("fedper", name="fedper")
    record, other = ours.round(), fedper.round()
    assert (record.bytes_to, record.bytes_from) == (other.bytes_to, other.bytes_from)
    found = count_traffic(ours.study, 3, (1, 32, 32))
    assert (found.bytes_to[0], found.bytes_from[0]) == (record.bytes_to["east"], record.bytes_from["east"])
    assert any(not np.array_equal(array, ours.models("east")[n]) for n, array in fedper.models("east").items())


@pytest.mark.parametrize("training", [{"optimizer": "adam"}, {"momentum": 0.5}], ids=str)
def test_a_run_goes_on_from_its_checkpoint(fedrep, training):
    whole, halved = fedrep(training=training), fedrep("other", training=training)
    halved.goes_on_as(whole)


def test_a_head_that_is_lost_is_said(fedrep):
    game = fedrep()
    game.round()
    for path in (game.folder("north") / "rounds").iterdir():
        path.unlink()
    assert game.round().answered == ["east", "north", "west"]
    (said,) = [text for text in game.warnings if "what stays at home (head)" in text]
    assert "site 'north' began the train of round 2 without its state of round 1" in said


def test_a_site_that_comes_late_trains_a_head_of_its_own(fedrep):
    game = fedrep(federation={"max_missed_rounds": 3})
    game.round(absent=("north",))
    game.round()
    heads = [game.kept(site, 2)["models"]["home"][f"model/{HEAD[0]}"] for site in COUNTS]
    start = build_plain_model(game.study, game.study.seed).state_dict()[HEAD[0]]
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
