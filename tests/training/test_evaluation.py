import numpy as np
import pytest
import torch
from torch import nn

from silofl.data.site_data import Part
from silofl.training.evaluation import decide, predict, score

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


def reordered(part, order):
    names = tuple(part.cases[i] for i in order)
    return Part(part.images[order], part.targets[order], names, tuple(part.slices[i] for i in order), names)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 6, 100])
def test_a_prediction_does_not_depend_on_the_batch_size(network, part, batch_size):
    assert np.array_equal(predict(network, part, batch_size, CPU), predict(network, part, 7, CPU))


def test_a_prediction_does_not_depend_on_the_order_of_evaluation(network, part):
    order = [4, 0, 6, 2, 5, 1, 3]
    before = predict(network, part, 3, CPU)
    assert np.array_equal(predict(network, reordered(part, order), 3, CPU), before[order])
    assert np.array_equal(predict(network, part, 3, CPU), before)


def test_a_stateless_batchnorm_predicts_by_the_batch_it_stands_in(network, part):
    network[1] = nn.BatchNorm2d(4, affine=False, track_running_stats=False)
    assert not np.array_equal(predict(network, part, 1, CPU), predict(network, part, 7, CPU))


def test_predictions_are_the_labels_of_the_networks_own_output(network, part):
    predictions = predict(network, part, 3, CPU)
    with torch.no_grad():
        logits = network.eval()(torch.from_numpy(part.images)).numpy()
    assert np.array_equal(predictions, logits.argmax(1))
    assert predictions.dtype == np.uint8 and len(np.unique(predictions)) > 1


def test_evaluation_changes_nothing_of_the_model(network, part):
    before = {name: value.clone() for name, value in network.state_dict().items()}
    predict(network, part, 2, CPU)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(p.grad is not None for p in network.parameters())


def test_one_output_is_foreground_above_zero():
    logits = torch.tensor([[[[-1.0, 0.0, 1e-6]]]])
    assert decide(logits).tolist() == [[[0, 0, 1]]]


def test_several_outputs_give_the_largest():
    logits = torch.tensor([[[[0.0, 5.0]], [[1.0, 4.0]], [[-1.0, 6.0]]]])
    assert decide(logits).tolist() == [[[1, 2]]]


def test_a_class_above_255_keeps_its_number():
    assert decide(nn.functional.one_hot(torch.tensor([299, 3]), 300).float()).tolist() == [299, 3]


def test_segmentation_is_scored_by_the_foreground(make_study, make_part):
    truth, prediction = np.array([[[1, 0, 0, 0]]], np.uint8), np.array([[[1, 1, 0, 0]]], np.uint8)
    study = make_study()
    # 2 * 1 / (1 + 2)
    assert score(prediction, make_part(truth), study).value == pytest.approx(2 / 3)


def test_the_references_dice_is_used_where_the_study_names_it(make_study, make_part):
    truth, prediction = np.array([[[1, 0, 0, 0]]], np.uint8), np.array([[[1, 1, 0, 0]]], np.uint8)
    study = make_study(metric="dice_with_background")
    # background: 2 * 2 / (2 + 3)
    assert score(prediction, make_part(truth), study).value == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_all_labels_of_the_study_count(make_study, make_part):
    truth, prediction = np.array([[[1, 2, 2, 0]]], np.uint8), np.array([[[1, 2, 0, 0]]], np.uint8)
    study = make_study(labels={2: "lesion", 1: "organ"})
    # label 1: 1; label 2: 2 * 1 / (1 + 2)
    assert score(prediction, make_part(truth), study).value == pytest.approx((1 + 2 / 3) / 2)


def test_classification_is_scored_by_accuracy(make_study, make_part):
    part = make_part(np.array([0, 1, 2, 2]), cases="abcd")
    result = score(np.array([0, 1, 1, 2]), part, make_study("classification"))
    assert result.value == 3 / 4 and result.by_case["c"] == 0


def test_a_case_is_scored_over_all_its_slices(make_study, make_part):
    part = make_part(np.ones((3, 1, 2), np.uint8), cases=("v", "v", "w"))
    prediction = np.array([[[1, 1]], [[0, 0]], [[1, 1]]], np.uint8)
    # v: 2 * 2 / (2 + 4)
    assert score(prediction, part, make_study()).by_case == pytest.approx({"v": 2 / 3, "w": 1})
