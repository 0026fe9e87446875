import copy

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.scaffold import new_control
from silofl.core.steps import corrected_step, plain_step
from silofl.models import build_plain_model
from silofl.parts.task import Message
from silofl.training.losses import make_loss

from ..conftest import assert_alike
from .conftest import COUNTS, KEYS, SGD, assert_is, assert_same_course, average, batch_of, lose_state, network

SITES = tuple(COUNTS)


def arrays(model):
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("option", ["II", "I"])
def test_a_whole_run_with_absent_sites_follows_the_reference(vectors, option):
    v = vectors("baselines/scaffold")
    eta, sites, steps = float(v["hyper_eta"]), v["x"].shape[1], v["x"].shape[2]
    model = network(v, "init")
    zero = {key: np.zeros_like(array) for key, array in arrays(model).items()}
    server, own = dict(zero), [dict(zero) for _ in range(sites)]
    for r in range(v["x"].shape[0]):
        x, changes, updates = arrays(model), [], []
        for i in np.flatnonzero(v["present"][r]):
            site = copy.deepcopy(model)
            optimizer = torch.optim.SGD(site.parameters(), eta)
            step = corrected_step(plain_step, {key: torch.tensor(server[key] - own[i][key]) for key in KEYS})
            for k in range(steps):
                step(site, optimizer, nn.functional.mse_loss, batch_of(v, r, i, k))
                assert_is(site, v, f"{option}.site", r, i, k)
            if option == "II":
                new = new_control(own[i], server, x, arrays(site), steps * eta)
            else:
                probe, (inputs, targets) = copy.deepcopy(model), batch_of(v, r, i)
                nn.functional.mse_loss(probe(inputs.flatten(0, 1)), targets.flatten(0, 1)).backward()
                new = {name: p.grad.numpy() for name, p in probe.named_parameters()}
            changes.append({key: new[key] - own[i][key] for key in KEYS})
            updates.append({key: arrays(site)[key] - x[key] for key in KEYS})
            own[i] = new
            for key in KEYS:
                np.testing.assert_allclose(new[key], v[f"{option}.control/{key}"][r, i], rtol=1e-6, atol=1e-14)
        eta_g = float(v["hyper_eta_g"])
        for key, p in model.named_parameters():
            p.data += eta_g * torch.tensor(np.mean([update[key] for update in updates], axis=0))
            server[key] = server[key] + sum(change[key] for change in changes) / sites
            np.testing.assert_allclose(server[key], v[f"{option}.server_control/{key}"][r], rtol=1e-6, atol=1e-14)
        assert_is(model, v, f"{option}.global", r)


@pytest.fixture
def scaffold(play, make_study):
    """Begin a run of SCAFFOLD."""

    def start(option=2, folder="state", training=SGD, rounds=3, has_momentum=False, **settings):
        control = {"option": option, "has_momentum": has_momentum}
        study = make_study(rounds=rounds, training=training, name="scaffold", scaffold=control, **settings)
        return play(folder=folder, study=study)

    return start


def kept_controls(game, number):
    return {site: game.kept(site, number)["control"]["own"] for site in SITES}


def assert_mean(game, own, weights=None):
    """Check that the server's control is the mean of the sites' own ones."""
    for name, array in game.server.parts["control"].control.items():
        mean = np.average([np.asarray(own[site][name]) for site in SITES], axis=0, weights=weights)
        np.testing.assert_allclose(array, mean, rtol=1e-4, atol=1e-6)


