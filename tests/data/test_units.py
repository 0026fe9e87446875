import numpy as np

from silofl.data.parts import Examples
from silofl.data.units import Units, find_units


def part(cases, patients):
    n = len(cases)
    found = Examples(np.zeros((n, 1, 2, 2), np.float32), np.zeros(n, int), (*cases,), (None,) * n, (*patients,))
    return found.patient_of


def recordings(cases, names):
    return dict(zip(cases, names, strict=True))


def count(units):
    return units.count, units.name, units.is_one_person


def test_slices_and_cases_of_a_patient_are_one_unit():
    units = find_units(part("aabbc", ["p", "p", "p", "p", "q"]))
    assert units == Units("patient", {"a": "p", "b": "p", "c": "q"}, is_one_person=False)


def test_recordings_count_where_patients_do_not():
    alone = find_units(part("abc", "ppp"), recordings("abc", ["1", "1", "2"]))
    assert count(alone) == (2, "recording", True)
    unknown = find_units(part("abc", [None] * 3), recordings("abc", ["1", "1", "2"]))
    assert count(unknown) == (2, "recording", False)


def test_patients_count_before_recordings_and_these_before_cases():
    assert count(find_units(part("ab", "pq"), recordings("ab", "11"))) == (2, "patient", False)
    assert count(find_units(part("ab", "pp"), recordings("ab", ["1", None]))) == (2, "case", True)


def test_cases_of_one_known_patient_are_units_within_one_person():
    units = find_units(part("aab", "ppp"))
    assert units == Units("case", {"a": "a", "b": "b"}, is_one_person=True)
    assert count(find_units(part("a", "p"))) == (1, "case", True)


def test_cases_whose_patient_nobody_knows_are_units():
    assert count(find_units(part("abb", [None] * 3))) == (2, "case", False)


def test_of_known_patients_beside_unknown_ones_each_counts_once():
    # a and b are of p; the case named p is of nobody known, and not taken for that patient
    assert count(find_units(part("abp", ["p", "p", None]))) == (2, "case", False)
