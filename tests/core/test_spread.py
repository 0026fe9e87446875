from dataclasses import astuple

import numpy as np
import pytest

from silofl.base.errors import ConfigError
from silofl.core.spread import Spread, count_digits_apart, pool_spreads


def test_few_cases_have_a_wider_range():
    result = Spread.of([1.0, 2.0, 3.0])
    assert result == Spread(2.0, 1.0, 3) and Spread.of([2.0]) == Spread(2.0, 0.0, 1)
    # Student's t of two degrees of freedom, and the bell curve where the number of cases is not known
    assert result.range(0.025) == pytest.approx((2 - 4.3027, 2 + 4.3027), abs=1e-4)
    assert Spread(2.0, 1.0).range(0.025) == pytest.approx((2 - 1.96, 2 + 1.96), abs=1e-4)


def test_new_cases_of_one_hospital_vary_with_its_mean():
    assert pool_spreads([Spread(2.0, 0.5)]) == Spread(2.0, 0.5)
    assert astuple(pool_spreads([Spread(2.0, 0.5, 4)])) == pytest.approx((2.0, 0.5 * np.sqrt(1 + 1 / 4), 4))
    random = np.random.default_rng(0)
    outside = []
    for _ in range(4000):
        *few, new = random.normal(size=7)
        low, high = pool_spreads([Spread.of(few)]).range(0.025)
        outside.append(not low <= new <= high)
    assert np.mean(outside) == pytest.approx(0.05, abs=0.008)


def test_one_more_hospital_varies_as_the_others_means():
    result = pool_spreads([Spread(1.0, 1.0), Spread(3.0, 2.0)])
    # within: (1 + 4) / 2; between: variance of 1 and 3 is 2, times 1 + 1 / 2
    assert astuple(result) == pytest.approx((2.0, np.sqrt(2.5 + 3), 0))
    assert pool_spreads([Spread(1.0, 1.0, 5), Spread(3.0, 2.0, 3)]).num_cases == 1 + 4 + 2


@pytest.mark.parametrize(
    ("value", "edge", "digits"), [(1.26, 1.0, 3), (1.2517, 1.251, 4), (0.62004, 0.62, 5), (0.5 + 1e-12, 0.5, 3)]
)
def test_a_number_has_digits_that_tell_it_from_edges(value, edge, digits):
    assert count_digits_apart(value, edge) == digits


def test_a_deviation_or_number_below_0_is_refused():
    for deviation, num_cases in ((-0.1, 0), (float("nan"), 0), (1.0, -1)):
        with pytest.raises(ConfigError, match="must be 0 or more, not"):
            Spread(0.0, deviation, num_cases)
