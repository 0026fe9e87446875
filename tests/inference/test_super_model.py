from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from silofl.base.errors import ConfigError, DataError
from silofl.core.operating_point import OperatingPoint
from silofl.inference import SuperModel
from silofl.inference.choice import choose_answer
from silofl.inference.geometry import decide_labels
from silofl.models import build_model

CPU = torch.device("cpu")
RESIZE = {"transforms": [{"Resize": {"spatial_size": [32, 32]}}]}


def images(n, shape=(1, 32, 32), seed=0):
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


@pytest.fixture
def make(make_contents):
    """Build a super model; options as `make_contents`."""
    return lambda *args, **options: SuperModel(make_contents(*args, **options), CPU)


# --- the choice


def test_scores_are_the_mean_over_slices_of_the_selectors_softmax(make):
    model, case = make(scores=None), images(5)
    with torch.no_grad():
        one_by_one = [
            model.selector(torch.from_numpy(case[i : i + 1])).double().softmax(1).numpy()[0] for i in range(5)
        ]
    scores = model.scores(case, 2)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, np.mean(one_by_one, axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    ("scores", "threshold", "wanted"),
    [((0.3, 0.7), 0.6, "south"), ((0.9, 0.1), 0.6, "north"), ((0.45, 0.55), 0.6, "global"), ((0.5, 0.5), 0.0, "north")],
)
def test_a_site_answers_above_the_threshold(make, scores, threshold, wanted):
    model = make(scores=scores, threshold=threshold)
    prediction = model.predict(images(2))
    assert prediction.model == wanted == choose_answer(model.contents, model.scores(images(2), 8))
    assert prediction.is_fallback == (wanted == "global")
    assert prediction.scores == pytest.approx(dict(zip(("north", "south"), scores, strict=True)))
    named = model.predict(images(2), site=wanted)
    np.testing.assert_array_equal(prediction.label_map, named.label_map)
    assert (named.model, named.is_fallback, named.scores) == (wanted, False, prediction.scores)
    # A threshold of the call stands in for the model's own.
    assert model.predict(images(2), threshold=0.95).model == "global"


@pytest.mark.parametrize(("scores", "wanted"), [((0.5, 0.2, 0.3), "global"), ((0.2, 0.35, 0.45), "south")])
def test_without_a_threshold_the_best_output_answers(make, scores, wanted):
    prediction = make(scores=scores, threshold=None, outputs=("global", "north", "south")).predict(images(1))
    assert prediction.model == wanted and not prediction.is_fallback


@pytest.mark.parametrize("labels", [{1: "organ"}, {1: "organ", 2: "lesion"}], ids=["sigmoid", "softmax"])
def test_a_decision_bias_is_added_to_the_foregrounds_log_odds(make, make_study, labels):
    model, case = make("only", study=make_study(labels=labels), bias=0.7), images(3)
    plain = model.probabilities("global", case)
    shifted = model.answer(case).probabilities
    foreground, wanted = (
        1 - probabilities[:, 0] if len(labels) > 1 else probabilities[:, 0] for probabilities in (plain, shifted)
    )
    np.testing.assert_allclose(np.log(wanted / (1 - wanted)), np.log(foreground / (1 - foreground)) + 0.7, atol=1e-4)
    if len(labels) > 1:
        np.testing.assert_allclose(shifted.sum(axis=1), 1, atol=1e-6)
        # Each label keeps its share of the foreground.
        np.testing.assert_allclose(shifted[:, 1] / shifted[:, 2], plain[:, 1] / plain[:, 2], rtol=1e-4)
    prediction = model.predict(case)
    assert prediction.bias == 0.7
    np.testing.assert_array_equal(prediction.label_map, decide_labels(shifted))


def test_a_named_model_answers_without_the_bias_of_all(make):
    model, case = make("mean", bias=0.7), images(3)
    np.testing.assert_array_equal(model.answer(case, site="south").probabilities, model.probabilities("south", case))
    assert model.predict(case, site="south").bias == 0 and model.predict(case).bias == 0.7


