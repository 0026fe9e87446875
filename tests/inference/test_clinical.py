from types import SimpleNamespace

import numpy as np
import pytest
import torch
from monai.metrics import (
    compute_average_precision,
    compute_dice,
    compute_hausdorff_distance,
    compute_roc_auc,
    compute_surface_dice,
    get_confusion_matrix,
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
from silofl.data.units import Units
from silofl.inference import evaluated_cases
from silofl.inference.clinical import ClassRows, list_measures, measure_also, measure_labels, measure_value
from silofl.inference.evaluated_cases import FileMaps, SiteCases, evaluate_cases
from silofl.training.findings import findings_by_case
from silofl.training.metrics import Score, accuracy_by_case

NUM_CASES = 200
SPACING = (1.5, 1.0, 4.0)


def blobs(random, shape):
    """Return a label map with a box of each label, of which the second may be missing."""
    labels = np.zeros(shape, np.uint8)
    for label in (1, 2)[: random.integers(1, 3)]:
        first = random.integers(0, np.array(shape) // 2)
        labels[
            tuple(slice(start, start + size) for start, size in zip(first, random.integers(2, 6, 3), strict=True))
        ] = label
    return labels


def evaluate(monkeypatch, study, truths, answers, spacing=None, has_ignored=False):
    """Evaluate volumes (X, Y, Z) with a model that answers what it is told; return cases and units."""
    names = tuple(f"c{i}" for i in range(len(truths)))
    images = np.random.default_rng(0).random((len(truths), 1, *truths.shape[1:]), np.float32)
    sizes = dict.fromkeys(names, spacing) if spacing else {}
    part = Examples(images, truths, names, (None,) * len(names), names, spacings=sizes, has_ignored=has_ignored)
    told = dict(zip(names, answers, strict=True))

    drawn, affine = dict(zip(names, truths, strict=True)), np.diag([*(spacing or (1, 1, 1)), 1.0])
    # The volumes are prepared as they lie in their files.
    maps = {name: FileMaps(told[name], drawn[name], affine) for name in names}
    monkeypatch.setattr(evaluated_cases, "answer_case", lambda *_: SimpleNamespace(model="global", probabilities=None))
    monkeypatch.setattr(evaluated_cases, "decide_answers", lambda *_: None)
    monkeypatch.setattr(evaluated_cases, "lay_on_file", lambda answer, record, **rest: maps[record.case])
    model = SimpleNamespace(
        contents=SimpleNamespace(
            study=study, domain=SimpleNamespace(check=lambda form, name: None), has_learnt_at=lambda *_: False
        ),
        find_calling=lambda: MOST_PROBABLE,
        compare_answer=lambda *_: SimpleNamespace(sentences=()),
        list_warnings=lambda answer, doubts: tuple(doubts),
        list_reasons_against_use=lambda answer, doubts: None,
        compare_images=lambda images, form, own: [],
    )
    records = [SimpleNamespace(case=name, numbers=None) for name in names]
    files = {
        "read_first": lambda record: (SimpleNamespace(codes={}), None),
        "list_file_doubts": lambda *_: [],
        "list_missing": lambda *_: [],
    }
    manifest = {"digest": "", "parts": {"test": records}, "source": lambda record: SimpleNamespace(has_own_files=False)}
    data = SimpleNamespace(manifest=SimpleNamespace(**manifest), **files)
    units = Units("patient", {name: name for name in names})
    return list(evaluate_cases(model, SiteCases(data, {"test": part}, units))), units.unit_of


def one_hot(maps):
    return torch.from_numpy(np.stack([maps == 1, maps == 2], axis=1))


@pytest.mark.filterwarnings("ignore:the (prediction|ground truth) of class:UserWarning", "ignore::FutureWarning")
def test_random_volumes_have_monais_numbers(monkeypatch, make_study):
    random = np.random.default_rng(0)
    truths, answers = (np.stack([blobs(random, (12, 14, 8)) for _ in range(50)]) for _ in range(2))
    study = make_study()
    cases, unit_of = evaluate(monkeypatch, study, truths, answers, SPACING)
    found = measure_labels(cases, unit_of, study)
    true, said = one_hot(truths), one_hot(answers)
    # MONAI's is NaN where neither has the label, as asked for
    dice = compute_dice(said, true, include_background=True, ignore_empty=False)
    is_there, is_both = true.flatten(2).any(2) | said.flatten(2).any(2), true.flatten(2).any(2) & said.flatten(2).any(2)
    options = {"include_background": True, "spacing": list(SPACING)}
    hd95 = compute_hausdorff_distance(said, true, percentile=95, **options)
    surface = compute_surface_dice(said, true, [2.0, 2.0], **options)
    voxel_ml = np.prod(SPACING) / 1000
    for i, name in enumerate(("organ", "lesion")):
        one, rows, both = found[name], is_there[:, i], is_both[:, i]
        assert (one["dice"].num_cases, one["hd95"].num_cases) == (rows.sum(), both.sum())
        assert one["dice"].value == pytest.approx(float(dice[rows, i].mean()), abs=1e-6)
        assert one["hd95"].value == pytest.approx(float(hd95[both, i].mean()), abs=1e-5)
        assert one["surface_dice"].value == pytest.approx(float(surface[both, i].mean()), abs=1e-5)
        difference = voxel_ml * (said[:, i].flatten(1).sum(1) - true[:, i].flatten(1).sum(1))[rows].double()
        assert one["size_error"].value == pytest.approx(float(difference.mean()))
        assert one["size_error"].interval[1] == pytest.approx(float(difference.mean() + 1.96 * difference.std()))
        # the second label is one box, which nothing covers
        if name == "lesion":
            touched = (said[:, i] & true[:, i]).flatten(1).any(1)
            num_lesions = sum(measured.lesions.num_true for measured in list_measures(cases, 2))
            assert num_lesions == true[:, i].flatten(1).any(1).sum()
            assert one["lesion_sensitivity"].value == pytest.approx(int(touched.sum()) / num_lesions)
    means = [case.score.by_case[case.case] for case in cases if case.score.by_case]
    value = measure_value(Score.merged({case.case: case.score for case in cases}), unit_of, {})
    assert value.value == pytest.approx(np.mean(means)) and value.interval[0] < value.value < value.interval[1]


def test_what_nobody_annotated_is_no_false_lesion_and_without_a_size_of_voxels_sizes_are_in_voxels(
    monkeypatch, make_study
):
    truth, answer = np.zeros((2, 2, 6, 6, 4), np.uint8)
    truth[:, 1:3, 1:3], answer[:, 1:3] = 1, 1
    study = make_study()
    cases, unit_of = evaluate(monkeypatch, study, truth, answer)
    # 2 x 6 x 4 voxels are predicted of 2 x 2 x 4
    assert measure_labels(cases, unit_of, study)["organ"]["size_error"].value == 48 - 16
    answer[:] = truth
    truth[:, 5], answer[:, 5] = IGNORED, 1
    cases, unit_of = evaluate(monkeypatch, study, truth, answer, has_ignored=True)
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
    found = rows.measure_classes(study, 0.9)
    assert [*found] == [*labels.values()][1 if num_classes == 2 else 0 :]
    for name, one in found.items():
        label = int(name[-1])
        pair = torch.tensor(chances[:, label]), torch.tensor(truth == label).int()
        assert one["auroc"].value == pytest.approx(compute_roc_auc(*pair), abs=1e-6)
        assert one["average_precision"].value == pytest.approx(compute_average_precision(*pair), abs=1e-6)
        is_called = chances[:, label] >= one["threshold"].value
        assert one["sensitivity"].value == pytest.approx(is_called[truth == label].mean())
        assert is_called[truth != label].mean() <= 0.1
        for estimate in (one["recall"], one["auroc"], one["average_precision"], one["sensitivity"]):
            low, high = estimate.interval
            assert 0 <= low < estimate.value < high <= 1
    counted = rows.count_answers(study)
    answers = chances.argmax(axis=1)
    np.testing.assert_array_equal([[*row.values()] for row in counted.values()], confusion_matrix(truth, answers))
    # MONAI's TP, FP, TN, FN of each class
    hits = torch.nn.functional.one_hot(torch.tensor(answers), num_classes)
    table = get_confusion_matrix(hits, torch.nn.functional.one_hot(torch.tensor(truth), num_classes)).sum(dim=0)
    for label, name in labels.items():
        assert counted[name][name] == table[label, 0]


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


def test_an_unknown_metric_has_its_value_and_no_interval_and_an_area_of_one_class_is_none_at_all():
    score = Score.of({"a": 0.25, "b": 0.75}, metric="other")
    assert measure_value(score, {"a": "a", "b": "b"}, {}) == Estimate(0.5, None, 2)
    score = Score({"a": 1.0}, metric="auroc", probabilities_by_case={0: {"a": (0.75, 0.25)}})
    assert measure_value(score, {"a": "a"}, {}) == Estimate(None, None, 0)


def test_each_finding_is_measured_by_itself(make_study):
    random, names = np.random.default_rng(0), [f"c{i}" for i in range(NUM_CASES)]
    is_there = random.random((NUM_CASES, 2)) < (0.4, 0.2)
    chances = np.clip(0.2 * is_there + 0.8 * random.random(is_there.shape), 0, 1)
    labels, said = {0: "effusion", 1: "nodule"}, decide_findings(chances)
    score = findings_by_case(said, is_there @ [1, 2], names, labels, "auroc", chances)
    rows = ClassRows(score, {name: name for name in names})
    found = rows.measure_classes(make_study("multilabel", labels), 0.9)
    for label, name in labels.items():
        truth, answers = is_there[:, label], chances[:, label] > 0.5
        assert found[name]["recall"].value == pytest.approx(recall_score(truth, answers))
        assert found[name]["auroc"].value == pytest.approx(roc_auc_score(truth, chances[:, label]))
        assert found[name]["average_precision"].value == pytest.approx(
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
    found = ClassRows(score, {name: name for name in names}).measure_classes(make_study("classification", labels), 0.9)
    one = found["malignant"]
    assert {one["recall"], one["auroc"], one["average_precision"]} == {Estimate(None, None, 0)} and one[
        "threshold"
    ].value is None
    # equal scores tell nothing
    assert found["benign"]["auroc"].value == 0.5
