import numpy as np
import pytest

from silofl.algorithms.fedavg import example_weights, server_step
from silofl.core.mixing import mix


def test_rows_are_the_shares_of_the_examples():
    np.testing.assert_allclose(example_weights([1, 3]), [[0.25, 0.75], [0.25, 0.75]])


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_server_step_follows_the_reference(vectors, server_lr):
    v = vectors("server_rules")
    params = {f"s{i}": {"w": row} for i, row in enumerate(v["sites"])}
    mixed = mix(params, example_weights(v["num_examples"]))["s0"]
    new = server_step({"w": v["global"]}, mixed, server_lr)
    np.testing.assert_allclose(new["w"], v[f"weighted_eta{server_lr}"], rtol=1e-12)


def test_half_a_step_goes_half_the_way_except_for_variances():
    previous = {"w": np.float32([0]), "var": np.float32([1]), "count": np.int64(3)}
    mixed = {"w": np.float32([2]), "var": np.float32([5]), "count": np.int64(4)}
    new = server_step(previous, mixed, 0.5, buffers={"var"})
    # 0 + 0.5 * (2 - 0); buffers and counts as they come
    assert (new["w"], new["var"], new["count"]) == (1, 5, 4)
    assert new["w"].dtype == np.float32
