import numpy as np
import pytest
from scipy import stats

from silofl.core.intervals import LEAST_UNITS, RESAMPLES, draw_resamples, find_interval


def of_mean(values, units=None):
    return find_interval(lambda rows: values[rows].mean(), draw_resamples(units or range(len(values))))


def test_of_many_patients_the_interval_of_a_mean_is_students_and_repeats():
    values = np.random.default_rng(0).normal(0.7, 0.1, 200)
    student = stats.t.interval(0.95, 199, values.mean(), stats.sem(values))
    found = of_mean(values)
    np.testing.assert_allclose(found, student, atol=0.1 * (student[1] - student[0]))
    assert found == of_mean(values)


def test_cases_of_one_patient_are_drawn_together():
    values = np.repeat(np.random.default_rng(0).normal(0.7, 0.1, 50), 4)
    patients = np.repeat(np.arange(50), 4).tolist()
    for rows in draw_resamples(patients):
        assert (np.bincount(rows, minlength=200).reshape(50, 4).std(axis=1) == 0).all()
    alone, together = (np.ptp(of_mean(values, units)) for units in (None, patients))
    # four equal cases of a patient say as much as one: sqrt(4) times as wide
    assert together / alone == pytest.approx(2, rel=0.15)


def test_too_few_patients_and_equal_ones_have_no_interval():
    values = np.arange(LEAST_UNITS) / 10
    assert of_mean(values[:-1]) is None and of_mean(values) is not None
    assert of_mean(np.ones(20)) is None


def test_a_resample_in_which_the_number_is_not_defined_does_not_count():
    values = np.array([np.nan, *np.linspace(0, 1, 9)])
    resamples = draw_resamples(range(10))
    assert len(resamples) == RESAMPLES
    # every resample without the first row
    known = [values[rows].mean() for rows in resamples if 0 not in rows]
    assert find_interval(lambda rows: values[rows].mean(), resamples) == tuple(np.percentile(known, (2.5, 97.5)))
    assert find_interval(lambda rows: np.nan, resamples) is None
