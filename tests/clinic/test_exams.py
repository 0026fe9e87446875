import pydicom
import pytest

from silofl.base.errors import DataError
from silofl_clinic.exams import BROKEN, CUT, EMPTY, INCOMPLETE, SEVERAL, Inbox, describe_counts

from .conftest import remove_elements


@pytest.fixture
def judged(make_clinic):
    """Put files into an inbox as they are, and return why the exam is put apart."""

    def judge(files, change=lambda path, data: None):
        inbox = Inbox(make_clinic())
        for path in files:
            folder = inbox.add(path.read_bytes())
        for path in sorted(folder.rglob("*.dcm")):
            change(path, pydicom.dcmread(path))
        uid, cause = folder.name, inbox.put_away(folder)
        assert not cause or (inbox._root / INCOMPLETE / cause / uid).is_dir()
        return cause

    return judge


def test_a_whole_exam_is_whole(judged, write_exam):
    assert judged(write_exam("a")) == ""


def test_a_missing_slice_is_seen_between_others(judged, write_exam):
    files = write_exam("a")
    assert judged(files[:2] + files[3:]) == CUT

    def scatter(path, data):
        data.ImagePositionPatient = [0, 0, float(data.InstanceNumber) ** 2]
        data.save_as(path)

    assert judged(write_exam("b"), scatter) == ""


def test_a_file_that_ends_within_its_pixels_is_cut(judged, write_exam):
    files = write_exam("a")
    files[3].write_bytes(files[3].read_bytes()[:-100])
    assert judged(files) == CUT


def test_an_exam_without_an_image_is_empty(judged, write_exam):
    files = write_exam("a")
    remove_elements(files, "Rows", "Columns", "PixelData")
    assert judged(files) == EMPTY


def test_a_file_that_nobody_can_read_is_broken(judged, write_exam):
    assert judged(write_exam("a"), lambda path, data: path.write_bytes(b"no DICOM")) == BROKEN


def test_an_exam_with_a_broken_direction_is_put_apart(judged, write_exam):
    def bend(path, data):
        if data.InstanceNumber == 2:
            data.ImageOrientationPatient = [1, 0, 0, 0]
            data.save_as(path)

    assert judged(write_exam("a"), bend) == BROKEN


def test_an_exam_of_two_patients_is_none(judged, write_exam):
    def exchange(path, data):
        data.PatientID = "p2" if data.InstanceNumber == 3 else " P1"
        data.save_as(path)

    assert judged(write_exam("a"), exchange) == SEVERAL


def test_what_is_no_dicom_is_not_taken(make_clinic):
    with pytest.raises(DataError, match="a file is no DICOM"):
        Inbox(make_clinic()).add(b"something else")


def test_counts_are_read_once():
    assert describe_counts({"whole": 37, "cut": 1, "empty": 2}) == "37 whole, apart: 1 cut, 2 empty"
