"""Numbers on the wire in half precision."""

import numpy as np
import pytest

from silofl.models.precision import narrow_arrays, narrow_messages

ARRAYS = {
    "model/weight": np.array([0.1, -3e-5, 7e-8, 1e-8, 65504.0], np.float32),
    "model/large": np.array([1.0, -65520.0], np.float32),
    "model/none": np.zeros((0, 3), np.float32),
    "model/number": np.array([np.nan, 1], np.float32),
    "statistics/mean": np.array([0.1, 0.2]),
    "model/count": np.array(7),
}


@pytest.fixture
def half(make_study):
    return make_study(federation={"precision": "float16"})


def test_single_precision_travels_as_half_where_every_number_fits(half):
    sent = narrow_arrays(ARRAYS, half)
    assert {name: array.dtype.name for name, array in sent.items()} == {
        "model/weight": "float16",
        "model/large": "float32",
        "model/none": "float16",
        "model/number": "float32",
        "statistics/mean": "float64",
        "model/count": "int64",
    }
    np.testing.assert_array_equal(sent["model/weight"], ARRAYS["model/weight"].astype(np.float16))
    assert sent["model/large"] is ARRAYS["model/large"]


def test_what_several_sites_are_sent_is_rounded_once(half):
    local = np.full(3, 0.2, np.float32)
    sent = narrow_messages({"east": ARRAYS, "north": {"own": local} | ARRAYS, "west": {}}, half)
    for name, array in narrow_arrays(ARRAYS, half).items():
        np.testing.assert_array_equal(sent["east"][name], array)
        assert sent["east"][name] is sent["north"][name]
    np.testing.assert_array_equal(sent["north"]["own"], local.astype(np.float16))
    assert sent["west"] == {}
