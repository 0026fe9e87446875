from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from silofl.base.errors import TrainingError
from silofl.data.targets import IGNORED
from silofl.data.volumes import Volumes
from silofl.models import build_plain_model
from silofl.training.evaluation import evaluate, most_likely, predict, score_predictions, summarise_test

CPU = torch.device("cpu")


@pytest.fixture
def network():
    """A small network with BatchNorm that has seen other images than those it is asked about."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 3, 1)
        )
        model.train()(torch.rand(8, 1, 8, 8))
    return model


@pytest.fixture
def part(make_part):
    return make_part(np.random.default_rng(1).integers(0, 3, (7, 8, 8), dtype=np.uint8))


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_a_prediction_does_not_depend_on_the_batch_size(network, part, batch_size):
    assert np.array_equal(predict(network, part, batch_size, CPU), predict(network, part, 7, CPU))


def test_predictions_are_the_labels_of_the_networks_own_output(network, part):
    predictions = predict(network, part, 3, CPU)
    with torch.no_grad():
        logits = network.eval()(torch.from_numpy(part.images)).numpy()
    assert np.array_equal(predictions, logits.argmax(1))
    assert predictions.dtype == np.uint8 and len(np.unique(predictions)) > 1


@pytest.mark.parametrize("task", ["segmentation", "classification", "multilabel"])
def test_a_model_whose_numbers_overflow_has_no_score(network, part, make_study, make_part, task):
    study = make_study(task)
    if task != "segmentation":
        part = make_part(np.array([0, 1, 1]), size=(64, 64))
        network = build_plain_model(study, 0)
    # As of a BatchNorm whose statistics have diverged, where no weight has.
    list(network.modules())[-1].register_forward_hook(lambda module, inputs, output: output.fill_(np.nan))
    with pytest.raises(TrainingError, match="answered with NaN or infinity"):
        evaluate(network, part, study, CPU)


def test_evaluation_changes_nothing_of_the_model(network, part):
    before = {name: value.clone() for name, value in network.state_dict().items()}
    predict(network, part, 2, CPU)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(p.grad is not None for p in network.parameters())


def test_one_output_is_thresholded_and_several_give_the_largest():
    assert most_likely(torch.tensor([[[[-1.0, 0.0, 1e-6]]]])).tolist() == [[[0, 0, 1]]]
    assert most_likely(torch.tensor([[[[0.0, 5.0]], [[1.0, 4.0]], [[-1.0, 6.0]]]])).tolist() == [[[1, 2]]]
    # A class above 255 keeps its number.
    assert most_likely(nn.functional.one_hot(torch.tensor([299, 3]), 300).float()).tolist() == [299, 3]


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        # label 1 is right; label 2 with 2 * 1 / (1 + 2)
        ({"labels": {1: "organ"}}, 1),
        ({"labels": {2: "lesion", 1: "organ"}}, (1 + 2 / 3) / 2),
        # background: 2 * 3 / (3 + 4)
        ({"labels": {1: "organ", 2: "lesion"}, "metric": "dice_with_background"}, (1 + 2 / 3 + 6 / 7) / 3),
    ],
)
def test_a_case_is_scored_over_all_its_slices(make_study, make_part, changes, value):
    truth = np.uint8([[[1, 2, 0]], [[2, 0, 0]]])
    prediction = np.uint8([[[1, 2, 0]], [[0, 0, 0]]])
    score = score_predictions(prediction, make_part(truth, cases="vv"), make_study(**changes))
    assert score.by_case == pytest.approx({"v": value})


def test_surfaces_are_in_mm_where_all_sizes_are_known(make_study, make_part):
    truth, prediction = np.zeros((2, 2, 16, 16), np.uint8)
    truth[:, 4:10, 4:10], prediction[:, 4:10, 6:12] = 1, 1
    part = make_part(truth, cases="ab")
    study = make_study()
    outcome = score_predictions(prediction, part, study)
    sizes = {"a": (1.0, 0.5, 3.0), "b": (1.0, 1.5, 3.0)}

    def surface(spacings):
        return summarise_test(prediction, outcome, replace(part, spacings=spacings), study)["surface"]

    # 2 pixels are 1 mm and 3 mm
    assert (surface(sizes)["hd95"], surface(sizes)["unit"]) == (2, "mm")
    assert surface(sizes)["surface_dice"] < 1
    # the mean of mm and pixels would mean nothing
    for known in ({}, {"a": sizes["a"]}):
        assert (surface(known)["hd95"], surface(known)["surface_dice"], surface(known)["unit"]) == (2, 1, "pixels")


@pytest.mark.parametrize(
    ("metric", "value"),
    # recall 1 / 3 of class 0, 1 of class 2
    [("accuracy", 2 / 4), ("balanced_accuracy", (1 / 3 + 1) / 2)],
)
def test_a_classification_is_scored_by_the_studys_metric(make_study, make_part, metric, value):
    part = make_part(np.array([0, 0, 0, 2]), cases="abcd")
    study = make_study("classification", metric=metric)
    result = score_predictions(np.array([0, 1, 1, 2]), part, study)
    assert result.value == pytest.approx(value) and result.by_case["c"] == 0


def test_evaluating_a_classification_gives_classes_and_probabilities_in_one_pass(make_study, make_part):
    study = make_study("classification", model={"name": "lenet5"}, training={"loss": "cross_entropy", "batch_size": 2})
    part = make_part(np.array([0, 1, 2, 1, 0]), size=(28, 28))
    model = build_plain_model(study, 0)
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    predictions, result = evaluate(model, part, study, CPU)
    # 5 images in batches of 2
    assert len(passes) == 3
    assert np.array_equal(predictions, predict(model, part, 2, CPU))
    with torch.no_grad():
        wanted = model(torch.from_numpy(part.images)).softmax(dim=1)
    np.testing.assert_allclose(result.probabilities_by_case[2]["case2"], wanted[2], rtol=1e-4)
    assert result.by_case == score_predictions(predictions, part, study).by_case and "auroc" in result.also


@pytest.mark.parametrize("metric", ["dice", "dice_with_background"])
def test_a_label_not_annotated_is_neither_right_nor_wrong(make_study, make_part, metric):
    study = make_study(labels={1: "organ", 2: "lesion"}, metric=metric)
    part = replace(make_part(np.uint8([[[0, 1], [1, 0]]])), annotated=(1,))
    # What is called a lesion in the background is background; what is called one in the organ is missed there.
    in_background, in_organ = (score_predictions(np.uint8([[row, [1, 0]]]), part, study) for row in ([2, 1], [0, 2]))
    assert in_background.value == 1 and list(in_background.labels_by_case) == ([1] if metric == "dice" else [0, 1])
    # The organ's Dice is 2 * 1 / (1 + 2), the background's 2 * 2 / (3 + 2).
    assert in_organ.value == pytest.approx(2 / 3 if metric == "dice" else (2 / 3 + 4 / 5) / 2)
    # A surface of the lesion, which nobody drew, would be undefined.
    surface = summarise_test(np.uint8([[[2, 1], [1, 0]]]), in_background, part, study)["surface"]
    assert (surface["hd95"], surface["num_undefined"]) == (0, 0)


def test_a_region_counts_where_all_of_its_labels_are_annotated(make_study, make_part):
    study = make_study(labels={1: "rim", 2: "cup"}, regions={"disc": [1, 2], "cup": [2]})
    part = make_part(np.uint8([[[0, 1], [2, 0]]]))
    wanted = np.uint8([[[0, 1], [2, 0]]])
    assert list(score_predictions(wanted, part, study).labels_by_case) == ["disc", "cup"]
    assert list(score_predictions(wanted, replace(part, annotated=(2,)), study).labels_by_case) == ["cup"]
    # Nobody knows the disc without the cup: no case counts.
    assert score_predictions(wanted, replace(part, annotated=(1,)), study).num_cases == 0


@pytest.mark.parametrize("metric", ["dice", "dice_with_background"])
@pytest.mark.parametrize("has_own_size", [False, True])
def test_pixels_that_nobody_annotated_are_neither_right_nor_wrong(make_study, make_part, metric, has_own_size):
    study = make_study(labels={1: "organ", 2: "lesion"}, metric=metric)
    truth = np.uint8([[[1, 1, 0, IGNORED]]])
    predicted = np.uint8([[[1, 0, 0, 2]]])
    part = replace(make_part(truth), has_ignored=True)
    if has_own_size:
        part = replace(part, targets=Volumes((truth[0],)))
        predicted = Volumes((predicted[0],))
    outcome = score_predictions(predicted, part, study)
    # organ: 2 * 1 / (2 + 1); background: 2 * 1 / (1 + 2); the lesion is nowhere, but where nobody looked
    assert outcome.by_label == pytest.approx({1: 2 / 3} | ({0: 2 / 3, 2: 1} if metric != "dice" else {}))
    numbers = summarise_test(np.uint8([[[1, 1, 0, 2]]]), outcome, replace(part, targets=truth), study)
    assert (numbers["surface"]["hd95"], numbers["surface"]["num_undefined"]) == (0, 0)
