import numpy as np
import pytest

from silofl.algorithms.fedavg import uniform_weights
from silofl.algorithms.fedsm import choose_model, softpull_weights
from silofl.algorithms.mixing import mix
from silofl.errors import AggregationError, ConfigError


def test_softpull_keeps_lambda_of_own_weights_and_splits_the_rest():
    mixed = mix({"north": {"w": np.float32([1, 0])}, "south": {"w": np.float32([0, 1])}}, softpull_weights(2, 0.7))
    # 0.7 * own + 0.3 * the only peer
    np.testing.assert_allclose(mixed["north"]["w"], [0.7, 0.3], rtol=1e-6)


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


@pytest.mark.parametrize("num_sites", [1, 2, 3, 7])
def test_lambda_one_over_k_is_the_uniform_mean_and_one_is_local_training(num_sites):
    np.testing.assert_allclose(softpull_weights(num_sites, 1 / num_sites), uniform_weights(num_sites), rtol=1e-12)
    np.testing.assert_array_equal(softpull_weights(num_sites, 1.0), np.eye(num_sites))


def test_one_site_alone_keeps_its_model():
    np.testing.assert_array_equal(softpull_weights(1, 0.7), [[1.0]])


@pytest.mark.parametrize(("num_sites", "self_weight"), [(4, 0.2), (4, 1.1), (2, float("nan")), (0, 0.5)])
def test_softpull_out_of_range_is_refused(num_sites, self_weight):
    with pytest.raises(AggregationError, match="must"):
        softpull_weights(num_sites, self_weight)


@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.9, 1.0])
def test_the_choice_follows_the_reference(vectors, threshold):
    v = vectors("selector")
    np.testing.assert_array_equal(choose_model(v["probability"], threshold), v[f"chosen_{threshold:.1f}"])


def test_a_score_at_the_threshold_falls_back_to_the_global_model():
    # above gamma, at gamma, below gamma
    np.testing.assert_array_equal(choose_model([[0.2, 0.8], [0.3, 0.7], [0.5, 0.5]], 0.7), [2, 0, 0])


@pytest.mark.parametrize(
    ("scores", "threshold"), [([0.2, 0.8], 0.5), ([[0.2, 1.8]], 0.5), ([[np.nan, 1]], 0.5), ([[0.5, 0.5]], 1.5)]
)
def test_a_choice_that_makes_no_sense_is_refused(scores, threshold):
    with pytest.raises(ConfigError, match="must"):
        choose_model(scores, threshold)
