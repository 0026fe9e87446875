import copy

import pytest
import torch
from torch import nn

from silofl.algorithms.ditto import Pull
from silofl.core.presets import find_recipe
from silofl.core.steps import plain_step

from .conftest import assert_is, average, batch_of, network

MSE = nn.functional.mse_loss


def test_a_whole_run_follows_the_reference(vectors):
    v = vectors("baselines/ditto")
    eta, answer = float(v["hyper_eta"]), Pull(strength=float(v["hyper_lam"]))
    shared, own = network(v, "init"), [network(v, "init") for _ in v["n"]]
    for r in range(len(v["x"])):
        trained = {}
        for i, personal in enumerate(own):
            site = copy.deepcopy(shared)
            pair = answer.begin(site, personal, {})
            optimizers = [torch.optim.SGD(model.parameters(), eta) for model in (site, personal)]
            for k in range(v["x"].shape[2]):
                batch = batch_of(v, r, i, k)
                # The shared model moves first: x of the pull stays where it was received.
                pair.shared(plain_step)(site, optimizers[0], MSE, batch)
                expected = MSE(personal(batch[0]), batch[1]).item()
                loss = pair.personal(personal, optimizers[1], MSE, batch)
                assert loss.item() == pytest.approx(expected, rel=1e-12)
                assert_is(site, v, "site", r, i, k)
                assert_is(personal, v, "personal", r, i, k)
            assert pair.kept() == {}
            trained[i] = site.state_dict()
        shared.load_state_dict(average(trained, v["p"], trained[0]))
        assert_is(shared, v, "global", r)


def test_the_pull_acts_on_parameters_that_are_trained_and_on_no_statistics():
    def model(value):
        found = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
        found[0].weight.requires_grad_(False)
        nn.init.constant_(found[1].weight, value)
        return found

    shared, personal = model(3.0), model(1.0)
    inputs = torch.tensor([[0.0], [2.0]])
    with torch.no_grad():
        target = personal(inputs)
    statistics, frozen = personal[1].running_mean.clone(), personal[0].weight.clone()
    step = Pull(strength=0.5).begin(shared, personal, {}).personal
    step(personal, torch.optim.SGD([personal[1].weight], 0.1), MSE, (inputs, target))
    # The loss is 0 and its gradient too: 1 - 0.1 * 0.5 * (1 - 3)
    torch.testing.assert_close(personal[1].weight.detach(), torch.tensor([1.1]))
    assert torch.equal(personal[0].weight, frozen)
    # Its own mean of the batch, once more with momentum 0.1: nothing of the shared model's zeros
    torch.testing.assert_close(personal[1].running_mean, 0.9 * statistics + 0.1 * frozen[0])
    assert torch.equal(shared[1].running_mean, torch.zeros(1))


def test_the_server_may_step_with_the_shared_model_as_without_the_personal_one():
    recipe = find_recipe("ditto", "recommended", {"parts": ["fedopt", "ditto"]})
    assert recipe.traveling_roles == ("global",) and recipe.roles == ("global", "personal")
