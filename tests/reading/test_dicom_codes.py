import numpy as np
import pytest

from silofl.reading.dicom_codes import group_codes, read_codes
from tests.data.conftest import edit


@pytest.fixture
def series(write_dicom, tmp_path):
    """Write a DICOM series with further elements in all its files."""
    folder = write_dicom(tmp_path / "slices", np.arange(300, dtype=np.int16).reshape(10, 6, 5))
    return lambda **elements: edit(folder, **elements) or folder


def test_a_series_states_standard_codes(series):
    folder = series(
        BodyPartExamined="brain", Laterality="L", ImageType=["DERIVED", "SECONDARY"], LossyImageCompression="01"
    )
    assert read_codes(folder) == {
        "body part": "BRAIN",
        "side of the body": "L",
        "kind of image": "DERIVED",
        "compression": "LOSSY",
    }


def test_words_of_a_hospitals_own_are_no_codes(series, tmp_path):
    assert read_codes(series(BodyPartExamined="ABD SMITH JOHN", Laterality="X")) == {"compression": "LOSSLESS"}
    (tmp_path / "a.png").touch()
    assert read_codes(tmp_path / "a.png") == {}


def test_a_code_needs_enough_patients_whoever_has_more_cases():
    liver, brain = {"body part": "LIVER"}, {"body part": "BRAIN"}
    stated = [("p1", liver), ("p2", liver), ("p2", liver), ("p1", brain), ("p1", brain), (None, brain), (None, brain)]
    assert group_codes(stated, least=2) == {"body part": ("LIVER",)}
    assert group_codes(stated, least=1) == {"body part": ("BRAIN", "LIVER")}
    assert group_codes(stated, least=3) == {}
