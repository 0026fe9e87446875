from dataclasses import replace

import numpy as np
import pytest

from silofl.base.errors import DataError
from silofl.data.parts import Examples
from silofl_desk.studies.joined_examples import join_examples

CASES, PATIENTS = ("a", "a", "b", "c", "d"), ("p", "p", "p", "q", None)


@pytest.fixture
def part():
    """Two slices of case a and one of b, both of patient p, one of c of q, and one of d of nobody knows whom."""
    return Examples(np.zeros((5, 1, 2, 2), np.float32), np.zeros((5, 2, 2), np.uint8), CASES, (0, 1, 0, 0, 0), PATIENTS)


@pytest.mark.parametrize(("cases", "count"), [("", 0), ("a", 1), ("ab", 1), ("abc", 2), ("d", None), ("abcd", None)])
def test_patients_are_counted_once_and_not_at_all_where_nobody_knows_one(part, cases, count):
    assert part.patients_of(cases) == count


def test_all_known_patients_are_counted_beside_unknown_ones_in_a_pool_too(part):
    assert part.num_patients == 2
    patients = join_examples({"north": part, "south": part}).patients
    assert patients[3:5] == ("north/q", None) and patients[8:] == ("south/q", None)


def test_sites_with_images_of_different_sizes_cannot_be_taken_as_one(part):
    wide = replace(part, images=np.zeros((5, 1, 2, 3), np.float32), targets=np.zeros((5, 2, 3), np.uint8))
    sentence = r"site 'south' must have images of the size of site 'north', \(2, 2\), not \(2, 3\)"
    with pytest.raises(DataError, match=rf"{sentence}; add Resize: {{spatial_size: \[2, 2\]}} to the study's data.tr"):
        join_examples({"north": part, "east": part, "south": wide})
    assert len(join_examples({"north": part, "east": part})) == 10
