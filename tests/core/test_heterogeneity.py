import pytest
from scipy.stats import norm

from silofl.core.heterogeneity import pool_estimates
from silofl.core.intervals import Estimate


def estimate(value, deviation=None, cases=10):
    """Return an estimate whose interval is that of a normal distribution."""
    margin = None if deviation is None else norm.ppf(0.975) * deviation
    return Estimate(value, margin and (value - margin, value + margin), cases)


def test_two_hospitals_that_differ_by_more_than_their_cases_explain():
    pooled = pool_estimates({"a": estimate(0.8, 0.05), "b": estimate(0.9, 0.05)})
    # weights 1 / 0.05^2 = 400 each, mean 0.85, Q = 2 * 400 * 0.05^2 = 2, I^2 = (2 - 1) / 2
    assert pooled.value == pytest.approx(0.85) and pooled.num_sites == 2
    assert (pooled.q, pooled.i_squared) == (pytest.approx(2), pytest.approx(0.5))
    # c = 800 - 2 * 400^2 / 800 = 400, tau^2 = (2 - 1) / 400, so weights 1 / (0.0025 + 0.0025) = 200 each,
    # and a deviation of 1 / sqrt(400)
    assert pooled.tau == pytest.approx(0.05)
    assert pooled.interval == (pytest.approx(0.85 - 1.959964 * 0.05), pytest.approx(0.85 + 1.959964 * 0.05))
    # of a chi-square with one degree of freedom: 2 (1 - Phi(sqrt 2))
    assert pooled.p_value == pytest.approx(2 * norm.sf(2**0.5))


def test_equal_hospitals_have_no_heterogeneity_and_count_by_their_precision():
    pooled = pool_estimates({"a": estimate(0.80, 0.05), "b": estimate(0.83, 0.1)})
    # weights 400 and 100: (320 + 83) / 500; Q = 400 * 0.006^2 + 100 * 0.024^2 = 0.072 < 1
    assert pooled.value == pytest.approx(0.806)
    assert (pooled.q, pooled.i_squared, pooled.tau) == (pytest.approx(0.072), 0, 0)


def test_three_hospitals_with_unequal_weights():
    pooled = pool_estimates({"a": estimate(0.6, 0.1), "b": estimate(0.8, 0.1), "c": estimate(0.9, 0.05)})
    # weights 100, 100, 400, mean (60 + 80 + 360) / 600 = 5/6
    # Q = 100 (7/30)^2 + 100 (1/30)^2 + 400 (2/30)^2 = (4900 + 100 + 1600) / 900 = 22/3
    # I^2 = (22/3 - 2) / (22/3)
    assert (pooled.q, pooled.i_squared) == (pytest.approx(22 / 3), pytest.approx(8 / 11))
    # c = 600 - (100^2 + 100^2 + 400^2) / 600 = 300; tau^2 = (22/3 - 2) / 300 = 4/225
    assert pooled.tau**2 == pytest.approx(4 / 225)


def test_a_hospital_without_an_interval_does_not_count():
    known = {"a": estimate(0.8, 0.05), "b": estimate(0.9, 0.05)}
    lone = {"c": estimate(0.1), "d": Estimate(None, None, 0)}
    assert pool_estimates(known | lone) == pool_estimates(known)
    assert pool_estimates({"a": estimate(0.8, 0.05)} | lone) is None
    assert pool_estimates({}) is None


def test_a_hospital_that_is_almost_sure_does_not_count_alone():
    """Of a spread that was a difference of two equal numbers it counted alone, or ended the evaluation."""
    honest = {name: estimate(value, 0.03) for name, value in {"a": 0.7, "b": 0.8, "c": 0.85, "d": 0.9}.items()}
    pooled = pool_estimates(honest | {"e": estimate(0.1, 1e-5)})
    # What hospitals differ by is far above what their cases explain: all five count almost alike.
    assert pooled.value == pytest.approx((0.7 + 0.8 + 0.85 + 0.9 + 0.1) / 5, abs=0.01)
