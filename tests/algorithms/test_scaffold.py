import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.scaffold import Control, new_control
from silofl.core.presets import find_recipe
from silofl.core.steps import corrected_step, plain_step
from silofl.errors import ConfigError
from silofl.models import build_plain_model
from silofl.models.networks import NETWORKS
from silofl.parts.task import Message
from silofl.studies.traffic import count_traffic
from silofl.study.sections import TrainingSettings
from silofl.training.losses import make_loss

from .conftest import assert_same_course

KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")


def test_a_new_control_is_the_mean_gradient_of_the_sites_own_steps():
    own, server, x = ({"w": np.float32([value])} for value in (0.5, 0.25, 2.0))
    # two steps of eta = 0.1 with the corrected gradients 1 and 3: y = 2 - 0.1 * (1 + 3)
    found = new_control(own, server, x, {"w": np.float32([1.6])}, divisor=0.2)
    # c_i - c + mean of the corrected gradients, 0.5 - 0.25 + 2
    np.testing.assert_allclose(found["w"], [2.25], rtol=1e-6)
    assert found["w"].dtype == np.float32


def test_a_corrected_step_follows_the_gradient_and_the_correction():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.25)
    batch = torch.ones(1, 1), torch.full((1, 1), 2.0)
    loss = corrected_step(plain_step, {"weight": torch.tensor([[1.0]])})(
        model, optimizer, nn.functional.mse_loss, batch
    )
    # gradient -4, correction +1: w = 0 + 0.25 * 3
    assert model.weight.item() == 0.75 and loss.item() == 4
    plain_step(model, optimizer, nn.functional.mse_loss, batch)
    # gradient 2 * (0.75 - 2) = -2.5: the optimiser itself is as it was
    assert model.weight.item() == 0.75 + 0.25 * 2.5


def test_a_correction_of_zero_changes_nothing():
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    models[1].load_state_dict(models[0].state_dict())
    zero = {name: torch.zeros_like(p) for name, p in models[0].named_parameters()}
    batch = torch.rand(4, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0])
    for model, step in zip(models, (plain_step, corrected_step(plain_step, zero)), strict=True):
        step(model, torch.optim.SGD(model.parameters(), 0.1), nn.functional.cross_entropy, batch)
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def network(v, prefix, *index):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    at = {key: v[f"{prefix}/{key}"][index] if index else v[f"{prefix}/{key}"] for key in KEYS}
    model.load_state_dict({key: torch.tensor(value) for key, value in at.items()})
    return model


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
        x, present = arrays(model), np.flatnonzero(v["present"][r])
        changes, updates = [], []
        for i in present:
            site = network(v, "init")
            site.load_state_dict({key: torch.tensor(value) for key, value in x.items()})
            optimizer = torch.optim.SGD(site.parameters(), eta)
            shift = {key: torch.tensor(server[key] - own[i][key]) for key in KEYS}
            step = corrected_step(plain_step, shift)
            whole = [torch.tensor(v[name][r, i]).flatten(0, 1) for name in "xy"]
            for k in range(steps):
                batch = torch.tensor(v["x"][r, i, k]), torch.tensor(v["y"][r, i, k])
                step(site, optimizer, nn.functional.mse_loss, batch)
                for key, value in arrays(site).items():
                    np.testing.assert_allclose(value, v[f"{option}.site/{key}"][r, i, k], rtol=1e-6)
            if option == "II":
                new = new_control(own[i], server, x, arrays(site), steps * eta)
            else:
                probe = network(v, "init")
                probe.load_state_dict({key: torch.tensor(value) for key, value in x.items()})
                nn.functional.mse_loss(probe(whole[0]), whole[1]).backward()
                new = {name: p.grad.numpy() for name, p in probe.named_parameters()}
            changes.append({key: new[key] - own[i][key] for key in KEYS})
            updates.append({key: arrays(site)[key] - x[key] for key in KEYS})
            own[i] = new
            for key in KEYS:
                np.testing.assert_allclose(new[key], v[f"{option}.control/{key}"][r, i], rtol=1e-6, atol=1e-14)
        eta_g = float(v["hyper_eta_g"])
        x = {key: x[key] + eta_g * np.mean([update[key] for update in updates], axis=0) for key in KEYS}
        server = {key: server[key] + sum(change[key] for change in changes) / sites for key in KEYS}
        model.load_state_dict({key: torch.tensor(value) for key, value in x.items()})
        for key in KEYS:
            np.testing.assert_allclose(x[key], v[f"{option}.global/{key}"][r], rtol=1e-6)
            np.testing.assert_allclose(server[key], v[f"{option}.server_control/{key}"][r], rtol=1e-6, atol=1e-14)
            # c is the mean of all c_i, those of absent sites included
            np.testing.assert_allclose(server[key], np.mean([c[key] for c in own], axis=0), rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimizer": "adam"}, "training.optimizer must be sgd with control variates, not 'adam'"),
        (
            {"optimizer": "sgd", "momentum": 0.9},
            "training.momentum must be 0 with control variates, not 0.9: .* set algorithm.control.has_momentum: true",
        ),
    ],
)
def test_training_that_is_not_plain_sgd_is_refused(training, message):
    with pytest.raises(ConfigError, match=message):
        Control().check_study(SimpleNamespace(training=TrainingSettings(**training)))


