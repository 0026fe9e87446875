import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from silofl.core.calibration import ReliabilityBin, expected_calibration_error, group_by_confidence


def test_the_error_is_the_mean_distance_of_confidence_and_accuracy():
    bins = group_by_confidence(np.array([0.55, 0.53, 0.95, 0.95]), np.array([True, False, True, True]))
    # confidence 0.54 and 1 of 2 right; 0.95 and 2 of 2 right
    assert bins == [ReliabilityBin(0.5, 2, pytest.approx(0.54), 0.5), ReliabilityBin(0.9, 2, pytest.approx(0.95), 1.0)]
    assert expected_calibration_error(bins) == pytest.approx(0.5 * 0.04 + 0.5 * 0.05)


def test_who_is_always_sure_and_right_makes_no_error():
    assert expected_calibration_error(group_by_confidence(np.ones(3), np.ones(3, bool))) == 0


@pytest.mark.parametrize("num_classes", [2, 5])
def test_the_error_of_200_random_cases_is_torchmetrics(num_classes):
    random = np.random.default_rng(num_classes)
    chances = random.dirichlet(np.ones(num_classes), 200)
    truth = random.integers(num_classes, size=200)
    bins = group_by_confidence(chances.max(axis=1), chances.argmax(axis=1) == truth)
    wanted = multiclass_calibration_error(torch.tensor(chances), torch.tensor(truth), num_classes, n_bins=10, norm="l1")
    assert expected_calibration_error(bins) == pytest.approx(float(wanted), abs=1e-6)
    assert sum(one.num_cases for one in bins) == 200
