import copy
from itertools import cycle

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.perfedavg import meta_step
from silofl.core.presets import find_recipe, load_presets
from silofl.core.recipe import PRESET_NAMES
from silofl.errors import ConfigError

KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")


def network(arrays):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model.load_state_dict({key: torch.tensor(array) for key, array in arrays.items()})
    return model


def batches_of(v, r, i, k):
    return [(torch.tensor(x), torch.tensor(y)) for x, y in zip(v["x"][r, i, k], v["y"][r, i, k], strict=True)]


def assert_model(model, v, name, place, rtol=1e-6):
    for key, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), v[f"{name}/{key}"][place], rtol=rtol)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_a_whole_run_follows_the_reference(vectors, variant):
    v = vectors("baselines/perfedavg")
    delta, rate = {"fo": None, "hf": float(v["hyper_delta"])}[variant], float(v["hyper_beta"])
    shared = {key: v[f"init/{key}"] for key in KEYS}
    for r in range(len(v["x"])):
        ends = []
        for i in range(len(v["n"])):
            site, step = network(shared), meta_step(float(v["hyper_alpha"]), delta)
            optimizer = torch.optim.SGD(site.parameters(), rate)
            for k in range(v["x"].shape[2]):
                before = copy.deepcopy(site.state_dict())
                *first, last = batches_of(v, r, i, k)[: 2 if variant == "fo" else 3]
                for batch in first:
                    step(site, optimizer, nn.functional.mse_loss, batch)
                    # in between the model is where it was, bit for bit
                    assert all(torch.equal(value, before[key]) for key, value in site.state_dict().items())
                step(site, optimizer, nn.functional.mse_loss, last)
                assert_model(site, v, f"{variant}.site", (r, i, k))
                for key, parameter in site.named_parameters():
                    np.testing.assert_allclose(parameter.grad.numpy(), v[f"{variant}.meta/{key}"][r, i, k], rtol=1e-6)
            ends.append({key: p.detach().numpy() for key, p in site.named_parameters()})
        shared = {key: sum(p * end[key] for p, end in zip(v["p"], ends, strict=True)) for key in KEYS}
        for key in KEYS:
            np.testing.assert_allclose(shared[key], v[f"{variant}.global/{key}"][r], rtol=1e-6)


def test_the_differences_are_the_hessian_to_second_order(vectors):
    v = vectors("baselines/perfedavg")

    def error(delta):
        site = network({key: v[f"init/{key}"] for key in KEYS})
        step, optimizer = meta_step(float(v["hyper_alpha"]), delta), torch.optim.SGD(site.parameters(), 0.0)
        for batch in batches_of(v, 0, 0, 0):
            step(site, optimizer, nn.functional.mse_loss, batch)
        exact = {key: v[f"exact.meta/{key}"][0, 0, 0] for key in KEYS}
        return max(np.abs(p.grad.numpy() - exact[key]).max() for key, p in site.named_parameters())

    # a tenth of the distance, a hundredth of the error
    np.testing.assert_allclose(error(0.01) / error(0.1), 0.01, rtol=0.1)


@pytest.mark.parametrize(
    ("delta", "losses", "end"),
    [
        # f = (w - t)^2, g = 2 (w - t), h = 2 q, w = 1, alpha = beta = 0.1, targets 0, 2 and 5.
        # inner = 1 - 0.1 * 2 = 0.8; q = 2 (0.8 - 2) = -2.4; w = 1 + 0.24
        (None, [1.0, 1.44], 1.24),
        # h = -4.8, w = 1 - 0.1 (-2.4 + 0.48); the third loss is (w +- 0.5 q - 5)^2 = 16 + 1.2^2 in the mean
        (0.5, [1.0, 1.44, 17.44], 1.192),
    ],
    ids=["fo", "hf"],
)
def test_a_step_by_hand(delta, losses, end):
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    step, optimizer = meta_step(0.1, delta), torch.optim.SGD(model.parameters(), 0.1)
    for wanted, target in zip(losses, (0, 2, 5), strict=False):
        batch = torch.ones(1, 1).double(), torch.full((1, 1), target).double()
        found = step(model, optimizer, nn.functional.mse_loss, batch)
        np.testing.assert_allclose(float(found), wanted)
    np.testing.assert_allclose(model.weight.item(), end)


@pytest.mark.parametrize(("delta", "moving"), [(None, cycle([True, False])), (1e-3, cycle([True, False, False]))])
def test_running_statistics_move_on_the_first_batch_only(delta, moving):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    step, optimizer = meta_step(0.1, delta), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        before = copy.deepcopy(dict(model.named_buffers()))
        step(model, optimizer, nn.functional.cross_entropy, (torch.rand(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])))
        is_moving = next(moving)
        assert all(torch.equal(value, before[name]) != is_moving for name, value in model.named_buffers())


def test_both_passes_of_the_hessian_draw_the_same_dropout():
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1)), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    step, optimizer = meta_step(0.1, 1e-3), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        step(model, optimizer, nn.functional.mse_loss, (torch.ones(2, 64), torch.zeros(2, 1)))
    of_d, of_inner, above, below = seen
    assert torch.equal(above, below)
    assert not torch.equal(of_d, of_inner) and not torch.equal(of_inner, above)


def test_the_passes_of_the_hessian_have_no_autocast(casting):
    model = casting
    step, optimizer = meta_step(0.1, 1e-3), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        step(model, optimizer, nn.functional.mse_loss, (torch.rand(2, 3), torch.zeros(2, 1)))
    assert model.dtypes == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    assert model.is_autocast


def test_a_frozen_parameter_stays_where_it_is():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    before, step = copy.deepcopy(model.state_dict()), meta_step(0.1, 1e-3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
    for _ in range(3):
        step(model, optimizer, nn.functional.mse_loss, (torch.rand(2, 3), torch.rand(2, 1)))
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"1.weight", "1.bias"}


def test_the_paper_averages_sites_uniformly():
    assert {name: load_presets("perfedavg")[name].weights for name in PRESET_NAMES} == {
        "paper": "uniform",
        "reference": "uniform",
        "recommended": "examples",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stays_home": "everything"}, "step must go with one model of all sites where it is a meta-step"),
        ({"mixing": "softpull"}, "step must go with one model of all sites where it is a meta-step"),
        ({"extra_rounds": 2}, "extra_rounds must be 0 with meta-steps, .* not 2; raise meta_step.deployed_steps"),
        ({"parts": ["scaffold"]}, "parts must be without control, which counts a step for every batch"),
        ({"parts": ["fednova"]}, "parts must be without normalized_steps, which counts a step for every batch"),
        ({"meta_step": {"delta": 0.01}}, "meta_step.delta must go with meta_step.variant: hf"),
        ({"meta_step": {"variant": "hf", "delta": 1e-5}}, "meta_step.delta must be greater than or equal to 0.0001"),
        ({"meta_step": {"alpha": 0.0}}, "meta_step.alpha must be greater than 0"),
        ({"meta_step": {"variant": "exact"}}, "meta_step.variant must be 'fo' or 'hf', not 'exact'"),
        ({"meta_step": {"deployed_steps": 0}}, "meta_step.deployed_steps must be greater than 0"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ConfigError, match=f"algorithm.{message}"):
        find_recipe("perfedavg", "recommended", changes)
