"""Exams as scanners write them, a clinic's settings, and an archive on this machine that remembers what it gets."""

from contextlib import contextmanager

import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from silofl.base.settings import parse
from silofl_clinic.settings import Clinic

pytest.importorskip("pynetdicom")


@pytest.fixture
def make_clinic(tmp_path):
    """Build a clinic's settings by what differs; the archive ARCHIVE on this machine may send."""

    def make(**settings):
        plain = {"folder": str(tmp_path / "clinic"), "port": 0, "callers": {"ARCHIVE": "127.0.0.1"}, "wait_seconds": 0}
        return parse(Clinic, plain | settings, "clinic.yaml")

    return make


@pytest.fixture
def write_exam(tmp_path, write_dicom):
    """Write an exam of one CT series of some patient, and return its files in the order of their slices."""

    def write(name, patient="p1", volume=None, **elements):
        if volume is None:
            volume = np.random.default_rng(len(name)).integers(0, 900, (32, 32, 6)).astype(np.int16)
        folder = write_dicom(tmp_path / name, volume)
        frame, files = generate_uid(), sorted(folder.iterdir(), reverse=True)
        for path in files:
            data = pydicom.dcmread(path)
            data.PatientID, data.PatientName, data.FrameOfReferenceUID = patient, f"Doe^{patient}", frame
            data.PatientBirthDate = data.PatientSex = data.StudyDate = data.StudyTime = data.StudyID = ""
            data.AccessionNumber, data.SeriesNumber = name, 1
            data.ReferringPhysicianName = data.Manufacturer = data.PositionReferenceIndicator = ""
            for key, value in elements.items():
                setattr(data, key, value)
            data.save_as(path)
        return files

    return write


@contextmanager
def calling(port, ae_title="ARCHIVE", called="SILOFL", **options):
    """Connect as another system does, for CT images."""
    from pynetdicom import AE
    from pynetdicom.sop_class import CTImageStorage, Verification

    entity = AE(ae_title=ae_title)
    for context in (CTImageStorage, Verification):
        entity.add_requested_context(context)
    found = entity.associate("127.0.0.1", port, ae_title=called, **options)
    try:
        yield found
    finally:
        if found.is_established:
            found.release()


def send(port, files, **options):
    """Send files as another system does; returns the answer to each."""
    with calling(port, **options) as to:
        assert to.is_established
        return [to.send_c_store(pydicom.dcmread(path)).get("Status") for path in files]
