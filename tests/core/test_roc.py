import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from sklearn.metrics import roc_auc_score, roc_curve
from torchmetrics.functional.classification import binary_sensitivity_at_specificity

from silofl.core.roc import find_operating_point, find_predictive_values, measure_areas, measure_auroc
from silofl.training.metrics import mean_area

# Patients with an ovarian tumour: albumin, total protein, Krebs-Goplerud score, and whether surgery helped. It is the
# data of DeLong et al. 1988 as SAS's documentation of PROC LOGISTIC prints them, with the results.
OVARIAN = """
3.0 5.8 10 0  3.2 6.3 5 1  3.9 6.8 3 1  2.8 4.8 6 0  3.2 5.8 3 1  0.9 4.0 5 0  2.5 5.7 8 0  1.6 5.6 5 1  3.8 5.7 5 1
3.7 6.7 6 1  3.2 5.4 4 1  3.8 6.6 6 1  4.1 6.6 5 1  3.6 5.7 5 1  4.3 7.0 4 1  3.6 6.7 4 0  2.3 4.4 6 1  4.2 7.6 4 0
4.0 6.6 6 0  3.5 5.8 6 1  3.8 6.8 7 1  3.0 4.7 8 0  4.5 7.4 5 1  3.7 7.4 5 1  3.1 6.6 6 1  4.1 8.2 6 1  4.3 7.0 5 1
4.3 6.5 4 1  3.2 5.1 5 1  2.6 4.7 6 1  3.3 6.8 6 0  1.7 4.0 7 0  3.7 6.1 5 1  3.3 6.3 7 1  4.2 7.7 6 1  3.5 6.2 5 1
2.9 5.7 9 0  2.1 4.8 7 1  2.8 6.2 8 0  4.0 7.0 7 1  3.3 5.7 6 1  3.7 6.9 5 1  3.6 6.6 5 1
"""


@pytest.fixture(scope="module")
def ovarian():
    """Scores by name, the higher the more likely, and whether a patient is positive."""
    albumin, protein, score, outcome = np.array(OVARIAN.split(), float).reshape(-1, 4).T
    return {"albumin": albumin, "protein": protein, "score": -score}, outcome == 1


def made_up(seed, n=60, levels=None):
    """Return scores of two models that are right more often than not, the second the better one, and the classes."""
    random = np.random.default_rng(seed)
    is_positive = random.random(n) < 0.4
    is_positive[:2] = True, False
    scores = random.normal(size=(2, n)) + is_positive * np.array([[0.7], [1.2]])
    return (np.round(scores * levels) / levels if levels else scores), is_positive


def test_area_and_variance_are_those_published_for_delongs_patients(ovarian):
    scores, is_positive = ovarian
    published = {"score": (0.7258, 0.5243, 0.9273), "protein": (0.6478, 0.4518, 0.8439)}
    published["albumin"] = (0.7366, 0.5549, 0.9182)
    for name, (area, low, high) in published.items():
        areas, covariance = measure_areas(scores[name][None], is_positive)
        # The published interval is two deviations wide, which DeLong's patients are too few for.
        margin = norm.ppf(0.975) * np.sqrt(covariance[0, 0])
        assert (areas[0], areas[0] - margin, areas[0] + margin) == pytest.approx((area, low, high), abs=1e-4)
        result = measure_auroc(scores[name], is_positive)
        assert result.value == areas[0] and result.interval[0] < low < area < result.interval[1] < high


def test_the_covariance_is_the_one_published_for_delongs_patients(ovarian):
    scores, is_positive = ovarian
    # all three at once: chi-square of both differences to the score
    areas, covariance = measure_areas(np.stack([*scores.values()]), is_positive)
    contrast = np.array([[1, 0, -1], [0, 1, -1]])
    statistic = contrast @ areas @ np.linalg.inv(contrast @ covariance @ contrast.T) @ contrast @ areas
    assert (statistic, chi2.sf(statistic, 2)) == pytest.approx((2.5340, 0.2817), abs=5e-5)


@pytest.mark.parametrize("levels", [None, 2])
def test_the_area_of_200_random_cases_is_the_libraries(levels):
    scores, is_positive = made_up(1, 200, levels)
    value = measure_auroc(scores[0], is_positive).value
    assert value == pytest.approx(roc_auc_score(is_positive, scores[0]), abs=1e-12)
    # the area that a site sends, over both classes
    chances = 1 / (1 + np.exp(-scores[0]))
    sent = {
        int(kind): {str(i): (1 - chances[i], chances[i]) for i in np.flatnonzero(is_positive == kind)}
        for kind in (False, True)
    }
    assert value == pytest.approx(mean_area("auroc", sent), abs=1e-6)


