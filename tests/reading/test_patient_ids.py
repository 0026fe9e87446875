import numpy as np
import pytest

from silofl.reading.patient_ids import count_shared_ids, read_own_id
from tests.data.conftest import edit


@pytest.fixture
def series(tmp_path, write_dicom):
    """Write a series with a PatientID."""
    return lambda name, patient: edit(write_dicom(tmp_path / name, np.zeros((4, 4, 2), np.int16)), PatientID=patient)


@pytest.mark.parametrize(
    ("kept", "written"),
    [
        ("P 7", [" P 7 "]),
        ("7777", ["7777"]),
        (None, ["", "ANONYMOUS", "Anonymous^Patient", "ANON", "N/A", "0", "0000", "XXXX", "---"]),
    ],
)
def test_a_number_that_is_written_for_everybody_is_none(series, kept, written):
    for number, patient in enumerate(written):
        assert read_own_id([series(f"s{number}", patient)]) == kept


def test_a_case_has_the_patient_of_all_its_contrasts(series, tmp_path):
    first, same, other = series("a", "p0"), series("b", "p0"), series("c", "p1")
    assert read_own_id([first, same]) == "p0"
    assert read_own_id([first, other]) is None and read_own_id([first, tmp_path / "d.nii"]) is None


def test_a_file_that_is_broken_names_nobody(tmp_path):
    (tmp_path / "a.dcm").write_bytes(b"x")
    assert read_own_id([tmp_path / "a.dcm"]) is None and read_own_id([tmp_path / "nothing.dcm"]) is None


def test_numbers_with_several_names_are_counted():
    # 7 is a and b, 8 is c twice, and nobody knows whose the last image is.
    pairs = [("a", "7"), ("b", "7"), ("c", "8"), ("c", "8"), ("d", None)]
    assert count_shared_ids(pairs) == (1, 2) and count_shared_ids([]) == (0, 0)
