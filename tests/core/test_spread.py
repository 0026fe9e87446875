import numpy as np
import pytest

from silofl.core.spread import Spread, pool_spreads
from silofl.errors import ConfigError


def test_one_hospital_alone_has_its_own_spread():
    assert pool_spreads([Spread(2.0, 0.5)]) == Spread(2.0, 0.5)
    assert Spread.of([1.0, 3.0]) == Spread(2.0, 1.0) and Spread(2.0, 1.0).range(3) == (-1.0, 5.0)


def test_between_hospitals_the_means_vary_and_one_more_hospital_varies_as_they_do():
    found = pool_spreads([Spread(1.0, 1.0), Spread(3.0, 2.0)])
    # within: (1 + 4) / 2; between: variance of 1 and 3 is 2, times 1 + 1 / 2
    assert found.mean == 2 and found.deviation == pytest.approx(np.sqrt(2.5 + 3))


def test_a_deviation_is_not_below_0():
    for wrong in (-0.1, float("nan")):
        with pytest.raises(ConfigError, match="a deviation must be 0 or more, not"):
            Spread(0.0, wrong)
