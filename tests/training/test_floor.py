"""What a score may say where a site lets no number of fewer than five patients leave."""

import numpy as np
import pytest

from silofl.base.settings import parse
from silofl.parts.answer import read_answer
from silofl.study import Study
from silofl.training.metrics import Score, accuracy_by_case, dice_by_case
from silofl.training.small_cells import (
    EMPTY,
    SURFACE,
    find_small_labels,
    is_withheld,
    round_scores,
    suppress_small_cells,
)

LEAST = 5


def study(task="classification", metric="accuracy", labels=("a", "b", "c")):
    first = int(task == "segmentation")
    values = {"name": "s", "task": task, "labels": dict(enumerate(labels, first)), "rounds": 1, "metric": metric}
    network = {"model": {"name": "lenet5"}, "training": {"loss": "cross_entropy"}} if not first else {}
    return parse(Study, values | {"algorithm": {"name": "fedavg"}} | network, "study.yaml")


def classified(counts, metric="accuracy"):
    """Return the score of as many patients of each class, each with one case, all of whom are answered 0."""
    truth = np.repeat(np.arange(len(counts)), counts)
    shares = np.full((len(truth), len(counts)), 0.1) + np.linspace(0, 0.2, len(truth))[:, None] * np.eye(len(counts))[0]
    cases = [f"c{i}" for i in range(len(truth))]
    score = accuracy_by_case(np.zeros(len(truth), int), truth, cases, metric, shares)
    return score, {case: f"p{case}" for case in cases}


def told(counts, metric="accuracy", least=LEAST, **more):
    score, patient_of = classified(counts, metric)
    labels = "abcd"[: len(counts)]
    return suppress_small_cells(score.numbers() | more, score, patient_of, least, study(metric=metric, labels=labels))


def test_without_a_floor_and_with_enough_patients_all_numbers_leave():
    score, _ = classified([9, 2, 7])
    assert told([9, 2, 7], least=0) == score.numbers()
    assert told([9, 5, 7]) == classified([9, 5, 7])[0].numbers()


def test_a_class_of_two_patients_leaves_no_number():
    result = told([9, 2, 7], operating_point={"temperature": 1.0})
    # Of 18 cases less 9 and 7 the class would have 2: the smallest of the others is withheld with it.
    assert result["labels"] == {"0": 1.0} and result["label_cases"] == {"0": 9} and result["num_cases"] == 18
    assert result["withheld"] == {"least": 5, "names": ["1", "2"]}
    assert result["also"].keys() == {"accuracy"} and "operating_point" not in result


def test_of_two_classes_both_are_withheld():
    assert told([18, 2])["labels"] == {} and told([18, 2])["value"] == 18 / 20
    for metric in ("balanced_accuracy", "auroc"):
        assert told([18, 2], metric) == {
            "value": None,
            "num_cases": 0,
            "num_excluded": 0,
            "withheld": {"least": 5},
        }


def test_a_mean_over_classes_is_over_those_that_are_said():
    # Recalls of 1, 0, 0 and 0 have a mean of 0.25, from which that of the smallest would follow.
    result = told([9, 2, 7, 8], "balanced_accuracy")
    assert result["labels"] == {"0": 1.0, "3": 0.0} and result["value"] == 0.5


def test_a_score_of_too_few_patients_says_nothing():
    score, patient_of = classified([9, 9, 9])
    few = {case: f"p{i % 4}" for i, case in enumerate(patient_of)}
    unknown = dict.fromkeys(patient_of)
    for whose in (few, unknown):
        result = suppress_small_cells(score.numbers() | {"num_patients": 4}, score, whose, LEAST, study())
        assert result == {"value": None, "num_cases": 0, "num_excluded": 0, "withheld": {"least": 5}}
        assert is_withheld(score, whose, LEAST, study())