@pytest.mark.parametrize(
    ("rule", "options", "reason"),
    [
        ("selector", {"site": "noth"}, "must be one of global, north, south, not 'noth'.*did you mean 'north'"),
        ("selector", {"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ("selector", {"threshold": 1.1}, "threshold must be a number from 0 to 1, not 1.1"),
        ("selector", {"threshold": 0.5, "site": "north"}, "no selector chooses here"),
        ("mean", {"threshold": 0.5}, "no selector chooses here"),
    ],
)
def test_options_that_are_wrong_or_do_nothing_are_refused(make, rule, options, reason):
    with pytest.raises(ConfigError, match=reason):
        make(rule).predict(images(1), **options)


# --- the mixtures


def test_without_a_selector_all_sites_answer_with_equal_weight(make):
    model = make("mean")
    answer = model.answer(images(3), 8)
    both = [model.probabilities(name, images(3), 8) for name in ("north", "south")]
    np.testing.assert_allclose(answer.probabilities, np.mean(both, axis=0), atol=1e-6)
    assert model.predict(images(3)).model == "mean of all sites"


def test_an_ensemble_weighs_every_model_by_its_score(make, make_study):
    model = make(scores=(0.25, 0.75), study=make_study(super_model={"answer": "ensemble"}))
    answer = model.answer(images(3), 8)
    north, south = (model.probabilities(name, images(3), 8) for name in ("north", "south"))
    np.testing.assert_allclose(answer.probabilities, 0.25 * north + 0.75 * south, atol=1e-6)
    assert model.predict(images(3)).model == "ensemble"
    with pytest.raises(ConfigError, match="no selector chooses here"):
        model.predict(images(3), threshold=0.5)


# --- what comes out


@pytest.mark.parametrize("normalization", ["batch", "batch_stateless"])
def test_the_answer_does_not_depend_on_the_batch_size(make, make_study, normalization):
    model, case = make(scores=None, study=make_study(model={"normalization": normalization})), images(7)
    wanted = model.answer(case, 7)
    for size in (1, 3, 8):
        answer = model.answer(case, size)
        assert answer.model == wanted.model and answer.scores == pytest.approx(wanted.scores)
        np.testing.assert_allclose(answer.probabilities, wanted.probabilities, atol=1e-5)


def test_a_network_that_looks_at_its_batch_refuses_one_image(make, make_study):
    model = make(scores=None, study=make_study(model={"normalization": "batch_stateless"}))
    assert model.predict(images(2)).label_map.shape[0] == 2
    with pytest.raises(DataError, match="batch_stateless .* cannot predict a single one"):
        model.predict(images(1))


def test_a_class_is_the_mean_over_the_cases_slices(make, make_study):
    model, case = make("only", study=make_study("classification")), images(3)
    prediction = model.predict(case)
    mean = model.probabilities("global", case).mean(axis=0)
    assert prediction.label == mean.argmax() and prediction.label_map is None
    assert prediction.class_scores == pytest.approx({"normal": mean[0], "tumour": mean[1]}, rel=1e-5)


def test_findings_lie_above_one_half_in_the_slices_mean(make, make_study):
    model = make("only", study=make_study("multilabel", labels={number: f"f{number}" for number in range(6)}))
    prediction = model.predict(images(3))
    with torch.inference_mode():
        logits = model.network("global")(torch.from_numpy(images(3))).double()
    mean = (1 / (1 + np.exp(-logits.numpy()))).mean(axis=0)
    assert prediction.label is None and prediction.label_map is None
    assert prediction.findings == tuple(f"f{number}" for number in np.flatnonzero(mean > 0.5))
    assert [*prediction.class_scores.values()] == pytest.approx(mean, rel=1e-5)


def test_only_counters_of_batches_may_be_missing(make_contents, make_study):
    contents = make_contents("only")
    state = {name: value for name, value in contents.models["global"].items() if "num_batches" not in name}
    assert len(state) < len(contents.models["global"])
    SuperModel(replace(contents, models={"global": state}), CPU)
    smaller = make_study(model={"arguments": {"channels": [8, 4], "strides": [2]}})
    models = {"global": build_model(smaller, (1, 32, 32), 0).state_dict()}
    with pytest.raises(ConfigError, match="weights of 'global' are not those of the study's network: .*size mismatch"):
        SuperModel(replace(contents, models=models), CPU)


# --- files


@pytest.fixture
def picture(tmp_path):
    Image.fromarray((images(1)[0, 0, :20] * 255).astype(np.uint8)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_a_volume_is_answered_slice_by_slice_between_its_neighbours(tmp_path, make, make_study, write_volume):
    volume = np.random.default_rng(3).random((32, 32, 4), dtype=np.float32)
    study = make_study(data={"intensity": "raw", "neighbours": 1})
    model = make("only", study=study, shape=(3, 32, 32))
    order = [(0, 0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 3)]
    stacked = np.stack([np.stack([volume[..., z] for z in row]) for row in order])
    with torch.no_grad():
        wanted = model.network("global")(torch.from_numpy(stacked)).argmax(1).numpy()
    label_map = model.predict(write_volume(array=volume)).label_map
    np.testing.assert_array_equal(label_map, np.moveaxis(wanted, 0, -1))
    np.testing.assert_array_equal(model.predict(stacked).label_map, wanted)
    assert len(np.unique(label_map)) > 1


@pytest.mark.parametrize(
    ("data", "channels", "reason"),
    [
        ({"neighbours": 1}, 3, r"^a.png must be a volume with data.neighbours 1, not a picture"),
        ({"volume_transforms": [{"Orientation": {"axcodes": "RAS"}}]}, 1, "^a.png must be a volume,.* not a picture"),
    ],
)
def test_pictures_are_refused_where_training_saw_volumes(make, make_study, picture, data, channels, reason):
    model = make("only", study=make_study(data=data), shape=(channels, 32, 32))
    with pytest.raises(DataError, match=reason):
        model.predict(picture)


def test_images_of_another_size_and_blank_ones_are_refused(make, write_volume):
    with pytest.raises(DataError, match=r"must have shape \(n, 1, 32, 32\) as in training, not \(3, 1, 30, 32\)"):
        make().predict(write_volume(shape=(30, 32, 3)))
    path = write_volume("blank.nii.gz", array=np.zeros((32, 32, 3), np.float32))
    with pytest.raises(DataError, match=r"blank.nii.gz shows one intensity alone"):
        make().predict(path)


def read(model, *values):
    """Return the model with a calling."""
    return SuperModel(replace(model.contents, operating_point=OperatingPoint(*values)), torch.device("cpu"))


@pytest.fixture
def class_model(make, make_study):
    return make("only", study=make_study("classification"))


def test_a_threshold_decides_the_second_of_two_classes(class_model):
    score = class_model.predict(images(3)).class_scores["tumour"]
    for threshold, label in ((score, 1), (np.nextafter(score, 1), 0)):
        prediction = read(class_model, 1.0, {1: threshold}).predict(images(3))
        assert (prediction.label, prediction.decision_thresholds) == (label, {"tumour": pytest.approx(threshold)})
    # what is shown beside a temperature has been through it too
    prediction = read(class_model, 3.0, {1: score}).predict(images(3))
    assert prediction.label == 1 and prediction.decision_thresholds["tumour"] == pytest.approx(
        prediction.class_scores["tumour"]
    )


def test_a_sites_own_model_answers_at_the_sites_threshold_and_the_global_one_at_the_median(make, make_study):
    model = make("selector", scores=(0.3, 0.7), threshold=0.6, study=make_study("classification"))
    points = {"north": OperatingPoint(1.0, {1: 0.0}), "south": OperatingPoint(3.0, {1: 1.0})}
    contents = replace(model.contents, operating_point=OperatingPoint(2.0, {1: 0.0}), own_operating_points=points)
    model = SuperModel(contents, CPU)
    own, common = (model.predict(images(3), threshold=threshold) for threshold in (0.6, 0.9))
    # No probability reaches 1, and each reaches 0.
    assert (own.model, own.label, own.temperature) == ("south", 0, 3.0)
    assert (common.model, common.label, common.temperature) == ("global", 1, 2.0)


def test_an_own_threshold_of_no_model_is_refused(make_contents, make_study):
    contents = make_contents("selector", study=make_study("classification"))
    with pytest.raises(ConfigError, match="an operating point that is not of a classification's"):
        replace(contents, own_operating_points={"west": OperatingPoint(2.0)})


@pytest.mark.parametrize(
    "test", [3, {"north": [0.5]}, {"north": {"labels": [0.5]}}, {"north": {"labels": {"1": "low"}}}], ids=str
)
def test_tests_of_another_kind_are_refused_at_loading(make_contents, test):
    with pytest.raises(ConfigError, match="facts are not as they were written"):
        SuperModel(replace(make_contents("only"), facts={"test": test}), CPU)
