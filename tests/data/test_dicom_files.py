import tracemalloc
import zlib

import pydicom
import pytest
from pydicom.data import get_testdata_file

from silofl.data import dicom_files
from silofl.data.dicom_files import read_elements
from silofl.data.header import dicom_headers
from silofl.data.layouts.series import read_export
from silofl.errors import DataError


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """Write a file of about 1 MB whose pixels, zeros all, take 1 GiB."""
    folder = tmp_path_factory.mktemp("deflated")
    whole = pydicom.dcmread(get_testdata_file("CT_small.dcm"))
    whole.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    whole.PixelData = bytes(1000)
    whole.save_as(folder / "small.dcm")
    content = (folder / "small.dcm").read_bytes()
    # After the last element of group 2, as PS3.10 has it: its length stands at byte 140.
    begin = 144 + int.from_bytes(content[140:144], "little")
    elements = zlib.decompress(content[begin:], -zlib.MAX_WBITS)
    place = elements.rindex(bytes(1000)) - 4
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = squeeze.compress(elements[:place] + (1 << 30).to_bytes(4, "little")) + squeeze.flush(zlib.Z_FULL_FLUSH)
    zeros = squeeze.compress(bytes(1 << 24)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    # Behind what is flushed the same bytes may follow, and the end.
    (folder / "bomb.dcm").write_bytes(content[:begin] + packed + zeros * 64 + b"\3\0")
    return folder / "bomb.dcm"


def test_a_deflated_file_is_read_as_pydicom_reads_it_up_to_a_bound(bomb, monkeypatch):
    small = bomb.with_name("small.dcm")
    content = small.read_bytes()
    size = len(zlib.decompress(content[144 + int.from_bytes(content[140:144], "little") :], -zlib.MAX_WBITS))
    monkeypatch.setattr(dicom_files, "MOST_INFLATED", size)
    assert read_elements(small) == pydicom.dcmread(small)
    assert read_elements(small, stop_before_pixels=True).PatientID == "1CT1"
    monkeypatch.setattr(dicom_files, "MOST_INFLATED", size - 1)
    with pytest.raises(DataError, match="small.dcm must inflate"):
        read_elements(small)


def test_a_file_without_a_preamble_is_read(tmp_path):
    content = open(get_testdata_file("CT_small.dcm"), "rb").read()
    (tmp_path / "bare").write_bytes(content[132:])
    assert read_elements(tmp_path / "bare", force=True).PatientID == "1CT1"


@pytest.mark.parametrize(
    "read",
    [
        lambda path: next(dicom_headers(path)),
        lambda path: pytest.fail("read") if read_export(path.parent).series else read_elements(path),
    ],
    ids=["headers", "export"],
)
def test_what_inflates_without_end_is_refused_before_it_fills_the_memory(bomb, read, tmp_path):
    path = tmp_path / "site" / bomb.name
    path.parent.mkdir()
    path.write_bytes(bomb.read_bytes())
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="bomb.dcm must inflate to at most 256 MiB"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
