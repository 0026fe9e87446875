import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.scaffold import Control, corrected_step, new_control
from silofl.core.presets import find_recipe
from silofl.core.steps import plain_step
from silofl.errors import ConfigError
from silofl.study_sections import TrainingSettings

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
        Control().check_training(TrainingSettings(**training))


def test_momentum_is_for_those_who_ask_for_it_and_adam_for_nobody():
    asked = Control(has_momentum=True)
    asked.check_training(TrainingSettings(optimizer="sgd", momentum=0.9))
    with pytest.raises(ConfigError, match="must be sgd with control variates, not 'adamw'"):
        asked.check_training(TrainingSettings(optimizer="adamw"))


@pytest.mark.parametrize("changes", [{"mixing": "softpull"}, {"stays_home": "everything"}])
def test_control_variates_go_with_one_model_of_all_sites(changes):
    with pytest.raises(ConfigError, match="one model of all sites"):
        find_recipe("scaffold", "paper", changes)


def test_sites_that_fine_tune_alone_take_no_control_variates():
    with pytest.raises(ConfigError, match="extra_rounds must be 0 with control variates, .*, not 3; leave it out"):
        find_recipe("scaffold", "paper", {"extra_rounds": 3})
