import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from silofl.core.calibration import calibrated_error, expected_calibration_error


def test_the_error_is_the_mean_distance_of_confidence_and_accuracy():
    confidences = np.array([0.55, 0.53, 0.95, 0.95])
    is_right = np.array([True, False, True, True])
    # confidence 0.54 and 1 of 2 right; 0.95 and 2 of 2 right
    assert expected_calibration_error(confidences, is_right) == pytest.approx(0.5 * 0.04 + 0.5 * 0.05)


def test_who_is_always_sure_and_right_makes_no_error():
    assert expected_calibration_error(np.ones(3), np.ones(3, bool)) == 0


def test_a_calibrated_models_error_falls_with_its_cases():
    random = np.random.default_rng(1)
    result = [calibrated_error(random.uniform(0.5, 1, count)) for count in (20, 80, 2000)]
    # of 20 cases in 5 bins each bin's mean deviates by about sqrt(0.75 * 0.25 / 4), of which 0.8 is the mean distance
    assert result[0].value == pytest.approx(0.8 * np.sqrt(0.75 * 0.25 / 4), rel=0.15)
    assert result[0].value > 1.7 * result[1].value > 4 * result[2].value
    assert all(one.interval[0] < one.value < one.interval[1] for one in result)
    # who is sure is right
    assert calibrated_error(np.ones(7)).value == 0


def test_a_single_cases_error_is_its_uncertainty():
    # right with 0.9, then 0.1 away; else 0.9 away
    assert calibrated_error(np.array([0.9])).value == pytest.approx(0.9 * 0.1 + 0.1 * 0.9, abs=0.03)


@pytest.mark.parametrize("num_classes", [2, 5])
def test_the_error_of_200_random_cases_is_torchmetrics(num_classes):
    random = np.random.default_rng(num_classes)
    chances = random.dirichlet(np.ones(num_classes), 200)
    truth = random.integers(num_classes, size=200)
    result = expected_calibration_error(chances.max(axis=1), chances.argmax(axis=1) == truth)
    wanted = multiclass_calibration_error(torch.tensor(chances), torch.tensor(truth), num_classes, n_bins=10, norm="l1")
    assert result == pytest.approx(float(wanted), abs=1e-6)
