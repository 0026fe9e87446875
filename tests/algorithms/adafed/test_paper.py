import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.adafed import (
    adafed_weights,
    collect_statistics,
    distances,
    running_statistics,
    statistics_sizes,
    weigh_known_sites,
)
from silofl.base.errors import ConfigError
from silofl.core.mixing import mix


def reference_statistics(v):
    return [[(v[f"mean_{layer}"][site], v[f"var_{layer}"][site]) for layer in range(3)] for site in range(4)]


def test_distances_and_weights_follow_the_reference(vectors):
    v = vectors("adafed")
    distance = distances(reference_statistics(v))
    np.testing.assert_allclose(distance, v["distance"], rtol=1e-12)
    for self_weight in (0.3, 0.5):
        np.testing.assert_allclose(adafed_weights(distance, self_weight), v[f"weights_{self_weight}"], rtol=1e-12)
    last = distances([site[-1:] for site in reference_statistics(v)])
    np.testing.assert_allclose(adafed_weights(last, 0.5), v["weights_last_layer_0.5"], rtol=1e-12)


def test_mixing_follows_the_reference(vectors):
    v = vectors("adafed")
    mixed = mix({f"s{i}": {"w": row} for i, row in enumerate(v["psi"])}, v["weights_0.5"])
    np.testing.assert_allclose([mixed[f"s{i}"]["w"] for i in range(4)], v["psi_next_0.5"], rtol=1e-12)


def test_statistics_follow_the_reference_with_a_last_batch_of_one(vectors):
    v = vectors("adafed")
    batches = [torch.from_numpy(v[f"bn_batch_{i}"]) for i in range(3)]
    ((mean, variance),) = collect_statistics(nn.BatchNorm2d(3).double(), batches)
    np.testing.assert_allclose(mean, v["bn_mean"], rtol=1e-10)
    np.testing.assert_allclose(variance, v["bn_var"], rtol=1e-10)


def test_layers_are_found_by_type_and_their_inputs_measured():
    class Oddly(nn.Module):
        def __init__(self):
            super().__init__()
            self.adn = nn.ModuleDict({"N": nn.BatchNorm1d(2)})
            self.bn_like_name = nn.Linear(2, 2)

        def forward(self, x):
            return self.bn_like_name(self.adn["N"](x))

    model = Oddly()
    model.adn["N"].running_mean += 100
    data = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    ((mean, variance),) = collect_statistics(model, [data])
    # means (1 + 3) / 2 and (2 + 6) / 2; population variances 1 and 4
    np.testing.assert_allclose(mean, [2, 4])
    np.testing.assert_allclose(variance, [1, 4])
    ((last_mean, _),) = collect_statistics(model, [data], layers="last")
    assert np.all(last_mean < -50)


def test_a_model_without_such_a_layer_is_refused():
    for layers in ("all", "last"):
        with pytest.raises(ConfigError, match="the model has no .* layer to collect"):
            collect_statistics(nn.Conv2d(1, 1, 1), [torch.ones(1, 1, 2, 2)], layers)
    with pytest.raises(ConfigError, match="no batch has reached every layer"):
        collect_statistics(nn.BatchNorm1d(2), [])


def test_identical_sites_share_the_rest_of_the_row_evenly():
    weights = adafed_weights([[0, 0, 0, 5], [0, 0, 0, 5], [0, 0, 0, 5], [5, 5, 5, 0]], 0.5)
    np.testing.assert_allclose(weights[0], [0.5, 0.25, 0.25, 0])
    np.testing.assert_allclose(weights[3], [1 / 6, 1 / 6, 1 / 6, 0.5])


def test_copied_statistics_do_not_fill_a_row():
    # d copies a; b and c are at 2 and 4 of both, and at 3 of each other.
    distance = np.array([[0, 2, 4, 0], [2, 0, 3, 2], [4, 3, 0, 4], [0, 2, 4, 0]], float)
    plain, robust = (weigh_known_sites(distance, 0.5, is_robust) for is_robust in (False, True))
    assert plain[0].tolist() == [0.5, 0, 0, 0.5]
    # To a, d is as far as a third of the others' median 3: shares 1/2, 1/4 and 1/1 of 7/4.
    np.testing.assert_allclose(robust[0], [0.5, *(0.5 * np.array([2, 1, 4]) / 7)])
    # Nobody is three times as near to b or c as the others are: their rows stay.
    np.testing.assert_array_equal(robust[1:3], plain[1:3])


def test_two_sites_have_no_others_to_be_compared_with():
    distance = np.array([[0, 2.0], [2.0, 0]])
    np.testing.assert_array_equal(weigh_known_sites(distance, 0.3, True), weigh_known_sites(distance, 0.3))
    np.testing.assert_array_equal(adafed_weights([[0.0]], 0.5), [[1.0]])


def test_tiny_distances_do_not_overflow():
    weights = adafed_weights([[0, 1e-320, 1], [1e-320, 0, 1], [1, 1, 0]], 0.0)
    np.testing.assert_allclose(weights[0], [0, 1, 0], atol=1e-12)


def test_a_site_without_statistics_listens_to_all_equally():
    distance = np.array([[0, 1, 3], [1, 0, 2], [3, 2, 0.0]])
    gaps = np.full((4, 4), np.nan)
    gaps[:3, :3] = distance
    weights = weigh_known_sites(gaps, 0.4)
    np.testing.assert_array_equal(weights[:3, :3], adafed_weights(distance, 0.4))
    np.testing.assert_array_equal(weights[:3, 3], 0)
    np.testing.assert_array_equal(weights[3], 1 / 4)


@pytest.mark.parametrize("is_robust", [False, True])
def test_the_only_site_that_shares_listens_to_itself(is_robust):
    gaps = np.full((3, 3), np.nan)
    np.testing.assert_array_equal(weigh_known_sites(gaps, 0.5, is_robust), np.full((3, 3), 1 / 3))
    np.testing.assert_array_equal(weigh_known_sites(gaps[:1, :1], 0.5, is_robust), [[1]])
    gaps[0, 0] = 0
    weights = weigh_known_sites(gaps, 0.5, is_robust)
    np.testing.assert_array_equal(weights, [[1, 0, 0], [1 / 3] * 3, [1 / 3] * 3])


def test_running_statistics_come_in_the_models_order():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3), nn.BatchNorm1d(3))
    model[0].running_mean.copy_(torch.tensor([1.0, 2.0]))
    model[2].running_var.copy_(torch.tensor([4.0, 5.0, 6.0]))
    (first, second) = found = running_statistics(model)
    assert {array.dtype for layer in found for array in layer} == {np.dtype(np.float64)}
    assert first[0].tolist() == [1, 2] and first[1].tolist() == [1, 1]
    assert second[0].tolist() == [0, 0, 0] and second[1].tolist() == [4, 5, 6]


def test_batchnorm_that_keeps_no_statistics_is_refused():
    with pytest.raises(ConfigError, match="keeps no running statistics"):
        running_statistics(nn.BatchNorm1d(2, track_running_stats=False))


def test_sizes_are_the_channels_of_the_layers_that_are_watched():
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert statistics_sizes(model) == [5, 3] and statistics_sizes(model, "last") == [3]
