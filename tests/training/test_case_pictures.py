import csv

import numpy as np
import pytest
import torch

from silofl.data.parts import Examples
from silofl.models import build_model
from silofl.training.case_pictures import add_own, write_pictures, write_scores, write_test_files
from silofl.training.metrics import Score

from ..conftest import SMALL_UNET

ALL = slice(None)


@pytest.fixture
def model(make_study):
    algorithm = {"name": "harmofl", "preset": "paper"}
    model = build_model(make_study(model=SMALL_UNET, algorithm=algorithm), (1, 32, 32), 0)
    model.input_norm.fix(np.full((1, 32, 17), 2.0, np.float32))
    return model


def part_of(cases, slices=None, counts=None):
    """Return a part whose label maps have so many pixels."""
    targets = np.zeros((len(cases), 32, 32), np.uint8)
    for target, count in zip(targets, counts or [1] * len(cases), strict=True):
        target[: count // 32 + 1].flat[:count] = 1
    images = np.random.default_rng(0).random((len(cases), 1, 32, 32), dtype=np.float32)
    return Examples(images, targets, tuple(cases), tuple(slices or [None] * len(cases)), tuple(cases))


def test_scores_are_one_row_a_case(tmp_path):
    write_scores(tmp_path / "scores.csv", {"a": 0.5, "b, c": 1.0})
    assert list(csv.reader((tmp_path / "scores.csv").open())) == [["case", "value"], ["a", "0.5"], ["b, c", "1.0"]]


def test_pictures_are_of_worst_median_best_and_typical_case(tmp_path, model):
    part = part_of("abcde", counts=(5, 4, 1, 2, 3))
    values = {"a": 0.9, "b": 0.1, "c": 0.5, "d": 0.7, "e": 0.3}
    write_pictures(tmp_path / "pictures.npz", model, part, part.targets + 1, values, ALL)
    kept = np.load(tmp_path / "pictures.npz")
    # e has the median number of labelled pixels, 3
    assert kept["cases"].tolist() == ["b", "c", "a", "e"] and kept["values"].tolist() == [0.1, 0.5, 0.9, 0.3]
    assert kept["is_ranked"].tolist() == [True, True, True, False]
    rows = [1, 2, 0, 4]
    np.testing.assert_array_equal(kept["images"], part.images[rows])
    np.testing.assert_array_equal(kept["truths"], part.targets[rows])
    np.testing.assert_array_equal(kept["predictions"], part.targets[rows] + 1)
    with torch.no_grad():
        seen = model.eval().input_norm(torch.from_numpy(part.images[rows]))
    np.testing.assert_allclose(kept["normalized"], seen, rtol=1e-5, atol=1e-6)
    assert not np.allclose(kept["images"], kept["normalized"])


@pytest.mark.parametrize("values", [{"a": 0.9, "b": 0.1, "c": 0.5}, {"a": 0.2, "b": 0.9, "c": 0.1, "void": 0.0}])
def test_the_typical_case_is_the_same_for_every_model(tmp_path, model, values):
    # a case without any label counts with a model that has false alarms in it
    part = part_of(["a", "b", "c", "void"], counts=(2, 3, 1, 0))
    write_pictures(tmp_path / "pictures.npz", model, part, part.targets, values, ALL)
    assert np.load(tmp_path / "pictures.npz")["cases"].tolist()[-1] == "a"


def test_a_volume_is_shown_by_its_largest_slice(tmp_path, model):
    part = part_of("aaa", slices=(0, 1, 2), counts=(3, 40, 7))
    write_pictures(tmp_path / "pictures.npz", model, part, part.targets, {"a": 0.5}, ALL)
    kept = np.load(tmp_path / "pictures.npz")
    # One case is the worst, the median, the best and the typical one.
    assert kept["cases"].tolist() == ["a"] * 4
    np.testing.assert_array_equal(kept["truths"][0], part.targets[1].T)
    np.testing.assert_array_equal(kept["images"][2, 0], part.images[1, 0].T)


def test_no_counted_case_leaves_no_pictures(tmp_path, model):
    part = part_of("a")
    write_pictures(tmp_path / "pictures.npz", model, part, part.targets, {}, ALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("is_map", "files"), [(True, {"scores.csv", "pictures.npz"}), (False, {"scores.csv"})])
def test_a_classification_keeps_scores_alone(tmp_path, model, is_map, files):
    part = part_of("ab")
    if not is_map:
        part = Examples(part.images, np.array([0, 1]), part.cases, part.slices, part.patients)
    write_test_files(tmp_path, Score.of({"a": 0.5, "b": None}), part.targets, model, part, ALL)
    assert {path.name for path in tmp_path.iterdir()} == files


def test_the_own_models_predictions_are_added_to_pictures(tmp_path, model):
    part = part_of("aab", slices=(0, 1, 0), counts=(3, 40, 7))
    path = tmp_path / "pictures.npz"
    add_own(path, part, part.targets, {"a": 0.5})
    assert not path.exists()
    write_pictures(path, model, part, part.targets, {"a": 0.5, "b": 0.7}, ALL)
    add_own(path, part, 2 * part.targets, {"b": 0.9})
    result = np.load(path)
    # of a 3 + 40 pixels, of b 7: the second of two is the typical one
    assert result["cases"].tolist() == ["a", "b", "b", "a"]
    np.testing.assert_array_equal(result["own"], 2 * result["truths"])
    # Of a case that does not count with the own model there is no value.
    np.testing.assert_array_equal(result["local_values"], [np.nan, 0.9, 0.9, np.nan])


def test_pictures_have_the_value_of_each_label(tmp_path, model):
    part = part_of("ab")
    score = Score.of({"a": 0.5, "b": 0.7}, {1: {"a": 0.5, "b": 0.9}, "tumour": {"b": 0.5}})
    write_test_files(tmp_path, score, part.targets, model, part, ALL)
    kept = np.load(tmp_path / "pictures.npz")
    assert kept["scored"].tolist() == ["1", "tumour"] and kept["cases"][0] == "a"
    np.testing.assert_array_equal(kept["label_values"][:2], [[0.5, np.nan], [0.9, 0.5]])
