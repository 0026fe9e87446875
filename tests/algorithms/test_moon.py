import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.moon import contrastive_loss, contrastive_step, pool_features
from silofl.core.presets import find_recipe
from silofl.core.steps import plain_step
from silofl.errors import ConfigError
from silofl.study_sections import ModelSettings

KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")


def test_a_representation_between_the_two_loses_log_two_and_one_like_the_received_less():
    east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert contrastive_loss(torch.ones(1, 2), east, north, 0.5).item() == pytest.approx(math.log(2))
    # cosines 1 and 0, by tau = 0.5: log(1 + e^-2)
    assert contrastive_loss(3 * east, east, north, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_loss_and_gradient_are_those_of_the_reference(vectors, temperature):
    v = vectors("baselines/moon")
    z = torch.tensor(v["z"], requires_grad=True)
    loss = contrastive_loss(z, torch.tensor(v["z_global"]), torch.tensor(v["z_previous"]), temperature)
    loss.backward()
    np.testing.assert_allclose(loss.item(), v[f"loss_{temperature}"], rtol=1e-6)
    np.testing.assert_allclose(z.grad.numpy(), v[f"dz_{temperature}"], rtol=1e-6)
    assert contrastive_loss(v["z"], v["z_global"], v["z_previous"], temperature) == loss


def test_a_zero_vector_is_as_near_to_everything(vectors):
    v = vectors("baselines/moon")
    z = torch.tensor(v["z_zero"], requires_grad=True)
    loss = contrastive_loss(z, torch.tensor(v["z_global"]), torch.tensor(v["z_previous"]), float(v["hyper_tau"]))
    loss.backward()
    np.testing.assert_allclose(loss.item(), v["loss_zero"], rtol=1e-6)
    assert torch.isfinite(z.grad).all()


def test_maps_are_averaged_over_space_and_vectors_stay(vectors):
    v = vectors("baselines/moon")
    np.testing.assert_allclose(pool_features(torch.tensor(v["maps"])).numpy(), v["pooled"], rtol=1e-6)
    assert torch.equal(pool_features(torch.ones(2, 3)), torch.ones(2, 3))
    assert pool_features(torch.ones(2, 3, 4, 4, dtype=torch.bfloat16)).dtype == torch.float32


def network(v, prefix):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model.load_state_dict({key: torch.tensor(v[f"{prefix}/{key}"]) for key in KEYS})
    return model


def test_steps_follow_the_reference(vectors):
    v = vectors("baselines/moon")
    model = network(v, "start")
    optimizer = torch.optim.SGD(model.parameters(), float(v["hyper_eta"]))
    others = [network(v, "init").eval(), network(v, "previous").eval()]
    step = contrastive_step(
        plain_step, others, lambda one: one[-1], mu=float(v["hyper_mu"]), temperature=float(v["hyper_tau"])
    )
    for k, (total, _) in enumerate(v["losses"]):
        batch = torch.tensor(v["x"][0, 0, k]), torch.tensor(v["y"][0, 0, k])
        np.testing.assert_allclose(step(model, optimizer, nn.functional.mse_loss, batch).item(), total, rtol=1e-6)
        for key, p in model.named_parameters():
            np.testing.assert_allclose(p.grad.numpy(), v[f"grad/{key}"][0, 0, k], rtol=1e-6)
            np.testing.assert_allclose(p.detach().numpy(), v[f"site/{key}"][0, 0, k], rtol=1e-6)


def test_the_other_models_stay_as_they_are_and_statistics_move_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    others = [copy.deepcopy(model).eval().requires_grad_(False) for _ in range(2)]
    before = copy.deepcopy(model.state_dict())
    step = contrastive_step(plain_step, others, lambda one: one[-1], mu=1.0, temperature=0.5)
    batch = torch.rand(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    step(model, torch.optim.SGD(model.parameters(), 0.1), nn.functional.cross_entropy, batch)
    assert model[1].num_batches_tracked == 1
    for other in others:
        assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("changes", [{"mixing": "softpull"}, {"stays_home": "everything"}, {"parts": ["fedsm"]}])
def test_a_contrast_goes_with_one_model_of_all_sites(changes):
    with pytest.raises(ConfigError, match="must go with|one model of all sites"):
        find_recipe("moon", "paper", changes)


@pytest.mark.parametrize(("preset", "width"), [("paper", 256), ("reference", 256), ("recommended", 0)])
def test_the_paper_and_its_code_have_a_projection_head_and_a_reader_is_told(preset, width):
    recipe = find_recipe("moon", preset, {})
    assert recipe.head_width == width and bool(recipe.cautions) == (width > 0)
    assert ("a head of 256" in recipe.questions()["How does a site step?"]) == (width > 0)


def test_a_preset_goes_without_its_head_where_the_study_says_so():
    assert find_recipe("moon", "paper", {"contrast": {"projection_head": 0}}).head_width == 0


def test_a_unet_takes_no_projection_head():
    contrast = find_recipe("moon", "paper", {}).step
    contrast.check_model(ModelSettings(name="lenet5"))
    with pytest.raises(ConfigError, match="projection_head must be 0 with unet, not 256: .* set it to 0"):
        contrast.check_model(ModelSettings(name="unet"))


@pytest.mark.parametrize("name", ["DynUNet", "SwinUNETR"])
def test_a_network_for_label_maps_without_a_known_representation_is_refused(name):
    contrast = find_recipe("moon", "recommended", {}).step
    contrast.check_model(ModelSettings(name="unet"))
    contrast.check_model(ModelSettings(network="monai.networks.nets.DenseNet169"))
    with pytest.raises(ConfigError, match=f"model.network must be left out .*{name}', .*: take model.name unet"):
        contrast.check_model(ModelSettings(network=f"monai.networks.nets.{name}"))
