import tracemalloc

import pydicom
import pytest
from pydicom.data import get_testdata_file

from silofl.base.errors import DataError
from silofl.reading.dicom_files import read_elements
from silofl.reading.header import dicom_headers
from silofl.reading.images import read_image
from silofl_hospital.importing.series import read_export


def test_a_file_without_a_preamble_is_read(tmp_path):
    content = open(get_testdata_file("CT_small.dcm"), "rb").read()
    (tmp_path / "bare").write_bytes(content[132:])
    assert read_elements(tmp_path / "bare", force=True).PatientID == "1CT1"


def test_a_deflated_file_is_refused_before_it_fills_the_memory(tmp_path):
    whole, bomb = pydicom.dcmread(get_testdata_file("CT_small.dcm")), tmp_path / "site" / "bomb.dcm"
    bomb.parent.mkdir()
    whole.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    whole.EncapsulatedDocument = bytes(1 << 26)
    whole.save_as(bomb)
    assert bomb.stat().st_size < 1 << 18
    tracemalloc.start()
    try:
        for read in (lambda path: next(dicom_headers(path)), read_image, lambda path: read_image(path.parent)):
            with pytest.raises(DataError, match="bomb.dcm is deflated"):
                read(bomb)
        assert read_export(bomb.parent).damaged == (bomb,)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
