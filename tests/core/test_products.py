import numpy as np
import pytest

from silofl.core.products import PIECE, multiply_updates

RNG = np.random.default_rng(0)


def test_products_are_those_of_all_arrays_together():
    given = {
        site: {"w": RNG.normal(size=(3, PIECE)).astype(np.float32), "b": np.float32(RNG.normal())} for site in "abc"
    }
    flat = np.array([np.concatenate([one["w"].ravel(), [one["b"]]]) for one in given.values()], np.float64)
    products = multiply_updates(given)
    np.testing.assert_allclose(products.parameters, flat @ flat.T, rtol=1e-5, atol=1e-2)
    assert products.buffers.tolist() == np.zeros((3, 3)).tolist()


def test_the_length_is_of_all_arrays_and_does_not_overflow():
    # sqrt(3^2 + 4^2 + 12^2) = 13, of which the statistics 12
    products = multiply_updates({"a": {"w": np.float32([[3, 4]]), "mean": np.float32(12)}}, buffers={"mean"})
    assert products.lengths() == {"a": 13} and products.lengths(products.parameters) == {"a": 5}
    most = multiply_updates({"a": {"w": np.full(2 * PIECE, 1e15, np.float32)}})
    assert most.lengths()["a"] == pytest.approx(np.sqrt(2 * PIECE) * 1e15, rel=1e-5)
    assert multiply_updates({}).lengths() == {}


def test_an_array_that_a_site_keeps_back_counts_as_zeros():
    products = multiply_updates({"a": {"v": np.float32([1, 2])}, "b": {"v": np.float32([3, 4]), "w": np.float32([5])}})
    # 1 + 4; 3 + 8; 9 + 16 + 25
    assert products.parameters.tolist() == [[5, 11], [11, 50]]


def test_some_of_the_sites_are_compared_without_the_others():
    products = multiply_updates(
        {"a": {"w": np.float32([1, 0])}, "b": {"w": np.float32([2, 0])}, "c": {"w": np.float32([0, 3])}}
    ).select({"a", "c"})
    assert products.sites == ("a", "c") and products.parameters.tolist() == [[1, 0], [0, 9]]
