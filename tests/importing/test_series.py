import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from silofl_hospital.importing.series import Series, read_export

from .exams import write_report, write_series

VOLUME = np.zeros((6, 5, 3), np.int16)


@pytest.mark.parametrize(
    ("pattern", "is_named"),
    [("MR/T1*", True), ("mr/*ax", True), ("T1*", True), ("T1", False), ("CT/*", False), ("*", True)],
)
def test_a_pattern_names_modality_and_description_without_regard_to_capitals(pattern, is_named):
    assert Series((), "", "", "", 1, "MR", "t1 Ax", None).fits(pattern) is is_named


def test_a_series_is_its_files_wherever_they_lie(tmp_path):
    study = generate_uid()
    write_series(tmp_path / "a", VOLUME, "p0", "Head  native ", study)
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "IM01002").rename(tmp_path / "b" / "IM01002")
    write_report(tmp_path, "p0", study)
    report, series = sorted(read_export(tmp_path).series, key=lambda one: one.is_image)
    # 6 columns, 5 rows, 3 slices
    assert (series.name, series.patient, series.size, len(series.files)) == ("CT/Head native", "p0", (6, 5, 3), 3)
    assert (report.name, report.size) == ("SR/Report", None)


def test_a_localizer_is_a_series_of_its_own(tmp_path):
    write_series(tmp_path, VOLUME, "p0", "Head", generate_uid())
    first = pydicom.dcmread(tmp_path / "IM01000")
    first.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER"]
    first.save_as(tmp_path / "IM01000")
    assert [one.size for one in read_export(tmp_path).images] == [(6, 5, 2)]


def test_a_cut_file_stays_in_its_series(tmp_path):
    write_series(tmp_path, VOLUME, "p0", "Head", generate_uid())
    path = tmp_path / "IM01002"
    # Behind the series' UID, before the size of the pixels.
    series = pydicom.dcmread(path).SeriesInstanceUID.encode()
    content = path.read_bytes()
    path.write_bytes(content[: content.index(series) + len(series) + 8])
    (found,) = read_export(tmp_path).images
    assert len(found.files) == 3


def test_images_with_one_uid_are_no_copies(tmp_path):
    write_series(tmp_path, VOLUME, "p0", "Head", generate_uid())
    for path in [*tmp_path.iterdir()]:
        header = pydicom.dcmread(path)
        header.SOPInstanceUID = "1.2.3"
        header.save_as(path)
    (tmp_path / "IM01001 (1)").write_bytes((tmp_path / "IM01001").read_bytes())
    found = read_export(tmp_path)
    assert [len(one.files) for one in found.images] == [3]