def test_patients_with_equal_cases_count_once():
    (first, second), is_positive = made_up(3, 30)
    patients = np.repeat(np.arange(30), 3).tolist()
    thrice = [np.repeat(one, 3) for one in (first, second, is_positive)]
    alone = measure_auroc(first, is_positive)
    together = measure_auroc(thrice[0], thrice[2], patients)
    assert together.value == pytest.approx(alone.value) and together.interval == pytest.approx(alone.interval)
    # who took them for 90 patients would be too sure
    assert np.ptp(measure_auroc(thrice[0], thrice[2]).interval) < 0.7 * np.ptp(together.interval)


@pytest.mark.parametrize(("area", "count"), [(0.76, 80), (0.98, 20)])
def test_an_interval_holds_the_true_area_often_enough(area, count):
    """Of 20 cases and an area of 0.98 two of DeLong's deviations hold it in 57 %, and 43 % of samples have none."""
    # of normal scores that lie d apart the area is the normal distribution at d / sqrt(2)
    random = np.random.default_rng(0)
    inside = 0
    distance = norm.ppf(area) * np.sqrt(2)
    for _ in range(400):
        is_positive = np.arange(count) < count / 2
        low, high = measure_auroc(random.normal(size=count) + distance * is_positive, is_positive).interval
        inside += low < area < high
    # deviation of the count: sqrt(400 * 0.95 * 0.05) = 4.4
    assert inside > 380 - 3 * 4.4


def test_separate_classes_have_an_area_of_1():
    is_positive = np.arange(10) > 5
    result = measure_auroc(np.arange(10.0), is_positive)
    # Clopper and Pearson's of 4 of 4
    assert result.value == 1 and result.interval == (pytest.approx(0.025 ** (1 / 4)), 1)
    assert measure_auroc(np.arange(4.0), np.arange(4) > 2).interval == (pytest.approx(0.025), 1)
    assert measure_auroc(np.array([0.0, 2, 1, 3]), np.arange(4) == 2).interval is None


@pytest.mark.parametrize("is_positive", [np.zeros(4, bool), np.ones(4, bool)])
def test_one_class_alone_has_no_curve(is_positive):
    scores = np.arange(4.0)
    assert measure_auroc(scores, is_positive) is None
    assert find_operating_point(scores, is_positive, 0.9) is None


def test_where_the_surest_case_is_negative_none_is_called():
    point = find_operating_point(np.array([0.9, 0.1, 0.2]), np.array([False, True, False]), 1.0)
    assert (point.threshold, point.sensitivity, point.specificity) == (None, 0, 1)


@pytest.mark.parametrize("specificity", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("levels", [None, 2])
def test_the_point_of_200_random_cases_is_the_libraries(specificity, levels):
    scores, is_positive = made_up(4, 200, levels)
    chances = 1 / (1 + np.exp(-scores[0]))
    point = find_operating_point(chances, is_positive, specificity)
    false, true, _ = roc_curve(is_positive, chances, drop_intermediate=False)
    assert point.sensitivity == pytest.approx(true[false <= 1 - specificity + 1e-9].max())
    result = binary_sensitivity_at_specificity(torch.tensor(chances), torch.tensor(is_positive).int(), specificity)
    if levels is None:
        assert point.sensitivity == pytest.approx(float(result[0]), abs=1e-6)
    threshold = np.inf if point.threshold is None else point.threshold
    assert (chances[is_positive] >= threshold).mean() == point.sensitivity
    assert (chances[~is_positive] < threshold).mean() == pytest.approx(point.specificity)
    assert point.specificity >= specificity


def test_predictive_values_are_shares_of_those_who_are_called_so():
    # Of 1000, 50 are ill: 40 found and 10 missed; of 950 well 95 false alarms.
    positive, negative = find_predictive_values(0.8, 0.9, 0.05)
    assert (positive, negative) == (pytest.approx(40 / 135), pytest.approx(855 / 865))
    assert np.isnan(find_predictive_values(0.0, 1.0, 0.5)[0]) and np.isnan(find_predictive_values(1.0, 0.0, 0.5)[1])