def test_a_variate_shortened_at_the_server_is_shortened_in_steps(scaffold):
    game = scaffold(robust="clipped")
    game.round()
    own = kept_controls(game, 1)
    game.round()
    sent = {site: game.sent["train"][site] for site in SITES}
    shares = {site: sent[site].meta.get("control", {}).get("share", 1.0) for site in SITES}
    lengths = {site: sum(float((one**2).sum()) for one in own[site].values()) ** 0.5 for site in SITES}
    median = np.median([*lengths.values()])
    assert shares == pytest.approx({site: min(1, median / length) for site, length in lengths.items()})
    # Of three sites one is longer than the median; c - share * c_i is 0 on average, as without a rule.
    assert sum(share < 1 for share in shares.values()) == 1
    for name, array in sent["east"].of("control").items():
        counted = np.mean([shares[site] * own[site][name].numpy() for site in SITES], axis=0)
        np.testing.assert_allclose(array, counted, rtol=1e-4, atol=1e-6)
    # Its next variate is still the mean gradient of its own steps: what it subtracted is added again.
    for site, found in kept_controls(game, 2).items():
        change = game.answers["train"][site]
        for name, control in sent[site].of("control").items():
            gradient = -change.of("model")[name] / (change.meta["steps"] * 0.05)
            wanted = shares[site] * own[site][name].numpy() - control + gradient
            np.testing.assert_allclose(found[name].numpy(), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("is_kept_back", [False, True])
def test_weights_by_examples_give_their_weighted_mean_after_a_loss(scaffold, is_kept_back):
    def forgotten(task, site, answer):
        if site != "east":
            return answer
        gone = {name for name in answer.arrays if is_kept_back and name.startswith("control/")}
        sent = {name: array for name, array in answer.arrays.items() if name not in gone}
        return Message(sent, answer.meta | {"num_examples": 3, "num_patients": 3})

    game = scaffold(weights="examples")
    assert game.round().examples == COUNTS
    assert_mean(game, kept_controls(game, 1), (5, 4, 3))
    # Now east has 2 fewer; what it keeps back counts as the server has it.
    assert game.round(change=forgotten).examples == COUNTS | {"east": 3}
    assert_mean(game, game.server.parts["control"].own if is_kept_back else kept_controls(game, 2), (3, 4, 3))


@pytest.mark.parametrize("is_partial", [True, False])
def test_a_kept_back_change_leaves_the_control_the_server_counts(scaffold, is_partial):
    def kept_back(task, site, answer):
        control = [name for name in answer.arrays if name.startswith("control/")]
        gone = control[:1] if is_partial else control
        left = {name: array for name, array in answer.arrays.items() if name not in gone}
        return Message(left, answer.meta) if site == "east" else answer

    game = scaffold(rounds=4)
    game.round()
    game.round(change=kept_back)
    assert game.server.parts["control"].astray == ("east",)
    game.round()
    sent = {site: task.arrays for site, task in game.sent["train"].items()}
    assert [site for site in SITES if any(name.startswith("control/own/") for name in sent[site])] == ["east"]
    assert game.server.parts["control"].astray == ()
    assert_mean(game, kept_controls(game, 3))


def trained(game, site, number, x, correction, rate):
    """Return a site's model after a round from x, and how far its steps reach: momentum as it is written in books."""
    training, model = game.study.training, build_plain_model(game.study, 0)
    rho, steps = training.momentum, 0
    model.load_state_dict(x)
    model.train()
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for inputs, targets in (batch for batches in game.epochs(site, number) for batch in batches):
        model.zero_grad()
        make_loss(game.study)(model(inputs), targets).backward()
        steps += 1
        with torch.no_grad():
            for name, p in model.named_parameters():
                gradient = p.grad + correction[name]
                velocity[name] = rho * velocity[name] + gradient
                p -= rate * (gradient + rho * velocity[name] if training.nesterov else velocity[name])
    # The velocity holds step k's gradient from then on, each time rho times as much.
    held = [sum(rho**j for j in range(steps - k)) for k in range(steps)]
    reach = sum(1 + rho * one if training.nesterov else one for one in held)
    return copy.deepcopy(model.state_dict()), reach


@pytest.mark.parametrize(
    "more",
    [{"nesterov": True}, {"momentum": 0.5, "schedule": "poly", "local_epochs": 2}, {"momentum": 0.0}],
    ids=["nesterov", "falling rate", "none"],
)
def test_momentum_and_an_absent_site_follow_a_plain_implementation(scaffold, more):
    game = scaffold(training=SGD | {"momentum": 0.9} | more, has_momentum=True)
    x = start = build_plain_model(game.study, game.study.seed).state_dict()
    parameters = [name for name, _ in build_plain_model(game.study, 0).named_parameters()]
    own = {site: {name: torch.zeros_like(x[name]) for name in parameters} for site in SITES}
    for number, absent in ((1, ()), (2, ("north",)), (3, ())):
        game.round(absent=absent)
        rate = 0.05 * ((1 - (number - 1) / 3) ** 0.9 if "schedule" in more else 1)
        mean = {name: sum(own[site][name] for site in SITES) / 3 for name in parameters}
        ends = {}
        for site in (site for site in SITES if site not in absent):
            correction = {name: mean[name] - own[site][name] for name in parameters}
            ends[site], reach = trained(game, site, number, x, correction, rate)
            # What the steps went along is the gradient and the correction, of which the site's own gradient stays.
            own[site] = {name: (x[name] - ends[site][name]) / (rate * reach) - correction[name] for name in parameters}
        x = average(ends, dict.fromkeys(SITES, 1), x)
        assert_same_course(game.models("east"), x, start)
        for site, controls in kept_controls(game, number).items():
            for name, tensor in controls.items():
                np.testing.assert_allclose(tensor.numpy(), own[site][name].numpy(), rtol=1e-2, atol=1e-4)


def test_a_site_that_lost_its_control_gets_it_back(scaffold):
    game, whole = scaffold(), scaffold(folder="whole")
    for one in (game, whole):
        one.round()
    own = kept_controls(game, 1)["north"]
    lose_state(game, "north")
    assert game.round().answered == list(SITES)
    again = game.sent["train"]["north"].of("control")
    for name, tensor in own.items():
        np.testing.assert_array_equal(again[f"own/{name}"], tensor.numpy())
    whole.round()
    # Plain SGD keeps nothing else at home.
    assert_alike(whole.models("north"), game.models("north"))
    game.finish()
    assert not game.sent["train"]["north"].of("control/own") and not game.sent["test"]["north"].of("control")
