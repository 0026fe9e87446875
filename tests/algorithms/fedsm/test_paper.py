import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.fedavg import uniform_weights
from silofl.algorithms.fedsm import (
    AdamState,
    Selector,
    adam_step,
    choose_model,
    site_loss,
    softpull_weights,
    tune_threshold,
)
from silofl.base.errors import DataError
from silofl.core.mixing import mix
from silofl.core.presets import find_recipe
from silofl.core.steps import GradientStep


@pytest.mark.parametrize("self_weight", [0.25, 0.3, 0.7, 1.0])
def test_softpull_follows_the_reference(vectors, self_weight):
    v = vectors("server_rules")
    mixed = mix({f"s{i}": {"w": row} for i, row in enumerate(v["sites"])}, softpull_weights(4, self_weight))
    rows = np.stack([mixed[f"s{i}"]["w"] for i in range(4)])
    np.testing.assert_allclose(rows, v[f"softpull_{self_weight:.4f}"], rtol=1e-12)


def test_softpull_of_the_sites_that_are_present_follows_the_reference(vectors):
    v = vectors("server_rules")
    present = v["softpull_present"]
    mixed = mix({f"s{i}": {"w": v["sites"][i]} for i in present}, softpull_weights(len(present), 0.7))
    rows = np.stack([mixed[f"s{i}"]["w"] for i in present])
    np.testing.assert_allclose(rows, v["softpull_present_0.7"], rtol=1e-12)


@pytest.mark.parametrize("num_sites", range(1, 12))
def test_lambda_spans_the_uniform_mean_to_local_training(num_sites):
    np.testing.assert_array_equal(softpull_weights(num_sites, 1 / num_sites), uniform_weights(num_sites))
    np.testing.assert_array_equal(softpull_weights(num_sites, 1.0), np.eye(num_sites))
    np.testing.assert_array_equal(softpull_weights(1, 0.7), [[1.0]])


@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.9, 1.0])
def test_the_choice_follows_the_reference(vectors, threshold):
    v = vectors("selector")
    np.testing.assert_array_equal(choose_model(v["probability"], threshold), v[f"chosen_{threshold:.1f}"])


def test_a_score_at_the_threshold_takes_the_global_model():
    # above gamma, at gamma, below gamma
    np.testing.assert_array_equal(choose_model([[0.2, 0.8], [0.3, 0.7], [0.5, 0.5]], 0.7), [2, 0, 0])


def test_the_site_loss_is_the_own_indexs_cross_entropy():
    logits = torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]])
    loss = site_loss(2)(logits, torch.tensor([0, 1]))
    assert loss == nn.functional.cross_entropy(logits, torch.tensor([2, 2]))


def test_gathered_gradients_are_those_of_one_batch():
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    inputs, step, loss = torch.arange(15.0).reshape(5, 3) / 10, GradientStep(), site_loss(1)
    site_loss(0)(model(inputs), None).backward()
    for batch in (inputs[:4], inputs[4:]):
        step(model, None, loss, (batch, None))
    gathered = step.mean(model)
    model.zero_grad()
    loss(model(inputs), None).backward()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(gathered[name], parameter.grad.numpy(), rtol=1e-5)
    assert torch.equal(model.weight, before)


def test_adam_steps_of_arrays_are_those_of_torch():
    weight = torch.tensor([0.5, -2.0], requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1)
    arrays = {"w": weight.detach().numpy().copy()}
    state = AdamState.zero(arrays)
    for gradient in ([1.0, -3.0], [0.5, 4.0], [0.0, 1.0]):
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        arrays, state = adam_step(arrays, {"w": np.float32(gradient)}, state, 0.1)
        np.testing.assert_array_equal(arrays["w"], weight.detach().numpy())
    assert state.steps == 3
    known = optimizer.state[weight]
    np.testing.assert_allclose(state.mean["w"], known["exp_avg"], rtol=1e-6)
    np.testing.assert_allclose(state.square["w"], known["exp_avg_sq"], rtol=1e-6)


# Of each site the sum and the number of its cases by threshold.
@pytest.mark.parametrize(
    ("sums", "thresholds", "best"),
    [
        # means of site 1: 0.9, 0.8, 0.1 (of 10 cases), of site 2: 0.2, 0.8, 0.9 (of 1); means over the sites: 0.55,
        # 0.8, 0.5; over all 11 cases 0 would win
        ([[[9.0, 10], [8.0, 10], [1.0, 10]], [[0.2, 1], [0.8, 1], [0.9, 1]]], (0.0, 0.5, 1.0), 0.5),
        # among equal ones the smallest, by which the selector decides
        ([[[0.6, 2], [0.6, 2], [0.6, 2]]], (0.0, 0.5, 1.0), 0.0),
        # One case more of the site may be answered by the global model, whose mean is 0.6: of 2 cases (1.7 + 0.6) / 3 =
        # 0.77 against 0.8 by the selector, of 20 cases (17 + 0.6) / 21 = 0.84.
        ([[[1.6, 2], [1.7, 2], [1.2, 2]]], (0.0, 0.9, 1.0), 0.0),
        ([[[16.0, 20], [17.0, 20], [12.0, 20]]], (0.0, 0.9, 1.0), 0.9),
        # the global model is the better one
        ([[[1.0, 2], [1.2, 2], [1.6, 2]]], (0.0, 0.5, 1.0), 1.0),
        # Means of the sites: 0.7 by the selector, 0.675 at 0.5, 0.55 by the global model, although one case more at
        # each site would bring 0.5 to ((0.5 + 1) / 2 + (84.15 + 0.1) / 100) / 2 = 0.796.
        ([[[0.5, 1], [0.5, 1], [1.0, 1]], [[89.1, 99], [84.15, 99], [9.9, 99]]], (0.0, 0.5, 1.0), 0.0),
        # a site without cases has no say, and without any the global model answers
        ([[[0.0, 0], [0.0, 0]], [[0.9, 1], [0.1, 1]]], (0.0, 1.0), 0.0),
        ([[[0.0, 0], [0.0, 0]]], (0.0, 1.0), 1.0),
        # At four sites the selector is better by 0.1 than the global model; the fifth says that it is worse by 0.9.
        ([[[16.0, 20], [14.0, 20]]] * 4 + [[[2.0, 20], [20.0, 20]]], (0.0, 1.0), 0.0),
    ],
)
def test_no_single_case_and_no_single_site_moves_the_threshold(sums, thresholds, best):
    assert tune_threshold(sums, thresholds) == best


def test_images_must_leave_something_after_five_poolings():
    Selector().check(None, (1, 32, 40))
    with pytest.raises(DataError, match="images of 28 x 28 pixels are too small for a selector, .* add a Resize"):
        Selector().check(None, (1, 28, 28))


@pytest.mark.parametrize(
    ("preset", "constants", "is_warned"),
    [
        ("paper", {}, True),
        ("recommended", {}, False),
        ("paper", {"selector": {"labels": "best_model"}, "extra_rounds": 3}, False),
    ],
)
def test_a_selector_that_learns_one_label_is_warned_of(preset, constants, is_warned):
    recipe = find_recipe("fedsm", preset, constants)
    assert any("local_steps teaches each site's selector the one label" in one for one in recipe.cautions) == is_warned
    assert recipe.as_dict().get("cautions", []) == recipe.cautions
