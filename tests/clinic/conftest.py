"""Exams as scanners write them, a clinic's settings, and an archive on this machine that remembers what it gets."""

import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from silofl.base.settings import parse
from silofl.data.data_profile import DataProfile
from silofl.inference.directory import write_model_folder
from silofl.inference.reference_statistics import ReferenceStatistics
from silofl.study import Study
from silofl_clinic.settings import Clinic

from ..inference.conftest import make_contents, make_study  # noqa: F401

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
def operating_point(port, ae_title="ARCHIVE", called="SILOFL", **options):
    """Connect as another system does, for CT images."""
    from pynetdicom import AE
    from pynetdicom.sop_class import CTImageStorage, Verification

    entity = AE(ae_title=ae_title)
    # However busy the machine is.
    entity.dimse_timeout = None
    for context in (CTImageStorage, Verification):
        entity.add_requested_context(context)
    association = entity.associate("127.0.0.1", port, ae_title=called, **options)
    try:
        yield association
    finally:
        if association.is_established:
            association.release()


def send(port, files, **options):
    """Send files as another system does; returns the answer to each."""
    with operating_point(port, **options) as to:
        assert to.is_established
        return [to.send_c_store(pydicom.dcmread(path)).get("Status") for path in files]


@pytest.fixture
def archive():
    """Run an archive that keeps what it gets, by SOP instance; returns it as in clinic.yaml, and what it has."""
    from pynetdicom import AE, ALL_TRANSFER_SYNTAXES, evt
    from pynetdicom.sop_class import Comprehensive3DSRStorage, SegmentationStorage

    kept = {}

    def keep(event):
        data = event.dataset
        data.file_meta = event.file_meta
        kept.setdefault(data.SOPInstanceUID, []).append(data)
        return 0

    entity = AE(ae_title="ARCHIVE")
    for context in (Comprehensive3DSRStorage, SegmentationStorage):
        entity.add_supported_context(context, ALL_TRANSFER_SYNTAXES)
    server = entity.start_server(("127.0.0.1", 0), block=False, evt_handlers=[(evt.EVT_C_STORE, keep)])
    yield {"ae_title": "ARCHIVE", "address": "127.0.0.1", "port": server.server_address[1]}, kept
    server.shutdown()


def remove_elements(files, *keys):
    """Take elements out of files."""
    for path in files:
        data = pydicom.dcmread(path)
        for key in keys:
            del data[key]
        data.save_as(path)


def until(condition, seconds=120):
    """Wait for what happens in another thread or process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def model(tmp_path, make_contents, make_study):  # noqa: F811
    """Write a super model of CTs of abdomens, whose rule forbids to use its answers to other images."""
    rule = {"do_not_use": {"on_unlike_image": True}, "codes": {"lesion": {"code": "52988006", "meaning": "Lesion"}}}
    study = make_study(data={"transforms": [{"Resize": {"spatial_size": [32, 32]}}]})
    study = parse(Study, study.model_dump(exclude_defaults=True) | rule, "study.yaml")
    usual = {name: ReferenceStatistics(codes={"body part": ("ABDOMEN",)}) for name in ("north", "south")}
    data_profile = DataProfile(kinds=("volumes",), colours=("grey",), modalities=("CT",), axes=("LPS",))
    write_model_folder(
        tmp_path / "model", replace(make_contents(study=study), reference_statistics=usual, data_profile=data_profile)
    )
    return tmp_path / "model"
