from silofl.data.units import Units, find_units


def by_case(cases, values):
    """Return case -> its patient or recording, of which each case has one."""
    return dict(zip(cases, values, strict=True))


def count(units):
    return units.count, units.name, units.is_one_person


def test_slices_and_cases_of_a_patient_are_one_unit():
    units = find_units(by_case("aabbc", ["p", "p", "p", "p", "q"]))
    assert units == Units("patient", {"a": "p", "b": "p", "c": "q"}, is_one_person=False)


def test_recordings_count_where_patients_do_not():
    recordings = by_case("abc", "112")
    assert count(find_units(by_case("abc", "ppp"), recordings)) == (2, "recording", True)
    assert count(find_units(by_case("abc", [None] * 3), recordings)) == (2, "recording", False)


def test_patients_count_before_recordings_and_these_before_cases():
    assert count(find_units(by_case("ab", "pq"), by_case("ab", "11"))) == (2, "patient", False)
    assert count(find_units(by_case("ab", "pp"), by_case("ab", ["1", None]))) == (2, "case", True)


def test_cases_of_one_known_patient_are_units_within_one_person():
    units = find_units(by_case("aab", "ppp"))
    assert units == Units("case", {"a": "a", "b": "b"}, is_one_person=True)
    assert count(find_units(by_case("a", "p"))) == (1, "case", True)


def test_of_known_patients_beside_unknown_ones_each_counts_once():
    assert count(find_units(by_case("abb", [None] * 3))) == (2, "case", False)
    # a and b are of p; the case named p is of nobody known, and not taken for that patient
    assert count(find_units(by_case("abp", ["p", "p", None]))) == (2, "case", False)
