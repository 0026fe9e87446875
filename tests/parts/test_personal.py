"""The personal model beside the shared one, against a second, plain implementation of each rule."""

import copy

import numpy as np
import pytest
import torch

from silofl.models.networks import build_model
from silofl.training.losses import make_loss
from silofl_desk.studies.runs.traffic import count_traffic

from ..conftest import DROPPING, assert_alike
from .conftest import SITES, lose_state

pytestmark = pytest.mark.long

ETA = 0.05
SGD = {"optimizer": "sgd", "momentum": 0.0, "batch_size": 2, "learning_rate": ETA}
ALGORITHMS = {
    "ditto": {"name": "ditto", "ditto": {"strength": 0.7}},
    "apfl": {"name": "apfl", "apfl": {"alpha": 0.4, "learning_rate": 0.5}},
    "pfedme": {"name": "pfedme", "pfedme": {"strength": 10.0, "inner_steps": 2}, "server_lr": 1.5},
}


@pytest.fixture
def personal(play):
    """Begin a run of an algorithm that keeps a personal model."""

    def start(name="ditto", folder="state", training=SGD, **options):
        return play(folder=folder, training=training, **(ALGORITHMS[name] | options))

    return start


def kept_model(game, site, number, role="personal"):
    home = game.kept(site, number)["models"]["home"]
    return {name.removeprefix(f"{role}/"): value for name, value in home.items() if name.startswith(f"{role}/")}


# --- a second, plain implementation


def gradient(model, study, batch):
    """Return the plain gradient of a batch; running statistics move as in any training."""
    model.train()
    model.zero_grad()
    make_loss(study)(model(batch[0]), batch[1]).backward()
    return [p.grad.clone() for p in model.parameters()]


def moved(model, change):
    with torch.no_grad():
        for parameter, amount in zip(model.parameters(), change, strict=True):
            parameter.add_(amount)


def ditto(study, x, site, batches, strength=0.7):
    received, w, v = [p.detach().clone() for p in x.parameters()], copy.deepcopy(x), site["v"]
    for batch in batches:
        change = [
            -ETA * (g + strength * (p.detach() - q))
            for g, p, q in zip(gradient(v, study, batch), v.parameters(), received, strict=True)
        ]
        moved(w, [-ETA * g for g in gradient(w, study, batch)])
        moved(v, change)
    return w


def apfl(study, x, site, batches, alpha_rate=0.5):
    w, v, mixture = copy.deepcopy(x), site["v"], copy.deepcopy(site["v"])
    alpha = site.get("alpha", 0.4)
    for number, batch in enumerate(batches):
        old = [(p.detach().clone(), q.detach().clone()) for p, q in zip(v.parameters(), w.parameters(), strict=True)]
        for p, (mine, theirs) in zip(mixture.parameters(), old, strict=True):
            p.data = alpha * mine + (1 - alpha) * theirs
        g = gradient(mixture, study, batch)
        moved(w, [-ETA * one for one in gradient(w, study, batch)])
        moved(v, [-ETA * alpha * one for one in g])
        if number == 0:
            slope = sum(float(((mine - theirs) * one).sum()) for (mine, theirs), one in zip(old, g, strict=True))
            alpha = min(1.0, max(0.0, alpha - alpha_rate * slope))
    site["alpha"] = alpha
    # The statistics are the mixture's.
    for name, buffer in v.named_buffers():
        buffer.copy_(dict(mixture.named_buffers())[name])
    return w


def pfedme(study, x, site, batches, strength=10.0, inner_rate=0.05):
    w, theta = copy.deepcopy(x), site["v"]
    theta.load_state_dict(dict(w.named_parameters()), strict=False)
    for batch in batches:
        with torch.no_grad():
            w.train()(batch[0])
        for _ in range(2):
            pull = [strength * (p - q).detach() for p, q in zip(theta.parameters(), w.parameters(), strict=True)]
            g = gradient(theta, study, batch)
            moved(theta, [-inner_rate * (one + back) for one, back in zip(g, pull, strict=True)])
        gap = [(q - p).detach() for p, q in zip(theta.parameters(), w.parameters(), strict=True)]
        moved(w, [-ETA * strength * one for one in gap])
    return w


PLAIN = {"ditto": ditto, "apfl": apfl, "pfedme": pfedme}


def plain_run(game, name, rounds):
    """Return the shared model and each site's own after some rounds."""
    study, counts = game.study, {"east": 5, "north": 4, "west": 3}
    x, own = build_model(study, (1, 32, 32), study.seed), {}
    for number in range(1, rounds + 1):
        trained = {}
        for site in SITES:
            own.setdefault(site, {"v": copy.deepcopy(x)})
            batches = [batch for epoch in game.epochs(site, number) for batch in epoch]
            trained[site] = PLAIN[name](study, x, own[site], batches).state_dict()
        state = {
            key: sum(counts[site] / 12 * trained[site][key] for site in SITES)
            for key, value in x.state_dict().items()
            if value.is_floating_point()
        }
        # pFedMe's beta, of parameters alone: a running variance would fall below 0.
        beta = game.study.recipe.server_lr
        state |= {key: (1 - beta) * p.detach() + beta * state[key] for key, p in x.named_parameters()}
        x.load_state_dict(state, strict=False)
    return x, own


