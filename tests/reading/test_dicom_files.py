import tracemalloc
import zlib

import pydicom
import pytest
from pydicom.data import get_testdata_file

from silofl.base.errors import DataError
from silofl.reading import dicom_files
from silofl.reading.dicom_files import read_elements
from silofl.reading.header import dicom_headers
from silofl_hospital.importing.series import read_export


def inflate(path):
    """Return the elements of a deflated file."""
    content = path.read_bytes()
    # After the last element of group 2, as PS3.10 has it: its length stands at byte 140.
    return zlib.decompress(content[144 + int.from_bytes(content[140:144], "little") :], -zlib.MAX_WBITS)


@pytest.fixture
def deflated(tmp_path):
    """Write a small deflated file, and one of about 1 MB of which an element, zeros all, takes 1 GiB."""

    def write(element):
        small, bomb = tmp_path / "small.dcm", tmp_path / "site" / "bomb.dcm"
        bomb.parent.mkdir()
        whole = pydicom.dcmread(get_testdata_file("CT_small.dcm"))
        whole.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
        whole.EncapsulatedDocument, whole.PixelData = bytes(1002), bytes(1000)
        whole.save_as(small)
        content, elements, size = small.read_bytes(), inflate(small), len(whole[element].value)
        begin = 144 + int.from_bytes(content[140:144], "little")
        place = elements.index(size.to_bytes(4, "little") + bytes(size))
        squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = squeeze.compress(elements[:place] + (1 << 30).to_bytes(4, "little")) + squeeze.flush(zlib.Z_FULL_FLUSH)
        zeros = squeeze.compress(bytes(1 << 24)) + squeeze.flush(zlib.Z_FULL_FLUSH)
        # Behind what is flushed the same bytes may follow, and the end.
        bomb.write_bytes(content[:begin] + packed + zeros * 64 + b"\3\0")
        return small, bomb

    return write


def test_a_deflated_file_is_read_as_pydicom_reads_it_up_to_a_bound(deflated, monkeypatch):
    small, _ = deflated("PixelData")
    whole = pydicom.dcmread(small, stop_before_pixels=True)
    assert read_elements(small) == whole and read_elements(small).file_meta == whole.file_meta
    names = ["PatientID", "OtherPatientIDsSequence"]
    assert read_elements(small, names) == pydicom.dcmread(small, stop_before_pixels=True, specific_tags=names)
    # Up to the length of the pixels.
    size = inflate(small).index((1000).to_bytes(4, "little") + bytes(1000)) + 4
    monkeypatch.setattr(dicom_files, "CHUNK", 7)
    monkeypatch.setattr(dicom_files, "MOST_INFLATED", size)
    assert read_elements(small) == whole
    monkeypatch.setattr(dicom_files, "MOST_INFLATED", size - 1)
    with pytest.raises(DataError, match="small.dcm must inflate"):
        read_elements(small)


def test_a_file_without_a_preamble_is_read(tmp_path):
    content = open(get_testdata_file("CT_small.dcm"), "rb").read()
    (tmp_path / "bare").write_bytes(content[132:])
    assert read_elements(tmp_path / "bare", force=True).PatientID == "1CT1"


@pytest.mark.parametrize(
    "read",
    [lambda path: next(dicom_headers(path)), lambda path: read_export(path.parent).series or pytest.fail("refused")],
    ids=["headers", "export"],
)
def test_pixels_that_inflate_without_end_are_not_inflated_for_what_stands_before_them(deflated, read):
    _, bomb = deflated("PixelData")
    tracemalloc.start()
    try:
        assert read(bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_header_that_inflates_without_end_is_refused_before_it_fills_the_memory(deflated):
    _, bomb = deflated("EncapsulatedDocument")
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="bomb.dcm must inflate to at most 64 MiB before its pixels"):
            next(dicom_headers(bomb))
        assert tracemalloc.get_traced_memory()[1] < 160 << 20
    finally:
        tracemalloc.stop()
    assert read_export(bomb.parent).damaged == (bomb,)
