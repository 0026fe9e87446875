import copy

import numpy as np
import pytest
import torch

from silofl.federation.needs import home_bytes
from silofl.models import build_plain_model
from silofl.studies.traffic import count_traffic
from silofl.training.losses import make_loss

COUNTS = {"east": 5, "north": 4, "west": 3}
SGD = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.05}


@pytest.fixture
def moon(play, make_study):
    def start(folder="state", rounds=3, **options):
        return play(folder=folder, study=make_study(rounds=rounds, **({"training": SGD, "name": "moon"} | options)))

    return start


def encoded(model, images):
    """Return the U-Net's feature maps, level by level."""
    net, maps = model.network, []
    for level in (net.conv_0, net.down_1, net.down_2, net.down_3, net.down_4):
        images = level(images)
        maps.append(images)
    return maps


def cosine(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def trained(game, site, number, x, last, mu=1.0, tau=0.5):
    """Return a site's model after a round from x: few lines of torch, which go through the network themselves."""
    model = build_plain_model(game.study, 0)
    model.load_state_dict(x)
    received, own = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    if last:
        own.load_state_dict(last)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for images, targets in (batch for batches in game.epochs(site, number) for batch in batches):
        maps, net = encoded(model, images), model.network
        up = net.upcat_2(net.upcat_3(net.upcat_4(maps[4], maps[3]), maps[2]), maps[1])
        loss = make_loss(game.study)(net.final_conv(net.upcat_1(up, maps[0])), targets)
        if last:
            with torch.no_grad():
                others = [encoded(one, images)[4].mean((2, 3)) for one in (received, own)]
            near, far = (torch.exp(cosine(maps[4].mean((2, 3)), other) / tau) for other in others)
            loss = loss - mu * torch.log(near / (near + far)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("mu", [1.0, 5.0])
def test_rounds_with_an_absent_site_are_those_of_a_plain_implementation(moon, mu):
    game, last = moon(contrast={"mu": mu}), {}
    x = build_plain_model(game.study, game.study.seed).state_dict()
    for number, sites in ((1, COUNTS), (2, ("east", "west")), (3, COUNTS)):
        game.round(absent=tuple(COUNTS.keys() - set(sites)))
        # North's own last model is still that of round 1 in round 3.
        last |= {site: trained(game, site, number, x, last.get(site), mu) for site in sites}
        whole = sum(COUNTS[site] for site in sites)
        x = {
            name: sum(COUNTS[site] / whole * last[site][name] for site in sites) if value.is_floating_point() else value
            for name, value in x.items()
        }
        for name, array in game.models("east").items():
            np.testing.assert_allclose(array, x[name.removeprefix("model/")].numpy(), rtol=1e-3, atol=1e-5)


def test_without_weight_it_is_fedavg_and_with_it_from_the_second_round_on_not(moon):
    ours, none, plain = moon(), moon("none", contrast={"mu": 0.0}), moon("plain", name="fedavg")
    ours.round(), none.round(), plain.round()
    for name, array in plain.models("east").items():
        np.testing.assert_array_equal(array, ours.models("east")[name])
    ours.round(), none.round(), plain.round()
    for name, array in plain.models("east").items():
        np.testing.assert_allclose(none.models("east")[name], array, rtol=1e-6)
    assert any(not np.array_equal(array, ours.models("east")[n]) for n, array in plain.models("east").items())


def test_a_site_keeps_its_own_model_as_it_trained_it(moon):
    game = moon()
    before = game.models("east")
    game.round()
    kept = game.kept("east", 1)["contrast"]
    assert kept["round"] == 1
    for name, change in game.answers["train"]["east"].of("model").items():
        np.testing.assert_allclose(kept["state"][name].numpy(), before[f"model/{name}"] + change, rtol=1e-5, atol=1e-6)


def test_a_site_that_lost_its_own_model_is_named_and_the_others_go_on(moon):
    game = moon(federation={"max_missed_rounds": 3})
    game.round()
    for path in (game.folder("north") / "rounds").iterdir():
        path.unlink()
    record = game.round()
    assert record.answered == ["east", "west"]
    assert "site 'north' must hold its own model of round 1, which is not in its state" in record.failed["north"]


def test_a_site_that_comes_late_begins_without_a_contrast(moon):
    game = moon(federation={"max_missed_rounds": 3})
    game.round(absent=("north",))
    assert game.round().answered == ["east", "north", "west"]
    assert game.sent["train"]["north"].about("contrast") == {"holds": 0}


def test_a_round_whose_answer_was_lost_was_trained_all_the_same(moon):
    game = moon(federation={"max_missed_rounds": 3})
    game.round(change=lambda task, site, answer: answer.failed("lost") if site == "east" else answer)
    assert game.round().answered == ["east", "north", "west"]
    assert game.server.parts["contrast"].holds == dict.fromkeys(COUNTS, 2)


def test_a_run_goes_on_from_its_checkpoint(moon):
    whole, halved = moon(), moon("other")
    whole.rounds(3)
    halved.rounds(2)
    halved.resume()
    assert halved.server.parts["contrast"].holds == dict.fromkeys(COUNTS, 2)
    halved.round()
    for name, array in whole.models("east").items():
        np.testing.assert_array_equal(array, halved.models("east")[name])


def test_it_travels_as_fedavg_and_a_site_keeps_one_model_more(moon):
    ours, plain = moon(), moon("plain", name="fedavg")
    record, other = ours.round(), plain.round()
    assert (record.bytes_to, record.bytes_from) == (other.bytes_to, other.bytes_from)
    found = count_traffic(ours.study, 3, (1, 32, 32))
    assert (found.bytes_to[0], found.bytes_from[0]) == (record.bytes_to["east"], record.bytes_from["east"])
    state = build_plain_model(ours.study, 0).state_dict()
    assert home_bytes(ours.study) - home_bytes(plain.study) == sum(value.nbytes for value in state.values())


@pytest.mark.parametrize(
    "more",
    [
        {"stays_home": "batchnorm"},
        {"stays_home": "head"},
        {"parts": ["scaffold"]},
        {"input": "harmofl"},
        {"extra_rounds": 1},
        {"average_last": 0.5},
    ],
    ids=str,
)
def test_it_goes_with_the_other_answers(moon, more):
    game = moon(rounds=3, **more)
    assert set(game.finish().scores) == set(COUNTS)
    assert [record.answered for record in game.server.ledger] == [list(COUNTS)] * game.study.total_rounds
