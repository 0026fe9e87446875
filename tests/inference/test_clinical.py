from types import SimpleNamespace

import numpy as np
import pytest
import torch
from monai.metrics import (
    compute_average_precision,
    compute_roc_auc,
)
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    recall_score,
    roc_auc_score,
)

from silofl.core.calibration import calibrated_error, expected_calibration_error
from silofl.core.findings import decide_findings
from silofl.core.intervals import Estimate
from silofl.core.operating_point import MOST_PROBABLE
from silofl.data.parts import Examples
from silofl.data.targets import IGNORED
from silofl.inference.clinical import ClassRows, measure_also, measure_labels, measure_value
from silofl.inference.evaluated_cases import FileMaps, _evaluate_case
from silofl.training.findings import findings_by_case
from silofl.training.metrics import Score, accuracy_by_case

NUM_CASES = 200


def evaluate(study, truth, said, has_ignored=False):
    """Evaluate a volume (X, Y, Z) without a size of voxels, to which a model answers what it is told."""
    images = np.zeros((1, 1, *truth.shape), np.float32)
    part = Examples(images, truth[None], ("c",), (None,), ("c",), has_ignored=has_ignored)
    told = {"find_operating_point": lambda *_: MOST_PROBABLE, "list_warnings": lambda *_: ()}
    model = SimpleNamespace(contents=SimpleNamespace(study=study), **told)
    answer = SimpleNamespace(model="global", probabilities=None)
    return [_evaluate_case(model, part, "test", (answer, ()), lambda: FileMaps(said, truth, None), has_sizes=False)]


def test_ignored_voxels_are_no_false_lesion_and_sizes_are_voxels(
    make_study,
):
    truth, answer = np.zeros((2, 6, 6, 4), np.uint8)
    truth[1:3, 1:3], answer[1:3] = 1, 1
    study, unit_of = make_study(), {"c": "c"}
    cases = evaluate(study, truth, answer)
    # 2 x 6 x 4 voxels are predicted of 2 x 2 x 4
    assert measure_labels(cases, unit_of, study)["organ"]["size_error"].value == 48 - 16
    answer[:] = truth
    truth[5], answer[5] = IGNORED, 1
    cases = evaluate(study, truth, answer, has_ignored=True)
    organ = measure_labels(cases, unit_of, study)["organ"]
    assert organ["size_error"].value == 0 and organ["dice"].value == 1 and organ["false_lesions"].value == 0


def made_up(num_classes, seed=0):
    """Return the truth, the probabilities and the score of 200 random cases."""
    random = np.random.default_rng(seed)
    truth = random.integers(num_classes, size=NUM_CASES)
    chances = random.dirichlet(np.ones(num_classes), NUM_CASES)
    chances = (chances + 0.5 * np.eye(num_classes)[truth]) / 1.5
    names = [f"c{i}" for i in range(NUM_CASES)]
    score = accuracy_by_case(chances.argmax(axis=1), truth, names, "balanced_accuracy", chances)
    return truth, chances, score, {name: name for name in names}


@pytest.mark.parametrize("num_classes", [2, 4])
def test_200_random_classifications_have_the_libraries_numbers(make_study, num_classes):
    labels = {number: f"class {number}" for number in range(num_classes)}
    study, (truth, chances, score, unit_of) = make_study("classification", labels), made_up(num_classes)
    rows = ClassRows(score, unit_of)
    scores = rows.measure_classes(study)
    assert [*scores] == [*labels.values()][1 if num_classes == 2 else 0 :]
    for name, estimates in scores.items():
        label = int(name[-1])
        pair = torch.tensor(chances[:, label]), torch.tensor(truth == label).int()
        assert estimates["auroc"].value == pytest.approx(compute_roc_auc(*pair), abs=1e-6)
        assert estimates["average_precision"].value == pytest.approx(compute_average_precision(*pair), abs=1e-6)
        for estimate in (estimates["recall"], estimates["auroc"], estimates["average_precision"]):
            low, high = estimate.interval
            assert 0 <= low < estimate.value < high <= 1
    counted = rows.count_answers(study)
    answers = chances.argmax(axis=1)
    np.testing.assert_array_equal([[*row.values()] for row in counted.values()], confusion_matrix(truth, answers))


