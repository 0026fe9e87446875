import numpy as np
import pytest
from scipy import stats

from silofl.core.intervals import LEAST_UNITS, Estimate, Sample


def test_of_many_patients_the_interval_of_a_mean_is_students_and_repeats():
    values = np.random.default_rng(0).normal(0.7, 0.1, 200)
    student = stats.t.interval(0.95, 199, values.mean(), stats.sem(values))
    found = Sample(range(200)).mean(values)
    assert (found.value, found.num_cases) == (pytest.approx(values.mean()), 200)
    np.testing.assert_allclose(found.interval, student, atol=0.1 * (student[1] - student[0]))
    assert found == Sample(range(200)).mean(values)


def test_cases_of_one_patient_are_drawn_together():
    values = np.repeat(np.random.default_rng(0).normal(0.7, 0.1, 50), 4)
    together = Sample(np.repeat(np.arange(50), 4).tolist())
    for rows in together.resamples:
        assert (np.bincount(rows, minlength=200).reshape(50, 4).std(axis=1) == 0).all()
    # four equal cases of a patient say as much as one: sqrt(4) times as wide
    ratio = np.ptp(together.mean(values).interval) / np.ptp(Sample(range(200)).mean(values).interval)
    assert ratio == pytest.approx(2, rel=0.15)


def test_too_few_patients_and_equal_ones_have_no_interval():
    values = np.arange(LEAST_UNITS) / 10
    assert Sample(range(5)).mean(values[:-1]) == Estimate(pytest.approx(0.2), None, 5)
    assert Sample(range(6)).mean(values).interval is not None
    assert Sample(range(20)).mean(np.ones(20)) == Estimate(1, None, 20)
    # A tenth of each, whose quotients differ in their last digits
    wholes = np.arange(1.0, 21)
    assert Sample(range(20)).ratio(wholes / 10, wholes) == Estimate(pytest.approx(0.1), None, 20)


def test_a_case_without_a_value_does_not_count():
    values = np.array([np.nan] * 3 + [0.25, 0.5] * 3)
    sample = Sample(range(9))
    found = sample.mean(values)
    assert (found.value, found.num_cases) == (0.375, 6) and found.interval is not None
    # of the six only five are left
    assert sample.mean(np.where(np.arange(9) == 3, np.nan, values)).interval is None
    assert sample.mean(np.full(9, np.nan)) == Estimate(None, None, 0) == Sample([]).mean(np.array([]))


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios():
    parts, wholes = np.array([1.0, 0, 2, 3, 0, 1, 1]), np.array([1.0, 3, 2, 3, 0, 1, 2])
    found = Sample(range(7)).ratio(parts, wholes)
    # 8 of 12, in the 6 cases that have any
    assert (found.value, found.num_cases) == (pytest.approx(8 / 12), 6)
    low, high = found.interval
    assert 0 <= low < 8 / 12 < high <= 1
