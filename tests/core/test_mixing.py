import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from silofl.algorithms.fedavg import uniform_weights
from silofl.base.errors import AggregationError
from silofl.core.mixing import mix


def sites(*values, dtype=np.float32):
    return {name: {"w": np.array(value, dtype)} for name, value in zip("abcd", values, strict=False)}


def test_every_site_gets_its_own_rows_mean():
    params = sites([1, 0], [0, 1])
    mixed = mix(params, np.array([[0.75, 0.25], [0.5, 0.5]]))
    # 0.75 * own + 0.25 * peer; half and half
    np.testing.assert_array_equal(mixed["a"]["w"], [0.75, 0.25])
    np.testing.assert_array_equal(mixed["b"]["w"], [0.5, 0.5])
    # The senders' arrays stay as they are.
    np.testing.assert_array_equal(params["a"]["w"], [1, 0])


def test_equal_rows_are_computed_once_and_shared():
    mixed = mix(sites([1, 0], [0, 1]), uniform_weights(2))
    assert mixed["a"]["w"] is mixed["b"]["w"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_dtype_stays(dtype):
    assert mix(sites([1], [2], dtype=dtype), uniform_weights(2))["a"]["w"].dtype == dtype


def test_sums_run_in_float64():
    # in float32, 1e8 + 1 - 1e8 is 0; the mean is 1/3
    mixed = mix(sites([1e8], [1], [-1e8]), uniform_weights(3))
    np.testing.assert_allclose(mixed["a"]["w"], 1 / 3, rtol=1e-6)


def test_integer_buffers_are_never_averaged():
    mixed = mix(sites(3, 8, dtype=np.int64), uniform_weights(2))
    assert (mixed["a"]["w"], mixed["b"]["w"]) == (3, 8)


def test_a_site_that_alone_sends_integers_keeps_its_own():
    params = sites([1, 3], [5, 7]) | {"c": {"w": np.array([2, 4])}}
    mixed = mix(params, uniform_weights(3))
    np.testing.assert_array_equal(mixed["c"]["w"], [2, 4])
    np.testing.assert_allclose(mixed["a"]["w"], np.float32([8 / 3, 14 / 3]))


def test_the_uniform_mean_follows_the_reference(vectors):
    v = vectors("server_rules")
    params = {f"s{i}": {"w": row} for i, row in enumerate(v["sites"])}
    np.testing.assert_allclose(mix(params, uniform_weights(4))["s3"]["w"], v["uniform"], rtol=1e-12)


@pytest.mark.parametrize(("count", "size"), [(20, 100_000), (1, 2_000_000)])
def test_memory_stays_near_inputs_and_outputs(count, size):
    params = {name: {f"w{i}": np.ones(size, np.float32) for i in range(count)} for name in "abcd"}
    weights = np.full((4, 4), 0.2) + 0.2 * np.eye(4)
    outputs = 4 * count * size * 4
    tracemalloc.start()
    mixed = mix(params, weights)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(mixed) == 4
    assert peak + outputs <= 1.15 * (2 * outputs)


MIXED_BY_TWENTY = """
import hashlib, numpy as np
from silofl.core.mixing import mix
rng = np.random.default_rng(0)
params = {f"s{k}": {"w": rng.standard_normal(200_001), "b": rng.standard_normal(70_000, np.float32)} for k in range(20)}
weights = rng.random((20, 20))
mixed = mix(params, weights / weights.sum(axis=1, keepdims=True))
print(hashlib.sha256(b"".join(array.tobytes() for site in mixed.values() for array in site.values())).hexdigest())
"""


def test_the_bits_do_not_depend_on_the_threads():
    # Where NumPy is left to itself, two threads already give other bits here than one.
    def digest(threads):
        environment = os.environ | {"OPENBLAS_NUM_THREADS": str(threads)}
        return subprocess.check_output([sys.executable, "-c", MIXED_BY_TWENTY], env=environment)

    assert digest(1) == digest(2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("weights", [uniform_weights(3), np.eye(3), [[1, 0, 0]] * 3, [[0.5, 0, 0.5]] * 3])
@pytest.mark.parametrize("size", [1, 7, 70_001])
def test_numbers_that_are_not_finite_are_refused_whatever_they_weigh(weights, size):
    for bad in (np.nan, np.inf):
        params = sites(*np.ones((3, size)))
        params["b"]["w"][-1] = bad
        with pytest.raises(AggregationError, match="'w' of site 'b' holds NaN or infinity"):
            mix(params, np.array(weights))


def test_finite_numbers_with_a_large_sum_are_no_fault():
    with pytest.warns(RuntimeWarning, match="overflow"):
        mixed = mix(sites([3e38], [-3e38]), np.array([[2, -1], [1, 0]]))
    np.testing.assert_array_equal(mixed["a"]["w"], [np.inf])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.full((2, 3), 1 / 3), r"shape \(2, 3\) in place of \(2, 2\)"),
        ([[0.5, 0.5], [0.5, 0.4]], "row for site 'b' .* sums to 0.9 in place of 1"),
    ],
)
def test_weights_of_another_shape_or_sum_are_refused(weights, message):
    with pytest.raises(AggregationError, match=message):
        mix(sites([1], [2]), np.array(weights))