def test_the_studys_metric_has_an_interval_whichever_it_is():
    truth, chances, score, unit_of = made_up(3)
    also = measure_also(score, unit_of)
    assert measure_value(score, unit_of, also) == also["balanced_accuracy"]
    answers = chances.argmax(axis=1)
    assert also["balanced_accuracy"].value == pytest.approx(balanced_accuracy_score(truth, answers))
    assert also["accuracy"].value == pytest.approx((answers == truth).mean())
    assert also["auroc"].value == pytest.approx(roc_auc_score(truth, chances, multi_class="ovr"), abs=1e-6)
    for name in ("accuracy", "balanced_accuracy", "auroc"):
        low, high = also[name].interval
        assert low < also[name].value < high


def test_unknown_metrics_have_no_interval_and_one_class_no_area():
    score = Score.of({"a": 0.25, "b": 0.75}, metric="other")
    assert measure_value(score, {"a": "a", "b": "b"}, {}) == Estimate(0.5, None, 2)
    score = Score({"a": 1.0}, metric="auroc", probabilities_by_case={0: {"a": (0.75, 0.25)}})
    assert measure_value(score, {"a": "a"}, {}) == Estimate(None, None, 0)


def test_each_finding_is_measured_by_itself(make_study):
    random, names = np.random.default_rng(0), [f"c{i}" for i in range(NUM_CASES)]
    is_there = random.random((NUM_CASES, 2)) < (0.4, 0.2)
    chances = np.clip(0.2 * is_there + 0.8 * random.random(is_there.shape), 0, 1)
    labels = {0: "effusion", 1: "nodule"}
    score = findings_by_case(decide_findings(chances), is_there @ [1, 2], names, labels, "auroc", chances)
    rows = ClassRows(score, {name: name for name in names})
    scores = rows.measure_classes(make_study("multilabel", labels))
    for label, name in labels.items():
        truth, answers = is_there[:, label], chances[:, label] > 0.5
        assert scores[name]["recall"].value == pytest.approx(recall_score(truth, answers))
        assert scores[name]["auroc"].value == pytest.approx(roc_auc_score(truth, chances[:, label]))
        assert scores[name]["average_precision"].value == pytest.approx(
            average_precision_score(truth, chances[:, label])
        )
    # The sure answers of all findings, yes or no, and how many of them are right.
    confidences, is_right = np.maximum(chances, 1 - chances).ravel(), ((chances > 0.5) == is_there).ravel()
    wanted = expected_calibration_error(confidences, is_right)
    assert rows.measure_error(rows.shown) == pytest.approx(wanted)
    # These probabilities are far from calibrated; as many answers of a calibrated model show this.
    calibrated = rows.measure_calibrated(rows.shown)
    assert calibrated.value == pytest.approx(calibrated_error(confidences).value, rel=0.05)
    assert calibrated.interval[1] < wanted
    also = measure_also(score, {name: name for name in names})
    wanted = [balanced_accuracy_score(is_there[:, label], chances[:, label] > 0.5) for label in labels]
    assert also["balanced_accuracy"].value == pytest.approx(np.mean(wanted))
    assert also["auroc"].num_cases == also["accuracy"].num_cases == NUM_CASES


def test_a_class_that_no_case_has_is_not_measured(make_study):
    labels = {0: "normal", 1: "benign", 2: "malignant"}
    chances = np.full((8, 3), 1 / 3)
    names = [f"c{i}" for i in range(8)]
    score = accuracy_by_case(np.zeros(8, int), np.arange(8) % 2, names, "accuracy", chances)
    scores = ClassRows(score, {name: name for name in names}).measure_classes(make_study("classification", labels))
    malignant = scores["malignant"]
    assert {malignant["recall"], malignant["auroc"], malignant["average_precision"]} == {Estimate(None, None, 0)}
    # equal scores tell nothing
    assert scores["benign"]["auroc"].value == 0.5