def test_momentum_is_for_those_who_ask_for_it_and_adam_for_nobody():
    asked = Control(has_momentum=True)
    asked.check_study(SimpleNamespace(training=TrainingSettings(optimizer="sgd", momentum=0.9)))
    with pytest.raises(ConfigError, match="must be sgd with control variates, not 'adamw'"):
        asked.check_study(SimpleNamespace(training=TrainingSettings(optimizer="adamw")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixing": "softpull"}, "one model of all sites"),
        ({"stays_home": "everything"}, "one model of all sites"),
        ({"extra_rounds": 3}, "extra_rounds must be 0 with control variates, .*, not 3; leave it out"),
    ],
)
def test_control_variates_go_with_one_model_of_all_sites(changes, message):
    with pytest.raises(ConfigError, match=message):
        find_recipe("scaffold", "paper", changes)


SGD = {"optimizer": "sgd", "momentum": 0.0, "batch_size": 2, "learning_rate": 0.05}
SITES = ("east", "north", "west")


@pytest.fixture
def scaffold(play, make_study):
    """Begin a run of SCAFFOLD."""

    def start(option=2, folder="state", training=SGD, rounds=3, has_momentum=False, **settings):
        control = {"option": option, "has_momentum": has_momentum}
        study = make_study(rounds=rounds, training=training, name="scaffold", control=control, **settings)
        return play(folder=folder, study=study)

    return start


def kept_controls(game, number):
    return {site: game.kept(site, number)["control"]["own"] for site in SITES}


@pytest.mark.parametrize("option", [1, 2])
def test_the_servers_control_is_the_mean_of_the_sites_also_after_a_round_without_one(scaffold, option):
    game = scaffold(option)
    game.round()
    game.round(absent=("north",))
    own = [game.kept(site, 2)["control"]["own"] for site in SITES]
    for name, array in game.server.parts["control"].control.items():
        np.testing.assert_allclose(array, np.mean([one[name].numpy() for one in own], axis=0), rtol=1e-4, atol=1e-6)
    assert any(np.abs(array).max() > 0 for array in game.server.parts["control"].control.values())


def test_a_rule_that_shortens_a_variate_at_the_server_shortens_it_in_the_sites_steps_too(scaffold):
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