def test_a_label_of_two_patients_is_withheld():
    maps = np.zeros((9, 1, 4), np.uint8)
    maps[2:, 0, 0] = 1
    maps[7:, 0, 1] = 2
    cases = [f"c{i}" for i in range(9)]
    alarms = maps.copy()
    alarms[0, 0, 0] = 1
    score = dice_by_case(alarms, maps, cases, {1: (1,), 2: (2,)})
    patient_of = {case: case for case in cases}
    own_study = study("segmentation", "dice", ("organ", "lesion"))
    surface = {"hd95": 1.0, "surface_dice": 1.0, "num_cases": 3, "num_undefined": 6, "unit": "mm"}
    result = suppress_small_cells(score.numbers() | {"surface": surface}, score, patient_of, LEAST, own_study)
    assert result["labels"].keys() == {"1"} and result["withheld"] == {
        "least": 5,
        "names": sorted([EMPTY, SURFACE, "2"]),
    }
    assert not result.keys() & {"num_empty", "num_false_positive", "value_with_truth", "surface"}
    assert find_small_labels(score, patient_of, 2, own_study) == set()


@pytest.mark.parametrize(("lacking", "names"), [(0, None), (1, ["2"]), (4, ["2"]), (5, None)])
def test_patients_without_a_label_do_not_follow_from_means(lacking, names):
    maps = np.zeros((16, 1, 4), np.uint8)
    maps[:, 0, 0] = 1
    maps[lacking:, 0, 1] = 2
    answers = maps.copy()
    answers[0, 0, 2] = 1
    cases = [f"c{i}" for i in range(16)]
    score = dice_by_case(answers, maps, cases, {1: (1,), 2: (2,)})
    own_study = study("segmentation", "dice", ("organ", "lesion"))
    result = suppress_small_cells(score.numbers(), score, {case: case for case in cases}, LEAST, own_study)
    assert result.get("withheld", {}).get("names") == names
    # The label alone: the score of all is of enough.
    assert not is_withheld(score, {case: case for case in cases}, LEAST, own_study)
    if lacking == 1:
        # What the server would compute, were the lesion's mean not withheld: the organ's Dice of the first patient.
        value = score.numbers()["value"]
        labels = score.numbers()["labels"]
        assert 2 * 16 * value - 16 * labels["1"] - 15 * labels["2"] == pytest.approx(score.by_case["c0"])
        assert result["labels"].keys() == {"1"}


def test_what_is_withheld_is_an_answer_that_the_server_reads():
    for counts in ([9, 2, 7], [2, 1]):
        meta = {"round": 1, "metrics": {"validation": told(counts)}}
        assert read_answer("north", {}, meta, {}).numbers.metrics.validation.withheld.least == 5


def test_findings_are_withheld_with_their_absence():
    by_case = {f"c{i}": 1.0 for i in range(10)}
    has = [f"c{i}" for i in range(2)]
    rest = [case for case in by_case if case not in has]
    tables = {0: dict.fromkeys(has, 1.0), "no a": dict.fromkeys(rest, 1.0)}
    tables |= {1: dict.fromkeys(list(by_case)[:5], 1.0), "no b": dict.fromkeys(list(by_case)[5:], 1.0)}
    score = Score.of(by_case, tables, "accuracy", {}, is_multilabel=True)
    own_study = study("multilabel", "accuracy", ("a", "b"))
    assert find_small_labels(score, {case: case for case in by_case}, LEAST, own_study) == {0, "no a"}


def test_scores_are_rounded_and_no_threshold_becomes_0_or_1():
    joined = {"test": {"local": 0.81234, "federated": None}, "difference": -0.00123456}
    told = {"value": 0.5124999, "num_cases": 7, "labels": {"low": 0.00123456}, "by_threshold": [[3.14159, 5]]}
    told |= {"loss_global": 0.00123456, "epsilon": 1.23456, "thresholds": {"1": 0.000123456, "2": 0.999876543}}
    # A region may be called as a key of differences is.
    wanted = {"value": 0.512, "num_cases": 7, "labels": {"low": 0.001}, "by_threshold": [[3.142, 5]]}
    wanted |= {"loss_global": 0.00123, "epsilon": 1.23456, "thresholds": {"1": 0.000123, "2": 1 - 0.000123}}
    assert round_scores(told) == wanted
    rounded = {"test": {"local": 0.812, "federated": None}, "difference": -0.00123}
    assert round_scores(joined, "joined") == rounded