@pytest.mark.parametrize("name", ALGORITHMS)
def test_three_rounds_follow_a_plain_implementation(personal, name):
    game = personal(name)
    game.rounds(3)
    shared, own = plain_run(game, name, 3)
    for key, array in game.models("east").items():
        value = shared.state_dict()[key.removeprefix("global/")]
        np.testing.assert_allclose(array, value.numpy(), rtol=2e-4, atol=2e-5, err_msg=key)
    for site in SITES:
        found = kept_model(game, site, 3)
        for key, value in own[site]["v"].state_dict().items():
            np.testing.assert_allclose(found[key].numpy(), value.numpy(), rtol=2e-4, atol=2e-5, err_msg=key)
        kept = game.kept(site, 3).get("personal", {})
        assert kept == pytest.approx({key: value for key, value in own[site].items() if key != "v"}, rel=1e-4)


# --- two models


@pytest.mark.parametrize("name", ["ditto", "apfl"])
def test_a_pull_of_zero_is_local_training(personal, play, name):
    # APFL goes with plain SGD alone.
    training = SGD if name == "apfl" else {"batch_size": 2}
    options = {"training": training | {"local_epochs": 2}, "network": DROPPING}
    without = {"ditto": {"strength": 0.0}} if name == "ditto" else {}
    ours, fedavg = personal(name, **options | without), play(folder="fedavg", **options)
    ours.rounds(3), fedavg.rounds(3)
    assert_alike(ours.server.parts["global"].common, fedavg.server.parts["model"].common)
    if name == "ditto":
        local = play(folder="local", name="local", **options)
        local.rounds(3)
        for site in SITES:
            assert_alike(kept_model(ours, site, 3), kept_model(local, site, 3, "model"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_of_the_personal_model_leaves_its_site(personal, play, name):
    game = personal(name, rounds=2)
    record = game.round()
    assert {key.partition("/")[0] for key in game.answers["train"]["east"].arrays} == {"global"}
    assert {key.partition("/")[0] for key in game.sent["train"]["east"].arrays} == {"global"}
    found, fedavg = (count_traffic(one.study, 3, (1, 32, 32)) for one in (game, play(folder="fedavg", rounds=2)))
    assert found == fedavg
    assert found.bytes_to[0] == record.bytes_to["east"] and found.bytes_from[0] == record.bytes_from["east"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_site_tests_what_it_has_validated(personal, name):
    game = personal(name, rounds=2)
    tests = game.finish()
    assert tests.scores.keys() == set(SITES) and game.warnings == []
    best = game.server.best_round
    validation = game.server.ledger[best - 1].validation["east"]
    assert validation.models.keys() == {"global", "personal"} and validation.value == validation.models["personal"]
    tested = torch.load(game.folder("east") / "supermodel" / "weights" / "east.pt", weights_only=True)
    assert_alike(tested, {key: value.numpy() for key, value in deployed(game, name, "east", best).items()})
    statistics = [key for key in tested if key.endswith("running_mean")]
    shared = game.server.best_parts["global"].common
    assert statistics and all(not np.array_equal(tested[key], shared[key]) for key in statistics)


def deployed(game, name, site, number):
    """Return what a site uses after a round, computed by hand from what it keeps."""
    own = kept_model(game, site, number)
    if name != "apfl":
        return own
    alpha, shared = game.kept(site, number)["personal"]["alpha"], game.server.best_parts["global"]
    trained = {key for key in own if key not in shared.buffers}
    mixture = {key: alpha * own[key] + (1 - alpha) * torch.from_numpy(shared.common[key]) for key in trained}
    return own | mixture


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_absent_site_keeps_its_model_after_a_restart_too(personal, name):
    whole, halved = personal(name), personal(name, folder="halved")
    for game in (whole, halved):
        game.round()
        game.round(absent=("north",))
    assert_alike(kept_model(whole, "north", 2), kept_model(whole, "north", 1))
    halved.resume()
    for game in (whole, halved):
        record = game.round()
        assert record.answered == list(SITES) and record.notes == []
    for site in SITES:
        assert_alike(kept_model(whole, site, 3), kept_model(halved, site, 3))
    assert_alike(whole.models("east"), halved.models("east"))
    before = kept_model(whole, "north", 1)
    assert any(not torch.equal(value, before[key]) for key, value in kept_model(whole, "north", 3).items())


def test_a_site_that_lost_its_model_says_so(personal):
    game = personal(ditto={"strength": 1000.0}, training=SGD | {"learning_rate": 0.001})
    game.round(absent=("west",))
    lose_state(game, "north")
    received = game.models("west")
    record = game.round()
    assert record.answered == ["east", "west"]
    assert record.failed["north"] == (
        "the state of site 'north' lacks its personal model of round 1; restore its state folder, or "
        "start the study anew"
    )
    # eta lambda = 1: every step leads to what was received, but for the gradient, times the rate.
    for key, value in kept_model(game, "west", 2).items():
        if key.endswith(("weight", "bias")):
            np.testing.assert_allclose(value.numpy(), received[f"global/{key}"], atol=0.01)
