import numpy as np
import pytest

from silofl.algorithms.data_fingerprint import DataFingerprint, pool_fingerprints, pooled_quantile
from silofl.errors import ConfigError


def fingerprint(**changes):
    """Return 4 cases of 1 x 1 x 3 mm, one channel and two labels, half of the cases' quartiles apart along Z."""
    values = {
        "cases": 4,
        "spacing_mm": [[1, 1, 2], [1, 1, 3], [1, 1, 4]],
        "shape": [[90, 90, 20], [100, 100, 30], [110, 110, 40]],
        "intensity": [[0, 10, 20, 10, 4]],
        "channels": [1],
        "classes": [0.9, 0.1],
    }
    arrays = {key: value if key == "cases" else np.array(value, float) for key, value in (values | changes).items()}
    return DataFingerprint(**arrays)


def test_the_quantiles_of_one_site_are_its_own():
    quartiles, cases = np.array([[[1.0], [2.0], [3.0]]]), np.array([7.0])
    # the lower tail ends at 1 * 1 / 2; 0.1 lies at 0.4 of the way to the first quartile
    for share, wanted in ((0.25, 1), (0.5, 2), (0.75, 3), (0, 0.5), (0.1, 0.7), (1, 4.5)):
        np.testing.assert_allclose(pooled_quantile(quartiles, cases, share), [wanted])


def test_sites_count_by_their_cases():
    quartiles = np.array([[[1.0, 5.0]] * 3, [[2.0, 4.0]] * 3])
    # 3 cases of 1 and 1 of 2: the lower 75 % are 1; along the second axis the lower 25 % are 4
    np.testing.assert_array_equal(pooled_quantile(quartiles, np.array([3.0, 1.0]), 0.5), [1, 5])
    np.testing.assert_array_equal(pooled_quantile(quartiles, np.array([3.0, 1.0]), 0.8), [2, 5])
    np.testing.assert_array_equal(pooled_quantile(quartiles, np.array([1.0, 3.0]), 0.5), [2, 4])


def test_the_median_of_a_mixture_lies_between_its_sites():
    quartiles = np.array([[[1.0], [2.0], [3.0]], [[5.0], [6.0], [7.0]]])
    # half of all cases are the first site's, but for its upper tail to 4.5 and the second's lower one from 25 / 6
    assert 4.1 < pooled_quantile(quartiles, np.array([2.0, 2.0]), 0.5)[0] < 4.5


def test_a_deviation_is_that_within_sites_and_between_their_means():
    low = fingerprint(cases=3, intensity=[[0, 9, 20, 10, 3]])
    high = fingerprint(cases=1, intensity=[[4, 21, 40, 20, 5]])
    found = pool_fingerprints([low, high])
    # mean 12.5; (3 * (9 + 2.5^2) + 25 + 7.5^2) / 4 = 31.75
    np.testing.assert_allclose(found.intensity, [[1, 12, 25, 12.5, 31.75**0.5]])
    assert found.cases == 4


def test_a_site_without_a_channel_has_no_say_in_its_intensities():
    both = fingerprint(intensity=[[0, 1, 2, 1, 1], [5, 6, 7, 6, 1]], channels=[1, 1])
    first = fingerprint(cases=100, intensity=[[0, 1, 2, 1, 1], [0, 0, 0, 0, 0]], channels=[1, 0])
    found = pool_fingerprints([both, first])
    np.testing.assert_allclose(found.intensity, both.intensity)
    assert pool_fingerprints([first]).intensity[1].tolist() == [0] * 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spacing_mm": [[0, 1, 1], [1, 1, 1], [1, 1, 1]]}, "spacing_mm must rise within 0.001 to 1000"),
        ({"spacing_mm": [[2, 1, 1], [1, 1, 1], [1, 1, 1]]}, "spacing_mm must rise"),
        ({"shape": [[9, 9, 1], [9, 9, 1], [9, 9, 1e9]]}, "shape must rise within 1 to 65536"),
        ({"intensity": [[0, 1, 2, 1, -1]]}, "deviations of at least 0"),
        ({"channels": [0.5]}, "0 or 1 for a channel"),
        ({"classes": [0.9, 0.9]}, "and 1 together"),
    ],
)
def test_what_no_images_have_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        fingerprint(**changes)
