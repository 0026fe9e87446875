import numpy as np
import pytest

from silofl_desk.studies.shared_batchnorm import SENTENCE, list_batchnorm_cautions
from silofl_desk.studies.simulation import changed_study

from .conftest import JOB


def images(*means):
    """Return two images of each patient, (1, 4, 4), which lie far apart around the patient's mean."""
    rows = ((str(i), mean + apart) for i, mean in enumerate(means) for apart in (-0.4, 0.4))
    return [("", patient, np.full((1, 4, 4), value, np.float32)) for patient, value in rows]


# Six patients of each: 0.4 apart by a deviation of sqrt(6 * 0.02^2 / 5) = 0.022, or 0.04.
NORTH, SOUTH = images(*[0.28, 0.32] * 3), images(*[0.68, 0.72] * 3)
UNLIKE = {"north": NORTH, "south": SOUTH}


@pytest.mark.parametrize(
    ("change", "found", "is_said"),
    [
        ({}, UNLIKE, True),
        ({}, UNLIKE | {"south": images(*[0.29, 0.33] * 3)}, False),
        ({}, {"north": NORTH}, False),
        # less than a hundredth is no difference, however alike the patients of a site are; nor is anything of one each
        ({}, {"north": images(*[0.5] * 6), "south": images(*[0.508] * 6)}, False),
        ({}, {"north": images(0.2), "south": images(0.7)}, False),
        ({"model.normalization": "group"}, UNLIKE, False),
        ({"algorithm": {"name": "fedbn"}}, UNLIKE, False),
        ({"algorithm": {"name": "local"}}, UNLIKE, False),
        ({"algorithm": {"name": "fedper"}}, UNLIKE, True),
    ],
)
def test_unlike_hospitals_that_share_batchnorm_are_told(change, found, is_said):
    study = changed_study(JOB, {"model.normalization": "batch"} | change)
    assert list_batchnorm_cautions(study, lambda: found) == [SENTENCE] * is_said
