import numpy as np
import pytest
import torch

from silofl.federation.selector import MEAN, SQUARE, SelectorRounds
from silofl.models.members import of_role, with_role

SITES = ["east", "north", "west"]


@pytest.fixture
def begin(make_study):
    def start(**algorithm):
        study = make_study(name="fedsm", model={"normalization": "instance"}, **algorithm)
        return SelectorRounds.start(study, SITES)

    return start


def filled(arrays, value):
    return {name: np.full_like(array, value) for name, array in arrays.items()}


def test_outputs_are_the_sites_and_with_the_best_model_the_global_one_before_them(begin):
    assert begin().outputs == ("east", "north", "west")
    assert begin(selector_labels="best_model", extra_rounds=1).outputs == ("global", "east", "north", "west")


def test_local_steps_are_averaged_by_weight(begin):
    selector = begin(selector="local_steps")
    sent = selector.to_send()
    answers = {site: filled(sent, value) for site, value in zip(SITES, (1.0, 2.0, 5.0), strict=True)}
    after = selector.after(answers, np.tile([0.5, 0.25, 0.25], (3, 1)))
    for name, array in selector.parameters.items():
        # 0.5 * 1 + 0.25 * 2 + 0.25 * 5 = 2.25
        np.testing.assert_allclose(after.parameters[name], array + 2.25, rtol=1e-6)


def test_the_codes_selector_averages_weights_and_both_moments(begin):
    selector = begin(selector="moments")
    assert len(selector.to_send()) == 3 * len(selector.parameters)
    answers = {}
    for site, value in zip(SITES, (1.0, 3.0, 5.0), strict=True):
        answers[site] = {name: np.full_like(array, value) for name, array in selector.to_send().items()}
    after = selector.after(answers, np.full((3, 3), 1 / 3))
    name = next(iter(selector.parameters))
    np.testing.assert_allclose(after.parameters[name], selector.parameters[name] + 3, rtol=1e-6)
    np.testing.assert_allclose(after.adam.mean[name], 3, rtol=1e-6)
    np.testing.assert_allclose(after.adam.square[name], 3, rtol=1e-6)
    assert after.adam.steps == 1


def test_a_site_of_the_codes_selector_takes_one_adam_step_on_its_full_batch(play):
    game = play(name="fedsm", selector="moments", model={"normalization": "instance"}, sites=("east", "west"))
    before = game.server.selector.parameters
    game.round()
    arrays = game.answers["east"].arrays
    mean, square, moved = (of_role(role, arrays) for role in (MEAN, SQUARE, "selector"))
    for name in before:
        gradient = mean[name] / np.float32(0.1)
        np.testing.assert_allclose(square[name], 0.001 * gradient**2, rtol=1e-3, atol=1e-12)
        # Adam's first step is lr * g / (|g| + eps)
        step = 1e-3 * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(moved[name], -step, rtol=1e-2, atol=1e-6)


def test_rounding_never_leaves_a_square_below_zero(begin):
    selector = begin(selector="moments")
    answers = {site: with_role(SQUARE, filled(selector.adam.square, -1e-9)) for site in SITES}
    for site in SITES:
        answers[site] |= with_role("selector", filled(selector.parameters, 0)) | with_role(
            MEAN, filled(selector.adam.mean, 0)
        )
    after = selector.after(answers, np.full((3, 3), 1 / 3))
    assert all(np.all(array >= 0) for array in after.adam.square.values())


def test_a_site_that_withholds_the_selector_has_no_part_in_its_step(begin):
    selector = begin(selector="local_steps")
    answers = {"east": filled(selector.to_send(), 1.0), "north": {}, "west": filled(selector.to_send(), 3.0)}
    after = selector.after(answers, np.tile([0.2, 0.6, 0.2], (3, 1)))
    name = next(iter(selector.parameters))
    np.testing.assert_allclose(after.parameters[name], selector.parameters[name] + 2, rtol=1e-6)
    assert selector.after({"east": {}}, np.ones((1, 1))) is selector


def test_a_checkpoint_brings_back_outputs_weights_and_moments(begin):
    selector = begin()
    gradient = {site: with_role("selector", filled(selector.parameters, 0.5)) for site in SITES}
    after = selector.after(gradient, np.full((3, 3), 1 / 3))
    again = SelectorRounds.restore(after.study, after.state())
    assert again.outputs == after.outputs and again.adam.steps == 1
    for name, array in after.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)
        np.testing.assert_array_equal(again.adam.mean[name], after.adam.mean[name])
    assert all(isinstance(t, torch.Tensor) for t in after.state()["parameters"].values())
