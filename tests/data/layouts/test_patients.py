from dataclasses import replace

import pytest

from silofl.data.layouts.cases import SiteCases
from silofl.data.layouts.patients import read_patients, warn_unknown_patients
from silofl.data.layouts.plan import UNKNOWN, SitePlan
from silofl.errors import DataError


@pytest.fixture
def patients(tmp_path):
    """Read a table of the patients of three cases with two contrasts each, of which the last lacks one."""
    images = {case: (tmp_path / f"{case}/t1.nii", tmp_path / f"{case}/t2.nii") for case in "abc"}
    found = SiteCases("north", tmp_path, images | {"c": (None, images["c"][1])}, {}, ("T1", "T2"))

    def read(*rows):
        (tmp_path / "patients.csv").write_text("\n".join(rows))
        return read_patients(found)

    return read


@pytest.mark.parametrize(
    "rows",
    [
        ["a,p1", "b,p2", "c,p1"],
        ["a/t1.nii,p1", "b/t2.nii,p2", "c/t2.nii,p1"],
        ["a,p1", "a/t1.nii,p1", "a/t2.nii,p1", "b,p2", "c,", "c,p1", "d,p9"],
    ],
)
def test_a_row_names_a_case_or_one_of_its_images(patients, rows):
    assert patients("file,patient", *rows) == {"a": "p1", "b": "p2", "c": "p1"}


@pytest.mark.parametrize("header", ['"patient","age","file"', " patient ; age ; file ", "patient\tage\tfile"])
def test_columns_are_found_by_their_names(patients, header):
    separator = next(sign for sign in "\t;," if sign in header)
    rows = [separator.join([patient, "60", case]) for patient, case in zip("xyz", "abc", strict=True)]
    assert patients(header, *rows) == {"a": "x", "b": "y", "c": "z"}


def test_a_case_of_two_patients_is_refused(patients):
    for rows in (["a,p1", "a,p2"], ["a/t1.nii,p2", "a/t2.nii,p1"]):
        with pytest.raises(DataError, match="patients.csv of site 'north' must name one patient of a, not p1, p2"):
            patients("file,patient", *rows, "b,p2", "c,p3")


@pytest.mark.parametrize("rows", [["a,p1", "t1.nii,p2"], ["a,p1", "b,", "c"]])
def test_a_case_without_a_row_is_refused(patients, rows):
    with pytest.raises(DataError, match="patients.csv of site 'north' must name the patient of b, c; add rows"):
        patients("file,patient", *rows)


def test_a_table_that_is_broken_is_refused(patients):
    sentence = r"patients.csv of site 'north' must be a table of columns, not broken .field larger"
    with pytest.raises(DataError, match=sentence):
        patients("file,patient", f"a,{'x' * (1 << 18)}")


def test_what_follows_from_unknown_patients_is_said_in_the_place_of_the_quiet_sentence():
    records = {"training": [{}, {}], "validation": [], "test": [{}]}
    known = SitePlan("segmentation", {1: "x"}, records, {}, notes=("another",))
    unknown = replace(known, split_unit="unknown", notes=(UNKNOWN, "another"))
    plans = warn_unknown_patients({"north": known, "south": unknown, "west": unknown})
    assert plans["north"] == known
    loud, other = plans["south"].notes
    assert loud.startswith("PATIENTS UNKNOWN: no patients.csv says whose the 6 images are (south 3, west 3)")
    assert other == "another" and plans["west"].notes[0] == loud
