import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, balanced_accuracy_score, roc_auc_score
from torchmetrics.functional.classification import multiclass_recall

from silofl.base.schema import read_record
from silofl.training.metrics import Score, accuracy_by_case, dice_by_case, mean_area, pool_values
from silofl.training.site_score import SiteScore, pool_scores

# The slices of a case need not stand together.
CASES = ("a", "b", "a", "d", "b", "c", "a", "d")
ONE = {1: (1,)}
BOTH = {1: (1,), 2: (2,)}


def label_maps(seed, labels=3, size=(5, 4)):
    """Return random truth and prediction in which some slices lack some labels."""
    rng = np.random.default_rng(seed)
    truth, prediction = rng.integers(0, labels, (2, len(CASES), *size), dtype=np.uint8)
    for i in range(len(CASES)):
        truth[i][truth[i] == rng.integers(0, labels + 2)] = 0
        prediction[i][prediction[i] == rng.integers(0, labels + 2)] = 0
    return prediction, truth


def monai_dice(prediction, truth, cases, labels, has_background):
    """Return case -> Dice by MONAI on whole volumes, NaN for a label that is in neither."""
    from monai.metrics import compute_dice

    by_case = {}
    for case in dict.fromkeys(cases):
        member = [name == case for name in cases]
        volumes = [torch.from_numpy(maps[member]) for maps in (prediction, truth)]
        one_hot = [torch.stack([volume == i for i in range(labels + 1)])[None].float() for volume in volumes]
        values = compute_dice(*one_hot, include_background=has_background, ignore_empty=False)[0]
        if not has_background:
            in_neither = ~torch.cat(one_hot)[:, 1:].flatten(2).any(2).any(0)
            values[in_neither] = float("nan")
        by_case[case] = float(values.nanmean())
    return by_case


