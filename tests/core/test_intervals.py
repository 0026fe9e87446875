import numpy as np
import pytest
from scipy import stats

from silofl.core.intervals import DIFFERENCE, GROUPS, SHARE, SIZE, Estimate, Sample, find_interval


def test_a_share_has_wilsons_interval_with_students_quantile():
    right = np.arange(20) < 17
    result = Sample(range(20)).mean(right.astype(float))
    # The jackknife's variance of a share is m (1 - m) / (n - 1): an effective size of 19. A share p at an end of the
    # interval lies t of its own deviations from m.
    for end in result.interval:
        assert abs(0.85 - end) == pytest.approx(stats.t.ppf(0.975, 19) * np.sqrt(end * (1 - end) / 19))
    assert (result.value, result.num_cases) == (0.85, 20) and result.interval[0] < 0.85 < result.interval[1]


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_share_of_all_or_none_has_clopper_pearsons_interval(count):
    for value in (0, 1):
        result = Sample(range(count)).mean(np.full(count, float(value)))
        assert result.interval == pytest.approx(stats.binomtest(value * count, count).proportion_ci(0.95, "exact"))
    # recall 1.000 of 5: 48 to 100 %
    assert Sample(range(5)).mean(np.ones(5)).interval == (pytest.approx(0.478, abs=5e-4), 1)


def test_a_size_and_a_difference_have_students_interval():
    values = np.array([3.0, 4, 8, 2, 5, 7, 3])
    student = stats.t.interval(0.95, 6, values.mean(), stats.sem(values))
    assert Sample(range(7)).mean(values, SIZE).interval == pytest.approx(student)
    assert Sample(range(2)).mean(np.array([1.0, 9.0]), SIZE).interval[0] == 0
    assert Sample(range(2)).mean(np.array([-0.5, 0.9]), DIFFERENCE).interval == (-1, 1)


def test_the_interval_of_many_patients_is_students_and_repeats():
    for count in (100, 10 * GROUPS):
        values = np.random.default_rng(0).normal(0.7, 0.1, count)
        student = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
        result = Sample(range(count)).mean(values)
        assert result.value == pytest.approx(values.mean())
        np.testing.assert_allclose(result.interval, student, atol=0.15 * (student[1] - student[0]))
        assert result == Sample(range(count)).mean(values)


def test_cases_of_one_patient_are_left_out_together():
    values = np.random.default_rng(0).normal(0.7, 0.1, 50)
    # four equal cases of a patient say as much as one
    together = Sample(np.repeat(np.arange(50), 4).tolist()).mean(np.repeat(values, 4))
    assert together.interval == pytest.approx(Sample(range(50)).mean(values).interval)


def test_equal_patients_and_a_single_one_have_no_interval():
    assert Sample(range(2)).mean(np.array([0.4, 0.6])).interval is not None
    assert Sample(range(1)).mean(np.array([0.4])) == Estimate(0.4, None, 1)
    assert Sample(range(20)).mean(np.full(20, 0.5)) == Estimate(0.5, None, 20)
    # A tenth of each, whose quotients differ in their last digits
    wholes = np.arange(1.0, 21)
    assert Sample(range(20)).ratio(wholes / 10, wholes) == Estimate(pytest.approx(0.1), None, 20)


def test_a_case_without_a_value_does_not_count():
    values = np.array([np.nan] * 3 + [0.25, 0.5] * 3)
    sample = Sample(range(9))
    assert sample.mean(values) == Sample(range(6)).mean(values[3:])
    assert (sample.mean(values).value, sample.mean(values).num_cases) == (0.375, 6)
    assert sample.mean(np.full(9, np.nan)) == Estimate(None, None, 0) == Sample([]).mean(np.array([]))


def test_a_ratio_is_of_sums():
    parts = np.array([1.0, 0, 2, 3, 0, 1, 1])
    wholes = np.array([1.0, 3, 2, 3, 0, 1, 2])
    result = Sample(range(7)).ratio(parts, wholes)
    # 8 of 12, in the 6 cases that have any
    assert (result.value, result.num_cases) == (pytest.approx(8 / 12), 6)
    low, high = result.interval
    assert 0 <= low < 8 / 12 < high <= 1


def test_the_rarest_cases_say_how_sure_the_variance_is():
    is_ill = np.arange(40) < 4
    result = Sample(range(40)).estimate(lambda rows: float(is_ill[rows].mean()), is_ill, ~is_ill)
    low, high = result.interval
    plain = Sample(range(40)).mean(is_ill.astype(float)).interval
    assert low < plain[0] and plain[1] < high
    assert find_interval(0.1, 0.09 / 39, 4, 4, SHARE) == pytest.approx(result.interval)


def test_an_interval_of_few_patients_covers_as_it_says():
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(1000):
        # of mean 0.8; the percentiles of resamples hold it in 84 % of such samples of 6
        low, high = Sample(range(6)).mean(random.beta(8, 2, 6)).interval
        inside += low < 0.8 < high
    # deviation of the count: sqrt(1000 * 0.95 * 0.05) = 6.9
    assert inside > 950 - 3 * 6.9
