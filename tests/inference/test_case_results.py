import numpy as np
import pytest
import torch

from silofl.data.parts import Examples
from silofl.inference import SuperModel
from silofl.inference.case_results import (
    CaseResult,
    choose_models,
    predict_cases,
    score_choice,
    value_or_none,
    values_by_model,
)
from silofl.inference.geometry import decide_labels
from silofl.training.evaluation import predict, score_predictions
from silofl.training.metrics import Score

CPU = torch.device("cpu")
SHAPE = (1, 32, 32)
SITES = ("north", "south")


@pytest.fixture
def make_model(make_contents, make_study):
    """Build an untrained super model by its rule."""

    def make(rule="selector"):
        study = make_study(labels={1: "blob"}, model={"normalization": "instance"})
        study = study.model_copy(update={"training": study.training.model_copy(update={"batch_size": 2})})
        return SuperModel(make_contents(rule, scores=None, threshold=0.5, study=study), CPU)

    return make


@pytest.fixture
def part():
    """Three slices of case a, then one of case b."""
    rng, cases = np.random.default_rng(0), ("a", "a", "a", "b")
    images = rng.random((4, *SHAPE), dtype=np.float32)
    return Examples(images, rng.integers(0, 2, (4, 32, 32), dtype=np.uint8), cases, (0, 1, 2, 0), cases)


def measured(case, **values):
    """Return the result of a case whose models have these values; None does not count."""
    return CaseResult(np.zeros(0), {name: Score.of({case: value}) for name, value in values.items()}, {})


def test_a_models_value_is_that_of_the_evaluation_in_training(make_model, part):
    model = make_model()
    study = model.contents.study
    results = predict_cases(model, part, study)
    assert list(results) == ["a", "b"]
    for name in ("global", *SITES):
        wanted = score_predictions(predict(model.network(name), part, 2, CPU), part, study)
        assert values_by_model(results)[name] == pytest.approx(wanted.value)


def test_the_selector_sees_each_slice_once(make_model, part):
    model, seen = make_model(), []
    model.selector.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    results = predict_cases(model, part, model.contents.study)
    # the study's batches of 2: two of case a, one of case b
    assert seen == [2, 1, 1]
    np.testing.assert_array_equal(results["a"].scores, model.scores(part.images[:3], 2))


@pytest.mark.parametrize("rule", ["selector", "mean"])
def test_the_ensemble_is_the_models_mean_by_their_shares(make_model, part, rule):
    model = make_model(rule)
    result = predict_cases(model, part, model.contents.study)["a"]
    north, south = (model.probabilities(name, part.images[:3], 2) for name in SITES)
    share = result.scores[0] if rule == "selector" else 0.5
    mean = np.float32(share) * north + np.float32(1 - share) * south
    np.testing.assert_array_equal(result.predictions["ensemble"], decide_labels(mean))
    if rule == "mean":
        # No slice is given to a site.
        assert result.scores.shape == (0,)


def test_a_threshold_gives_every_case_its_model(make_model):
    sure, unsure = (CaseResult(np.array(scores), {}, {}) for scores in ((0.125, 0.875), (0.375, 0.625)))
    results = {"a": sure, "b": unsure}
    assert choose_models(make_model(), results, 0.75) == {"a": "south", "b": "global"}
    # the super model's own is 0.5
    assert choose_models(make_model(), results, None) == {"a": "south", "b": "south"}


def test_a_choice_is_scored_by_the_models_that_it_names():
    values = {"a": {"x": 1.0, "y": 0.0}, "b": {"x": 0.5, "y": 0.25}, "c": {"x": None, "y": None}}
    results = {case: measured(case, **by_name) for case, by_name in values.items()}
    score = score_choice(results, {"a": "y", "b": "x", "c": "x"})
    # a by y is 0, b by x is 0.5, c does not count
    assert (score.value, score.num_cases, score.num_excluded) == (0.25, 2, 1)
    assert values_by_model(results) == {"x": 0.75, "y": 0.125}
    assert values_by_model({}) == {} and value_or_none(Score.of({})) is None
