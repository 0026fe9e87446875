import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score
from torchmetrics.functional.classification import multilabel_accuracy

from silofl.base.schema import read_record
from silofl.core.findings import decide_findings, pack_findings
from silofl.training.findings import findings_by_case
from silofl.training.site_score import SiteScore, pool_scores

NAMES = {0: "effusion", 1: "nodule", 2: "mass"}


def random_findings(seed, count=40):
    """Return the truth (N, findings), as bits and as sets, and random probabilities that lean to it."""
    rng = np.random.default_rng(seed)
    truth = rng.random((count, len(NAMES))) < (0.5, 0.2, 0.4)
    probabilities = np.clip(0.3 * truth + 0.8 * rng.random(truth.shape), 0, 1)
    return truth, np.array([pack_findings(np.flatnonzero(row)) for row in truth]), probabilities


def score(sets, probabilities, metric="auroc", cases=None):
    cases = cases or tuple(f"case{number}" for number in range(len(sets)))
    return findings_by_case(decide_findings(probabilities), sets, cases, NAMES, metric, probabilities)


def test_the_metrics_of_findings_are_scikit_learns_and_torchmetrics():
    truth, sets, probabilities = random_findings(0)
    predicted = probabilities > 0.5
    result = score(sets, probabilities).also
    balanced = [balanced_accuracy_score(truth[:, k], predicted[:, k]) for k in NAMES]
    accuracy = multilabel_accuracy(torch.from_numpy(probabilities), torch.from_numpy(truth), len(NAMES))
    assert result == pytest.approx(
        {
            "accuracy": float(accuracy),
            "balanced_accuracy": np.mean(balanced),
            "auroc": roc_auc_score(truth, probabilities, average="macro"),
        }
    )
    assert score(sets, probabilities).value == result["auroc"]
    wanted = average_precision_score(truth, probabilities, average="macro")
    assert score(sets, probabilities, "auprc").value == pytest.approx(wanted)


def test_a_finding_and_its_absence_are_two_classes():
    probabilities = np.array([[0.9, 0.2, 0.1], [0.8, 0.6, 0.1], [0.3, 0.7, 0.2], [0.1, 0.4, 0.1]])
    # effusion, effusion and nodule, effusion, nothing; mass nowhere
    result = score(np.array([1, 3, 1, 0]), probabilities, "balanced_accuracy")
    # effusion: 2 of 3 found; nodule: the one; absences: 1 of 1, 2 of 3 (the third case's 0.7 is wrong), 4 of 4
    wanted = {0: 2 / 3, "no effusion": 1, 1: 1, "no nodule": 2 / 3, "no mass": 1}
    assert result.by_label == pytest.approx(wanted) and result.value == pytest.approx(sum(wanted.values()) / 5)
    assert result.label_cases == {0: 3, "no effusion": 1, 1: 1, "no nodule": 3, "no mass": 4}
    # the third case has one right answer of three, the others all
    assert result.by_case == pytest.approx({"case0": 1, "case1": 1, "case2": 1 / 3, "case3": 1})


def test_a_site_has_the_area_of_each_mixed_finding():
    probabilities = np.array([[0.9, 0.2, 0.1], [0.8, 0.6, 0.1], [0.3, 0.7, 0.2], [0.1, 0.4, 0.1]])
    numbers = score(np.array([1, 3, 1, 0]), probabilities).numbers()
    # effusion: all 3 pairs in order; nodule: 0.6 above 0.2 and 0.4, below 0.7
    assert numbers["areas"] == {"0": 1, "1": pytest.approx(2 / 3)}
    assert numbers["value"] == pytest.approx((1 + 2 / 3) / 2) and numbers["num_cases"] == 4
    assert read_record(SiteScore, numbers, "a score").areas == numbers["areas"]


def test_the_examples_of_a_case_count_as_one():
    probabilities = np.array([[0.9, 0.1, 0.1], [0.3, 0.1, 0.1], [0.4, 0.1, 0.1]])
    result = score(np.array([1, 1, 0]), probabilities, cases=("a", "a", "b"))
    # of a one slice of two is right about the effusion: (1/2 + 1 + 1) / 3
    assert result.by_case == pytest.approx({"a": 5 / 6, "b": 1})
    # the mean of 0.9 and 0.3 is above 0.4
    assert result.value == 1


def test_the_balanced_accuracy_of_all_sites_is_of_all_cases():
    _, sets, probabilities = random_findings(7)
    halves = [score(sets[part], probabilities[part], "balanced_accuracy") for part in (slice(15), slice(15, None))]
    whole = score(sets, probabilities, "balanced_accuracy").value
    assert pool_scores([read_record(SiteScore, one.numbers(), "a score") for one in halves]) == pytest.approx(whole)
