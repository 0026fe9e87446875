import numpy as np
import pytest

from silofl_desk.studies.shared_batchnorm import SENTENCE, list_batchnorm_cautions
from silofl_desk.studies.simulation import changed_study

from .conftest import JOB


def images(*means):
    """Return cases of two images, (1, 4, 4), which lie far apart around the mean of the case."""
    return [[np.full((1, 4, 4), mean + apart, np.float32) for apart in (-0.4, 0.4)] for mean in means]


# The sites lie 0.4 apart. Of their cases, 0.02 from their site's mean, the deviation is sqrt(4 * 0.02^2 / 2) = 0.028.
UNLIKE = {"north": images(0.28, 0.32), "south": images(0.68, 0.72)}


@pytest.mark.parametrize(
    ("change", "found", "is_said"),
    [
        ({}, UNLIKE, True),
        ({}, UNLIKE | {"south": images(0.34, 0.38)}, False),
        ({}, {"north": UNLIKE["north"]}, False),
        # three hundredths are no difference, however alike the cases of a site are; nor is anything of one case each
        ({}, {"north": images(0.5, 0.5), "south": images(0.52, 0.52)}, False),
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
