import pytest

from silofl.data.patient_names import normalise_name


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
