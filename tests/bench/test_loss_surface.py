"""The loss around models whose landscape is known: a linear layer with a quadratic loss."""

import math

import numpy as np
import pytest
import torch
from loss_surface import Landscape, draw_filter_directions, line_points, mean_loss, measure_losses, plane_points
from torch import nn

# The network answers (3, 4) to the unit vectors, so that its loss is (w1^2 + w2^2) / 2.
UNITS = [(torch.eye(2), torch.zeros(2, 1))]
ACROSS, ALONG = ({"weight": torch.tensor([row])} for row in ([-4.0, 3.0], [3.0, 4.0]))


@pytest.fixture
def linear():
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
        model.bias.zero_()
    return model


@pytest.fixture
def quadratic(linear):
    """Measure the linear layer's loss at points along `ACROSS` and `ALONG`."""
    return lambda points: measure_losses(
        linear, [ACROSS, ALONG], points, lambda: mean_loss(linear, UNITS, nn.functional.mse_loss)
    )


def drawn(seed, *modules):
    torch.manual_seed(seed)
    return nn.Sequential(*(module() for module in modules))


def convolutions():
    return drawn(0, lambda: nn.Conv2d(2, 3, 3), lambda: nn.BatchNorm2d(3), lambda: nn.ConvTranspose2d(3, 5, 2))


# --- the points


def test_places_lie_evenly_around_the_model_and_reach_the_scale():
    points = line_points(0.3, 3, 2)
    # along the first direction, then along the second
    np.testing.assert_allclose(points[:7, 0], [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3])
    np.testing.assert_array_equal(points[:7, 1], 0)
    np.testing.assert_array_equal(points[7:], points[:7, ::-1])
    assert points.min() == -0.3 and points.max() == 0.3


# --- the directions


def test_every_filter_of_a_direction_is_as_long_as_the_models_own():
    model = convolutions()
    (direction,) = draw_filter_directions(model, 1, seed=0)
    for name, outputs in (("0.weight", (1, 2, 3)), ("2.weight", (0, 2, 3))):
        # a transposed convolution has its outputs on the second axis
        own, random = (
            one.square().sum(outputs).sqrt() for one in (dict(model.named_parameters())[name], direction[name])
        )
        torch.testing.assert_close(random, own.detach())
        assert not torch.allclose(direction[name], dict(model.named_parameters())[name])


def test_biases_and_normalisation_are_not_moved():
    (direction,) = draw_filter_directions(convolutions(), 1, seed=0)
    assert set(direction) == {"0.weight", "2.weight"}


def test_models_of_one_network_are_moved_along_the_same_draw():
    model, other = convolutions(), convolutions()
    with torch.no_grad():
        other[0].weight.mul_(2)
    (mine,), (others,) = (draw_filter_directions(one, 1, seed=3) for one in (model, other))
    torch.testing.assert_close(others["0.weight"], 2 * mine["0.weight"])
    torch.testing.assert_close(others["2.weight"], mine["2.weight"])


# --- the losses


def test_a_linear_layer_with_a_quadratic_loss_lies_in_a_known_landscape(quadratic):
    points = plane_points(1, 1)
    # w = (3, 4) + a (-4, 3) + b (3, 4), two orthogonal vectors of length 5: loss = 25 (a^2 + (1 + b)^2) / 2
    np.testing.assert_allclose(quadratic(points), [12.5 * (a * a + (1 + b) ** 2) for a, b in points], atol=1e-5)


def test_the_lowest_point_and_the_mean_rise_are_those_of_the_known_landscape(quadratic):
    points = plane_points(1, 1)
    found = Landscape(points, quadratic(points))
    assert found.centre == 12.5
    # at (0, -1) all weights are 0
    assert points[found.lowest].tolist() == [0, -1] and found.distance == 1
    # the eight points around the centre: 12.5 * (1 + 0 + 1) + 12.5 * (2 + 2) + 12.5 * (5 + 4 + 5) = 250
    assert found.mean_rise == pytest.approx(250 / 8 - 12.5)
    np.testing.assert_allclose(found.grid[1], [0, 12.5, 50], atol=1e-5)


def test_lines_cross_the_model_one_after_another(quadratic):
    points = line_points(2, 2, 2)
    found = Landscape(points, quadratic(points))
    np.testing.assert_array_equal(found.axis, [-2, -1, 0, 1, 2])
    # across: 12.5 (a^2 + 1); along: 12.5 (1 + b)^2
    np.testing.assert_allclose(found.grid[0], [62.5, 25, 12.5, 25, 62.5], atol=1e-4)
    np.testing.assert_allclose(found.grid[1], [12.5, 0, 12.5, 50, 112.5], atol=1e-4)
    # ends: (62.5 + 62.5 + 12.5 + 112.5) / 4 - 12.5
    assert found.mean_rise == pytest.approx(50) and found.distance == 1


def test_the_model_ends_as_it_was_even_after_a_fault(linear, quadratic):
    def fail():
        raise RuntimeError("no memory")

    quadratic(plane_points(0.1, 2))
    with pytest.raises(RuntimeError, match="no memory"):
        measure_losses(linear, [ACROSS, ALONG], [[0.3, 0.1]], fail)
    assert linear.weight.tolist() == [[3.0, 4.0]]


def test_a_loss_that_is_no_number_is_never_the_lowest():
    losses = np.array([np.nan, 3.0, 2.0, 1.0, np.inf])
    found = Landscape(line_points(1, 2, 1), losses)
    assert found.points[found.lowest].tolist() == [0.5] and not math.isfinite(found.mean_rise)


# --- the mean over examples


def test_a_batch_counts_by_its_number_of_examples(linear):
    three, one = (torch.ones(3, 2), torch.full((3, 1), 6.0)), (torch.ones(1, 2), torch.full((1, 1), 4.0))
    # the answer to (1, 1) is 7: errors 1, 1, 1 and 9
    assert mean_loss(linear, [three, one], nn.functional.mse_loss) == pytest.approx(12 / 4)


def test_statistics_are_used_as_they_are_and_dropout_is_off():
    model = nn.Sequential(nn.BatchNorm1d(2, eps=0), nn.Dropout(0.5)).train()
    model[0].running_mean.fill_(1.0)
    model[0].running_var.fill_(4.0)
    inputs = torch.tensor([[3.0, 5.0], [3.0, 5.0]])
    # (3 - 1) / 2 = 1 and (5 - 1) / 2 = 2, squares 1 and 4
    loss = mean_loss(model, [(inputs, torch.zeros(2, 2))], nn.functional.mse_loss)
    assert loss == pytest.approx(2.5) and model[0].running_mean.tolist() == [1.0, 1.0]