def test_with_weights_by_examples_it_is_their_weighted_mean_also_where_a_site_has_lost_some(scaffold):
    def forgotten(task, site, answer):
        return answer | Message(meta=answer.meta | {"num_examples": 3, "num_patients": 3}) if site == "east" else answer

    game = scaffold(weights="examples")
    # 5, 4 and 3 training examples, then 2 fewer.
    for number, (counts, change) in enumerate((((5, 4, 3), None), ((3, 4, 3), forgotten)), start=1):
        assert game.round(change=change).examples == dict(zip(SITES, counts, strict=True))
        own = kept_controls(game, number)
        for name, array in game.server.parts["control"].control.items():
            mean = np.average([own[site][name].numpy() for site in SITES], axis=0, weights=counts)
            np.testing.assert_allclose(array, mean, rtol=1e-4, atol=1e-6)


def test_what_a_site_keeps_back_counts_by_the_examples_that_it_has_now_too(scaffold):
    def forgotten(task, site, answer):
        if site != "east":
            return answer
        sent = {name: array for name, array in answer.arrays.items() if not name.startswith("control/")}
        return Message(sent, answer.meta | {"num_examples": 3, "num_patients": 3})

    game = scaffold(weights="examples")
    game.round()
    game.round(change=forgotten)
    part = game.server.parts["control"]
    for name, array in part.control.items():
        mean = np.average([part.own[site][name] for site in SITES], axis=0, weights=(3, 4, 3))
        np.testing.assert_allclose(array, mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_partial", [True, False])
def test_a_site_that_kept_back_its_change_goes_on_from_the_control_that_the_server_counts(scaffold, is_partial):
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
    own = kept_controls(game, 3)
    for name, array in game.server.parts["control"].control.items():
        mean = np.mean([own[site][name].numpy() for site in SITES], axis=0)
        np.testing.assert_allclose(array, mean, rtol=1e-4, atol=1e-6)


def test_the_first_round_is_fedavgs_for_all_controls_are_zero(scaffold, play, make_study):
    ours = scaffold()
    theirs = play(folder="other", study=make_study(training=SGD, weights="uniform"))
    ours.round(), theirs.round()
    for name, array in theirs.models("east").items():
        np.testing.assert_array_equal(array, ours.models("east")[name])
    ours.round(), theirs.round()
    assert any(not np.array_equal(array, ours.models("east")[n]) for n, array in theirs.models("east").items())


def test_option_two_is_the_mean_gradient_of_the_sites_own_steps(scaffold):
    game = scaffold()
    before = game.models("east")
    game.round()
    change = game.answers["train"]["east"]
    for name, own in game.kept("east", 1)["control"]["own"].items():
        # c_i = c = 0: (x - y) / (K eta), with 5 examples in 2 steps, for a last batch of one joins the one before it
        expected = -change.of("model")[name] / (change.meta["steps"] * 0.05)
        np.testing.assert_allclose(own.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert before.keys() == game.models("east").keys()


@pytest.mark.parametrize("option", [1, 2])
def test_what_the_loss_does_not_depend_on_has_a_control_of_zero(scaffold, monkeypatch, option):
    def build(settings, in_channels, out_channels, dimensions):
        network = nn.Conv2d(in_channels, out_channels, 1)
        network.spare = nn.Parameter(torch.ones(2))
        return network

    monkeypatch.setitem(NETWORKS, "unet", build)
    game = scaffold(option, network={})
    assert game.rounds(2).answered == list(SITES)
    np.testing.assert_array_equal(game.server.parts["control"].control["network.spare"], [0, 0])
    np.testing.assert_array_equal(game.models("east")["model/network.spare"], [1, 1])


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
                p -= rate * (gradient + rho * velocity[name] if training.is_nesterov else velocity[name])
    # The velocity holds step k's gradient from then on, each time rho times as much.
    held = [sum(rho**j for j in range(steps - k)) for k in range(steps)]
    reach = sum(1 + rho * one if training.is_nesterov else one for one in held)
    return copy.deepcopy(model.state_dict()), reach


@pytest.mark.parametrize(
    "more",
    [{}, {"is_nesterov": True}, {"momentum": 0.5, "schedule": "poly", "local_epochs": 2}, {"momentum": 0.0}],
    ids=["momentum", "nesterov", "falling rate", "none"],
)
def test_rounds_with_momentum_and_an_absent_site_are_those_of_a_plain_implementation(scaffold, more):
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
        x = {
            name: sum(end[name] for end in ends.values()) / len(ends) if value.is_floating_point() else value
            for name, value in x.items()
        }
        assert_same_course(game.models("east"), x, start)
        for site, controls in kept_controls(game, number).items():
            for name, tensor in controls.items():
                np.testing.assert_allclose(tensor.numpy(), own[site][name].numpy(), rtol=1e-2, atol=1e-4)


def test_momentum_begins_every_round_afresh_also_where_a_run_goes_on(scaffold):
    whole, halved, lossy = (
        scaffold(folder=name, training=SGD | {"momentum": 0.9}, has_momentum=True) for name in ("a", "b", "c")
    )
    halved.goes_on_as(whole)
    lossy.rounds(2)
    for path in (lossy.folder("north") / "rounds").iterdir():
        path.unlink()
    (note,) = lossy.round().notes
    assert note.endswith("from none: its control variate came from the server, to within rounding")
    assert lossy.server.losses == []
    # The control that the server sends back is a sum of changes, rounded otherwise than the site's own.
    for name, array in whole.models("east").items():
        np.testing.assert_allclose(array, lossy.models("east")[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("option", [1, 2])
def test_in_half_precision_too_it_is_the_mean_of_what_the_sites_hold_also_where_one_lost_it(scaffold, option):
    game = scaffold(option, rounds=6, federation={"precision": "float16"})
    for number in range(1, 7):
        game.round()
        own = kept_controls(game, number)
        for name, total in game.server.parts["control"].total.items():
            mean = np.mean([one[name].numpy() for one in own.values()], axis=0)
            # Sums of float32; the changes are rounded to steps of 1e-3 of a number.
            np.testing.assert_allclose(total / 3, mean, rtol=1e-6, atol=1e-6 * np.abs(mean).max())
        if number == 3:
            for path in (game.folder("north") / "rounds").iterdir():
                path.unlink()


def test_a_site_that_lost_its_control_gets_it_back(scaffold):
    game, whole = scaffold(), scaffold(folder="whole")
    for one in (game, whole):
        one.round()
    own = kept_controls(game, 1)["north"]
    for path in (game.folder("north") / "rounds").iterdir():
        path.unlink()
    record = game.round()
    assert record.answered == ["east", "north", "west"] and record.failed == {}
    again = game.sent["train"]["north"].of("control")
    for name, tensor in own.items():
        np.testing.assert_array_equal(again[f"own/{name}"], tensor.numpy())
    whole.round()
    # Plain SGD keeps nothing else at home.
    for name, array in whole.models("north").items():
        np.testing.assert_array_equal(array, game.models("north")[name])
    game.round()
    assert not [name for name in game.sent["train"]["north"].arrays if name.startswith("control/own/")]


def test_what_travels_is_twice_the_parameters_and_batchnorm_that_stays_home_has_no_control(scaffold):
    parts = scaffold().server.parts
    control = sum(array.nbytes for array in parts["control"].control.values())
    model = sum(array.nbytes for array in parts["model"].common.values())
    assert count_traffic(scaffold().study, 3, (1, 32, 32)).bytes_from[0] == model + control
    parts = scaffold(folder="home", stays_home="batchnorm").server.parts
    assert parts["control"].control.keys() == {
        name for name in parts["model"].common if not name.endswith(("running_mean", "running_var"))
    }


def test_adam_is_refused_before_anything_starts(make_study):
    with pytest.raises(ConfigError, match="training.optimizer must be sgd with control variates, not 'adam'"):
        make_study(name="scaffold", training={"optimizer": "adam"})