@pytest.mark.parametrize("has_background", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_dice_is_monais_on_whole_volumes(seed, has_background):
    prediction, truth = label_maps(seed)
    wanted = monai_dice(prediction, truth, CASES, 2, has_background)
    score = dice_by_case(prediction, truth, CASES, BOTH, has_background)
    assert score.by_case == pytest.approx(wanted, rel=1e-6)
    assert score.value == pytest.approx(np.mean(list(wanted.values())))
    assert (score.num_cases, score.num_excluded) == (4, 0)


RIM, CUP = 1, 2
REGIONS = {"disc": (RIM, CUP), "cup": (CUP,)}


def test_a_region_is_the_union_of_its_labels():
    truth = np.array([[[RIM, RIM, CUP, 0]]], np.uint8)
    prediction = np.array([[[RIM, CUP, CUP, 0]]], np.uint8)
    score = dice_by_case(prediction, truth, ("eye",), REGIONS)
    # the disc: 3 of 3 and 3; the cup: 1 of 2 and 1; by labels the rim would have 2 / 3
    assert score.by_label == pytest.approx({"disc": 1, "cup": 2 / 3})
    assert score.by_case == pytest.approx({"eye": 5 / 6})
    assert score.numbers()["labels"] == score.by_label


def test_an_empty_case_is_excluded_and_false_alarms_count_zero():
    truth, prediction = np.zeros((2, 6, 1, 4), np.uint8)
    names = ("full", "empty", "void", "right", "alarm", "missed")
    truth[[0, 3, 5]], prediction[3], prediction[0, 0, :2], prediction[4, 0, 0] = 1, 1, 1, 1
    score = dice_by_case(prediction, truth, names, ONE)
    # 2 * 2 / (2 + 4)
    assert score.by_case == {"full": 2 / 3, "right": 1, "alarm": 0, "missed": 0}
    assert score.value == pytest.approx((2 / 3 + 1) / 4) and (score.num_cases, score.num_excluded) == (4, 2)
    nothing = dice_by_case(prediction[1:3], truth[1:3], names[1:3], ONE)
    assert math.isnan(nothing.value)
    assert (nothing.num_cases, nothing.num_excluded, nothing.by_case) == (0, 2, {})
    # A label that is not asked for does not count.
    truth = np.array([[[1, 3]]], np.uint8)
    prediction = np.array([[[1, 0]]], np.uint8)
    assert dice_by_case(prediction, truth, ("a",), BOTH).value == 1


def test_empty_cases_and_their_false_positives_are_counted():
    truth = np.zeros((4, 2, 2), np.uint8)
    truth[0, 0] = 1
    predicted = truth.copy()
    predicted[1, 0, 0] = 2
    # One case is right, one is empty with a stray voxel, two are empty and found empty: (1 + 0) / 2.
    score = dice_by_case(predicted, truth, ["right", "stray", "silent", "still"], BOTH)
    numbers = score.numbers()
    assert (numbers["value"], numbers["num_cases"], numbers["num_excluded"]) == (1 / 2, 2, 2)
    assert (numbers["num_empty"], numbers["num_false_positive"], numbers["value_with_truth"]) == (3, 1, 1.0)
    alone = {
        case: dice_by_case(predicted[[i]], truth[[i]], [case], BOTH) for i, case in enumerate(score.empty, start=1)
    }
    assert Score.merged(alone).empty == score.empty == {"stray": True, "silent": False, "still": False}
    assert Score.merged(alone).numbers()["value_with_truth"] is None
    assert "num_empty" not in dice_by_case(predicted[[0]], truth[[0]], ["right"], BOTH).numbers()


def test_beside_another_model_only_cases_with_a_label_count():
    truth = np.zeros((4, 2, 2), np.uint8)
    predicted = np.zeros((4, 2, 2), np.uint8)
    truth[0], predicted[0], predicted[1, 0, 0], truth[3] = 1, 1, 1, 1
    score = dice_by_case(predicted, truth, ("right", "alarm", "silent", "missed"), ONE)
    assert score.compared == {"right": 1, "missed": 0}
    # The value stays the mean over the cases with something in truth or prediction.
    assert score.by_case == {"right": 1, "alarm": 0, "missed": 0}
    assert accuracy_by_case(np.array([1, 0]), np.array([1, 1]), ("a", "b")).compared == {"a": 1, "b": 0}


def test_accuracy_averages_a_cases_slices_before_the_cases():
    # v has 2 of 3 slices right, p and q are pictures
    score = accuracy_by_case(np.array([1, 1, 0, 2, 1], np.uint8), np.array([1, 1, 1, 2, 0]), ("v", "v", "v", "p", "q"))
    assert score.by_case == {"v": 2 / 3, "p": 1, "q": 0}
    assert score.value == (2 / 3 + 1) / 3 and (score.num_cases, score.num_excluded) == (3, 0)


@pytest.mark.parametrize("value", [None, float("nan")])
def test_pooling_weighs_every_case_the_same(value):
    # 2 cases of 0.5 and 3 of 0.8
    assert pool_values([(0.5, 2), (0.8, 3), (value, 0)]) == pytest.approx((0.5 * 2 + 0.8 * 3) / 5)
    assert pool_values([(value, 0)]) is None
    assert pool_values([]) is None


# --- classes


def random_classes(seed, count=60, num_classes=4):
    """Return probabilities and true classes that go with them more often than not, and a case for each."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, num_classes, count)
    predicted = rng.dirichlet(np.ones(num_classes), count) + 0.4 * np.eye(num_classes)[truth]
    return predicted / predicted.sum(axis=1, keepdims=True), truth, [f"case{i}" for i in range(count)]


def class_score(probabilities, truth, cases, metric="accuracy"):
    return accuracy_by_case(probabilities.argmax(axis=1), truth, cases, metric, probabilities)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_accuracy_recall_and_auroc_are_scikit_learns_and_torchmetrics(num_classes):
    predicted, truth, cases = random_classes(0, num_classes=num_classes)
    score = class_score(predicted, truth, cases)
    predictions = predicted.argmax(axis=1)
    by_class = [roc_auc_score(truth == label, predicted[:, label]) for label in range(num_classes)]
    assert score.also == pytest.approx(
        {
            "accuracy": accuracy_score(truth, predictions),
            "balanced_accuracy": balanced_accuracy_score(truth, predictions),
            "auroc": np.mean(by_class),
        }
    )
    recalls = multiclass_recall(torch.tensor(predictions), torch.tensor(truth), num_classes, average=None)
    assert [score.by_label[label] for label in range(num_classes)] == pytest.approx(recalls.tolist())


def test_equal_probabilities_are_ties_but_rounded_ones_are_not():
    # of the two pairs of a positive and a negative one is a tie, the other in order: (1 / 2 + 1) / 2
    table = {0: {"a": (0.8, 0.2)}, 1: {"b": (0.8, 0.2), "c": (0.3, 0.7)}}
    assert mean_area("auroc", table) == (1 / 2 + 1) / 2
    # the positive is above the negative for both classes: 1e-9 and 1e-10, 1 - 1e-10 and 1 - 1e-9
    assert mean_area("auroc", {0: {"a": (1e-9, 1 - 1e-9)}, 1: {"b": (1e-10, 1 - 1e-10)}}) == 1


def test_a_class_that_the_truth_lacks_does_not_count():
    predicted = np.array([[0.6, 0.1, 0.3], [0.2, 0.3, 0.5], [0.3, 0.1, 0.6]])
    score = class_score(predicted, np.array([0, 0, 2]), "abc", "balanced_accuracy")
    # class 0: 1 of 2; class 2: 1 of 1; class 1 is nowhere
    assert score.by_label == {0: 1 / 2, 2: 1} and score.label_cases == {0: 2, 2: 1}
    assert score.value == (1 / 2 + 1) / 2
    # classes 0 and 2 have the positive above the negative in 1 and 2 of the two pairs: 0.6, 0.2 over 0.3; 0.6 over both
    assert score.also["auroc"] == (1 / 2 + 2 / 2) / 2


def test_the_images_of_a_case_count_as_one():
    predicted = np.array([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5], [0.1, 0.9]])
    score = class_score(predicted, np.array([0, 0, 1, 1]), ("v", "v", "p", "q"))
    # v: right once of two, and (0.6, 0.4) on average; p falls to the first of equal classes
    assert score.labels_by_case == {0: {"v": 1 / 2}, 1: {"p": 0, "q": 1}}
    assert score.probabilities_by_case[0]["v"] == pytest.approx((0.6, 0.4))
    assert score.label_cases == {0: 1, 1: 2} and score.also["auroc"] == 1


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy"])
def test_merged_classifications_of_single_cases_are_that_of_all(metric):
    predicted, truth, cases = random_classes(1, count=12)
    whole = class_score(predicted, truth, cases, metric)
    alone = {case: class_score(predicted[[i]], truth[[i]], [case], metric) for i, case in enumerate(cases)}
    merged = Score.merged(alone)
    assert merged == whole and merged.value == pytest.approx(whole.value)
    assert merged.also == pytest.approx(whole.also) and set(whole.also) == {"accuracy", "balanced_accuracy", "auroc"}


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy"])
def test_pooled_classifications_of_sites_are_one_score_over_all_sites(metric):
    predicted, truth, cases = random_classes(2)
    sites = [np.flatnonzero(truth < 2), np.flatnonzero(truth == 2), np.flatnonzero(truth == 3)[:3]]
    scores = [class_score(predicted[rows], truth[rows], [cases[i] for i in rows], metric) for rows in sites]
    rows = np.concatenate(sites)
    together = class_score(predicted[rows], truth[rows], [cases[i] for i in rows], metric)
    sent = [read_record(SiteScore, score.numbers(), "a score") for score in scores]
    assert pool_scores(sent) == pytest.approx(together.value)


# --- metrics of the cases' order


@pytest.mark.parametrize(("metric", "oracle"), [("auroc", roc_auc_score), ("auprc", average_precision_score)])
def test_a_metric_of_the_order_is_scikit_learns_mean(metric, oracle):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 40)
    probabilities = rng.dirichlet(np.ones(3), 40)
    cases = [str(number) for number in range(40)]
    score = accuracy_by_case(probabilities.argmax(axis=1), truth, cases, metric, probabilities)
    wanted = np.mean([oracle(truth == label, probabilities[:, label]) for label in range(3)])
    assert score.value == pytest.approx(wanted, rel=1e-6)
    assert score.numbers()["value"] == score.also[metric] == score.value and score.numbers()["num_cases"] == 40


def test_cases_of_one_class_have_no_order():
    score = accuracy_by_case(np.array([0, 1]), np.array([0, 0]), "ab", "auroc", np.array([[0.9, 0.1], [0.4, 0.6]]))
    numbers = score.numbers()
    assert (numbers["value"], numbers["num_cases"], numbers["num_excluded"]) == (None, 0, 2)
    assert numbers["also"] == {"accuracy": 0.5, "balanced_accuracy": 0.5}
    assert read_record(SiteScore, numbers, "score").value is None
    assert mean_area("auroc", {}) is None and mean_area("auroc", {0: {"a": (0.9, 0.1)}, 1: {}}) is None
