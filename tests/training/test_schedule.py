import numpy as np
import pytest

from silofl.base.errors import ConfigError
from silofl.training.schedule import learning_rate


def rates(kind, rounds, start=0.01):
    return [learning_rate(kind, start, number, rounds) for number in range(1, rounds + 1)]


@pytest.mark.parametrize("rounds", [1, 10, 150])
def test_poly_agrees_with_the_reference_numbers(vectors, rounds):
    known = vectors("baselines/swa_and_schedule")
    np.testing.assert_allclose(rates("poly", rounds, float(known["hyper_lr0"])), known[f"poly_{rounds}"], rtol=1e-12)


def test_a_constant_rate_is_the_very_same_number():
    assert rates("constant", 3, 0.1) == [0.1] * 3


def test_a_cosine_falls_by_half_a_period():
    np.testing.assert_allclose(rates("cosine", 4, 1), [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2])


@pytest.mark.parametrize("kind", ["poly", "cosine"])
@pytest.mark.parametrize("rounds", [1, 2, 7, 500])
def test_a_falling_rate_stays_above_zero(kind, rounds):
    result = rates(kind, rounds)
    assert result[0] == 0.01
    assert all(later < earlier for earlier, later in zip(result, result[1:], strict=False))
    assert result[-1] > 0


@pytest.mark.parametrize("number", [0, 4])
def test_a_round_outside_the_plan_is_refused(number):
    with pytest.raises(ConfigError, match=f"round must be from 1 to 3, not {number}"):
        learning_rate("poly", 0.1, number, 3)
