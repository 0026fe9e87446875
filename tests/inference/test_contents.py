from dataclasses import replace

import numpy as np
import pytest

from silofl.base.errors import ConfigError
from silofl.core.operating_point import OperatingPoint
from silofl.inference.contents import Contents

NEEDS = "needs other contents than"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rule": "selectr"}, NEEDS),
        ({"image_shape": (3, 32, 32)}, r"image_shape must be \(1, H, W\)"),
        ({"image_shape": (1, 32)}, r"image_shape must be \(1, H, W\)"),
        ({"image_shape": (1, 200_000, 200_000)}, "of at most 268435456 pixels or voxels"),
        *(({"outputs": outputs}, NEEDS) for outputs in (("north", "west"), ("north", "north"), ())),
        *(
            ({"threshold": threshold}, f"threshold must be a number from 0 to 1, not {threshold}")
            for threshold in (1.5, float("nan"))
        ),
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
        (
            "segmentation",
            {"operating_point": OperatingPoint(2.0)},
            "an operating point that is not of a classification",
        ),
        (
            "classification",
            {"operating_point": OperatingPoint(0.0)},
            "temperature must be a number from 0.1 to 10, not 0.0",
        ),
        (
            "classification",
            {"operating_point": OperatingPoint(float("nan"))},
            "temperature must be a number from 0.1 to 10, not nan",
        ),
        (
            "classification",
            {"operating_point": OperatingPoint(1.0, {1: 1.5})},
            "threshold of tumour must be .* from 0 to 1, not 1.5",
        ),
        (
            "classification",
            {"operating_point": OperatingPoint(1.0, {0: 0.5})},
            "findings or second class",
        ),
        ("classification", {"bias": 0.5}, "has a bias though it is no segmentation"),
    ],
)
def test_a_reading_that_the_task_does_not_have_is_refused(make_contents, make_study, task, changes, reason):
    contents = make_contents("only", study=make_study(task))
    with pytest.raises(ConfigError, match=reason):
        replace(contents, **changes)


def test_missing_global_models_and_names_of_no_site_are_refused(make_contents, make_study):
    contents = make_contents()
    with pytest.raises(ConfigError, match=NEEDS):
        replace(contents, models={name: contents.models[name] for name in contents.sites})
    for name in ("../a", "selector", "a b", ""):
        with pytest.raises(ConfigError, match="a site of a super model must be named by letters"):
            Contents(make_study(), (1, 32, 32), {name: {}}, "only")
    with pytest.raises(ConfigError, match=NEEDS):
        Contents(make_study(), (1, 32, 32), {"global": {}}, "mean")
