from dataclasses import replace

import numpy as np
import pytest

from silofl.base.errors import ConfigError
from silofl.core.operating_point import OperatingPoint
from silofl.inference.contents import Contents


def test_the_sites_are_the_models_but_the_global_one(make_contents):
    assert make_contents().sites == make_contents("mean").sites == ("north", "south")
    assert make_contents("only").sites == ()


def test_where_all_answer_together_their_shares_are_the_scores_or_alike(make_contents):
    # 0.2 and 0.6 of 0.8
    assert make_contents().shares(np.array([0.2, 0.6])) == pytest.approx({"north": 0.25, "south": 0.75})
    assert make_contents("mean").shares(np.zeros(0)) == {"north": 0.5, "south": 0.5}
    assert make_contents("only").shares(np.zeros(0)) == {"global": 1.0}


def test_a_selector_chooses_one_model_unless_all_answer_together(make_contents, make_study):
    ensemble = make_contents(study=make_study(super_model={"answer": "ensemble"}))
    assert make_contents().is_choice and not make_contents().is_ensemble
    assert ensemble.is_ensemble and not ensemble.is_choice
    assert not make_contents("mean").is_choice and not make_contents("only").is_choice


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rule": "selectr"}, "one of only, selector, mean, not 'selectr'.*did you mean 'selector'"),
        ({"image_shape": (3, 32, 32)}, r"image_shape must be \(1, H, W\)"),
        ({"image_shape": (1, 32)}, r"image_shape must be \(1, H, W\)"),
        ({"image_shape": (1, 200_000, 200_000)}, "image_shape must have at most 268435456 pixels or voxels"),
        ({"selector": None}, "must hold a selector; it has none"),
        ({"outputs": ("north", "west")}, r"outputs must name different models.*not \['north', 'west'\]"),
        ({"outputs": ("north", "north")}, "outputs must name different models"),
        ({"outputs": ()}, "outputs must name different models"),
        ({"threshold": 1.5}, r"threshold must lie in \[0, 1\], not 1.5"),
        ({"threshold": float("nan")}, r"threshold must lie in \[0, 1\], not nan"),
        ({"rule": "only"}, "must hold one model"),
        *(({"bias": bias}, f"bias must be a number from -10 to 10, not {bias!r}") for bias in (11, np.nan, "more")),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(make_contents, changes, reason):
    with pytest.raises(ConfigError, match=reason):
        replace(make_contents(), **changes)


@pytest.mark.parametrize(
    ("task", "changes", "reason"),
    [
        ("segmentation", {"calling": OperatingPoint(2.0)}, "calling must be left out in a segmentation"),
        ("classification", {"calling": OperatingPoint(0.0)}, "temperature must be a number from 0.1 to 10, not 0.0"),
        (
            "classification",
            {"calling": OperatingPoint(float("nan"))},
            "temperature must be a number from 0.1 to 10, not nan",
        ),
        (
            "classification",
            {"calling": OperatingPoint(1.0, {1: 1.5})},
            "threshold of tumour must be .* from 0 to 1, not 1.5",
        ),
        (
            "classification",
            {"calling": OperatingPoint(1.0, {0: 0.5})},
            "must have thresholds of.* the second of two classes",
        ),
        ("classification", {"bias": 0.5}, "bias must be 0 in a classification,.* not 0.5"),
    ],
)
def test_a_reading_that_the_task_or_no_validation_gives_is_refused(make_contents, make_study, task, changes, reason):
    contents = make_contents("only", study=make_study(task))
    with pytest.raises(ConfigError, match=reason):
        replace(contents, **changes)


def test_a_selector_without_the_global_model_and_models_without_a_sites_name_are_refused(make_contents, make_study):
    contents = make_contents()
    with pytest.raises(ConfigError, match="with rule 'selector' must hold the global model; it has none"):
        replace(contents, models={name: contents.models[name] for name in contents.sites})
    for name in ("../a", "selector", "a b", ""):
        with pytest.raises(ConfigError, match="a site of a super model must be named by letters"):
            Contents(make_study(), (1, 32, 32), {name: {}}, "only")
    with pytest.raises(ConfigError, match="rule 'mean' must hold sites' models"):
        Contents(make_study(), (1, 32, 32), {"global": {}}, "mean")
    with_neighbours = make_study(data={"neighbours": 1})
    Contents(with_neighbours, (3, 32, 32), {"a": {}}, "only")
    with pytest.raises(ConfigError, match=r"image_shape must be \(3, H, W\) of the training images, not \(1, 32, 32\)"):
        Contents(with_neighbours, (1, 32, 32), {"a": {}}, "only")
