import pytest

from silofl.reading.patient_names import key_patient, normalise_name, unify_patients


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("M\u00fcller", "M\u00fcller"),
        ("Mu\u0308ller", "M\u00fcller"),
        # A zero-width space between a letter and its accent.
        ("Mu\u200b\u0308ller", "M\u00fcller"),
        ("P1\u200b", "P1"),
        ("\ufeffP1", "P1"),
        ("P\u00ad1", "P1"),
        ("\uff301", "P1"),
        (" P\u00a0 1\t", "P 1"),
        ("P\u30001", "P 1"),
        ("\u200b", ""),
    ],
)
def test_names_that_look_alike_are_one(written, kept):
    assert normalise_name(written) == kept


def test_names_that_look_otherwise_stay_apart():
    names = ["P1", "p1", "P 1", "P-1", "P01", "Muller", "M\u00fcller"]
    assert [normalise_name(name) for name in names] == names


@pytest.mark.parametrize(
    "written", ["MRN1", "mrn1", "MRN1^", "Mrn1 ^^ ", "\uff2d\uff32\uff2e1", "MRN1\u200b", " MRN1 "]
)
def test_one_patient_in_several_spellings_has_one_key(written):
    assert key_patient(written) == "mrn1"


def test_patients_who_may_be_two_have_two_keys():
    names = ["P1", "P 1", "P-1", "P01", "1", "01", "P1^2", "^P1", "Muller", "M\u00fcller", "^", ""]
    assert len({*map(key_patient, names)}) == len(names)


def test_the_first_spelling_is_kept():
    assert unify_patients(["P2", "MRN1^", "mrn1", "p2"]) == {"P2": "P2", "MRN1^": "MRN1^", "mrn1": "MRN1^", "p2": "P2"}
