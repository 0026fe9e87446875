import numpy as np
import pytest

from silofl.core.baseline_rule import BIASES
from silofl.data.targets import IGNORED
from silofl.inference.geometry import decide_labels
from silofl.training import grid_scores
from silofl.training.grid_scores import score_classes, score_findings, score_label_maps
from silofl.training.metrics import dice_by_case, leave_out_ignored

SINGLE = {1: (1,), 2: (2,)}
BOTH = {"all": (1, 2), "core": (2,)}


def draw(channels, shape=(3, 8, 9), seed=0):
    """Return a model's probabilities (n, channels, ...), in double precision, which no border of biases rounds."""
    logits = 2 * np.random.default_rng(seed).normal(size=(shape[0], max(channels, 2), *shape[1:]))
    result = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return result if channels > 1 else result[:, 1:]


def shift(mean, bias):
    """Add a bias to the foreground's log-odds, by the logits: log p of every label, more by the bias of foreground."""
    if mean.shape[1] == 1:
        return 1 / (1 + np.exp(-(np.log(mean / (1 - mean)) + bias)))
    logits = np.log(mean)
    logits[:, 1:] += bias
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("channels", "regions", "has_background", "annotated"),
    [
        (1, {1: (1,)}, False, None),
        (3, SINGLE, False, None),
        (3, BOTH, False, None),
        (3, SINGLE, True, None),
        (3, {1: (1,)}, False, (1,)),
    ],
    ids=["sigmoid", "softmax", "regions", "background", "annotated"],
)
@pytest.mark.parametrize("kind", ["labels", "empty", "ignored"])
def test_every_point_has_the_score_of_its_label_maps(channels, regions, has_background, annotated, kind, monkeypatch):
    monkeypatch.setattr(grid_scores, "PIECE", 10)
    probabilities = draw(channels)
    truth = np.random.default_rng(1).integers(0, 2 if channels == 1 else 3, size=(3, 8, 9)).astype(np.uint8)
    truth = truth * (kind != "empty")
    if annotated:
        truth[truth == 2] = 0
    if kind == "ignored":
        truth[:, 2:5] = IGNORED
    result = score_label_maps(probabilities, truth, regions, has_background, annotated)
    assert result.shape == (len(BIASES),)
    for column in (0, 21, 30, 47, 60):
        labels = leave_out_ignored(decide_labels(shift(probabilities, BIASES[column])), truth)
        wanted = dice_by_case(labels, truth, "aaa", regions, has_background, annotated).by_case.get("a", np.nan)
        assert result[column] == pytest.approx(wanted, abs=1e-12, nan_ok=True)


def test_an_empty_case_has_no_value_where_nothing_is_predicted():
    truth = np.zeros((1, 4, 4), np.uint8)
    # Log-odds of -2: a bias of more than 2 finds something.
    quiet = np.full((1, 1, 4, 4), 1 / (1 + np.exp(2.0)))
    result = score_label_maps(quiet, truth, {1: (1,)}, False, None)
    np.testing.assert_array_equal(result, np.where(BIASES > 2, 0, np.nan))


def test_a_sure_voxel_is_decided_by_no_bias():
    truth = np.uint8([[[1, 0]]])
    sure = np.float32([[[[1, 0]]]])
    assert (score_label_maps(sure, truth, {1: (1,)}, False, None) == 1).all()


def test_findings_count_by_the_probabilities_of_the_truth():
    # The first is there and the second not: (0.9 + 0.8) / 2.
    np.testing.assert_allclose(score_findings(np.array([[0.9, 0.2]]), np.array([1])), [0.85])


def test_a_class_counts_by_the_probability_of_the_true_one():
    np.testing.assert_allclose(score_classes(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1])), [0.85])
