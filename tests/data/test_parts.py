import numpy as np
import pytest

from silofl.data.parts import Examples
from silofl_desk.studies.runs.joined_examples import join_examples

CASES, PATIENTS = ("a", "a", "b", "c", "d"), ("p", "p", "p", "q", None)


@pytest.fixture
def part():
    """Two slices of case a and one of b, both of patient p, one of c of q, and one of d of nobody knows whom."""
    return Examples(np.zeros((5, 1, 2, 2), np.float32), np.zeros((5, 2, 2), np.uint8), CASES, (0, 1, 0, 0, 0), PATIENTS)


@pytest.mark.parametrize(("cases", "count"), [("", 0), ("a", 1), ("ab", 1), ("abc", 2), ("d", None), ("abcd", None)])
def test_patients_are_counted_once_and_only_if_all_are_known(part, cases, count):
    assert part.patients_of(cases) == count


def test_known_patients_are_counted_beside_unknown_ones(part):
    assert part.num_patients == 2
    patients = join_examples({"north": part, "south": part}).patients
    assert patients[3:5] == ("north/q", None) and patients[8:] == ("south/q", None)
