from dataclasses import replace

import numpy as np
import pytest

from silofl.base.errors import ConfigError
from silofl.core.operating_point import OperatingPoint
from silofl.inference.contents import Contents

NEEDS = "a super model must hold all that its rule needs"


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
        ({"rule": "selectr"}, NEEDS),
        ({"image_shape": (3, 32, 32)}, r"image_shape must be \(1, H, W\)"),
        ({"image_shape": (1, 32)}, r"image_shape must be \(1, H, W\)"),
        ({"image_shape": (1, 200_000, 200_000)}, "of at most 268435456 pixels or voxels"),
        *(({"outputs": outputs}, NEEDS) for outputs in (("north", "west"), ("north", "north"), ())),
        *(({"threshold": one}, f"threshold must be a number from 0 to 1, not {one}") for one in (1.5, float("nan"))),
        *((change, NEEDS) for change in ({"selector": None}, {"rule": "only"})),
        *(({"bias": bias}, f"bias must be a number from -10 to 10, not {bias!r}") for bias in (11, np.nan, "more")),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(make_contents, changes, reason):
    with pytest.raises(ConfigError, match=reason):
        replace(make_contents(), **changes)


@pytest.mark.parametrize(
    ("task", "changes", "reason"),
    [
        ("segmentation", {"calling": OperatingPoint(2.0)}, "a calling in a classification"),
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
        ("classification", {"bias": 0.5}, "must have a bias in a segmentation alone"),
    ],
)
def test_a_reading_that_the_task_or_no_validation_gives_is_refused(make_contents, make_study, task, changes, reason):
    contents = make_contents("only", study=make_study(task))
    with pytest.raises(ConfigError, match=reason):
        replace(contents, **changes)


def test_a_selector_without_the_global_model_and_models_without_a_sites_name_are_refused(make_contents, make_study):
    contents = make_contents()
    with pytest.raises(ConfigError, match=NEEDS):
        replace(contents, models={name: contents.models[name] for name in contents.sites})
    for name in ("../a", "selector", "a b", ""):
        with pytest.raises(ConfigError, match="a site of a super model must be named by letters"):
            Contents(make_study(), (1, 32, 32), {name: {}}, "only")
    with pytest.raises(ConfigError, match=NEEDS):
        Contents(make_study(), (1, 32, 32), {"global": {}}, "mean")
