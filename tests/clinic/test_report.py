import numpy as np
import pydicom
import pytest

from silofl.reading.header import dicom_headers
from silofl.reading.images import read_image
from silofl_clinic.report import write_report
from silofl_hospital.inference.dicom_seg import write_dicom_seg

OPTIONS = {"threshold": 0.5}


@pytest.fixture
def report(write_exam, make_study, tmp_path):
    """Report labels on a series; returns the report and the segmentation that it refers to."""

    def make(labels, said=(), **options):
        series, study = write_exam("a")[0].parent, make_study()
        headers = [*dicom_headers(series)]
        sizes = {name: float((labels == number).sum()) for number, name in study.labels.items()}
        record = {"super_model": "abc", "volumes_ml": sizes, "do_not_use": None, "warnings": [*said]}
        seg, target = tmp_path / "seg.dcm", tmp_path / "report.dcm"
        write_dicom_seg(seg, headers, labels, read_image(series).affine, study, "abc", "", options=OPTIONS)
        write_report(target, headers, seg, record, study, OPTIONS | options)
        again = tmp_path / "again.dcm"
        write_report(again, headers, seg, record, study, OPTIONS | options)
        assert pydicom.dcmread(again).SOPInstanceUID == pydicom.dcmread(target).SOPInstanceUID
        return pydicom.dcmread(target), pydicom.dcmread(seg)

    return make


def find_groups(report):
    from highdicom.sr import Comprehensive3DSR

    content = Comprehensive3DSR.from_dataset(report).content

    def read(groups):
        return {group.tracking_identifier: group.get_measurements()[0].value for group in groups}

    return read(content.get_volumetric_roi_measurement_groups()), read(content.get_image_measurement_groups())


def test_a_label_is_measured_at_its_segment_if_any(report):
    labels = np.zeros((32, 32, 6), np.uint8)
    labels[:4, :4, 1] = 1
    document, segments = report(labels)
    assert find_groups(document) == ({"organ": 16}, {"lesion": 0})
    items = [item for item in find_items(document) if "ReferencedSegmentNumber" in item]
    assert {item.ReferencedSOPInstanceUID for item in items} == {segments.SOPInstanceUID}


def test_nothing_found_is_a_report_too(report):
    document, _ = report(np.zeros((32, 32, 6), np.uint8), ["its voxels are unusual"])
    assert find_groups(document) == ({}, {"organ": 0, "lesion": 0})
    assert document.ContentSequence[-1].TextValue == "Research only, no medical device; its voxels are unusual"


def find_items(data):
    """Yield all items of all sequences of a data set."""
    for element in data:
        for item in element.value if element.VR == "SQ" else ():
            yield item
            yield from find_items(item)
