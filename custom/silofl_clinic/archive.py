"""The archive of a clinic: exams are asked for by C-MOVE, answers are sent by C-STORE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from silofl.base.errors import DataError
from silofl_clinic.exams import check_uid
from silofl_clinic.receiver import make_entity, make_tls
from silofl_clinic.settings import Clinic

if TYPE_CHECKING:
    from pydicom import Dataset
    from pynetdicom.association import Association

PENDING = (0xFF00, 0xFF01)
KEYS = ("StudyInstanceUID", "PatientID", "NumberOfStudyRelatedInstances")


@dataclass(frozen=True)
class ArchivedExam:
    """An exam in the archive.

    Attributes:
        uid: Its UID.
        patient: Its PatientID.
        num_instances: How many files the archive has of it; 0 where it does not say.
    """

    uid: str
    patient: str
    num_instances: int


@contextmanager
def connect(clinic: Clinic, contexts: Sequence[str]) -> Iterator[Association]:
    """Yield a connection to the archive for some kinds of messages.

    Raises:
        DataError: The archive does not answer, or refuses this system.
    """
    archive, entity = clinic.archive, make_entity(clinic)
    for context in contexts:
        entity.add_requested_context(context)
    context = make_tls(clinic, is_server=False)
    tls = context and (context, archive.address)
    found = entity.associate(archive.address, archive.port, ae_title=archive.ae_title, tls_args=tls)
    if not found.is_established:
        said = "it refused this system" if found.is_rejected else "it did not answer"
        raise DataError(
            f"archive {archive.ae_title} must take a connection at {archive.address}:{archive.port}; {said}: have it "
            f"know the AE title {clinic.ae_title}, or correct clinic.yaml"
        )
    try:
        yield found
    finally:
        found.release()


def send_files(clinic: Clinic, files: Sequence[Path]) -> None:
    """Send files to the archive; the errors of `connect`, and DataError where it does not take one."""
    import pydicom

    with connect(clinic, [pydicom.dcmread(path, specific_tags=["SOPClassUID"]).SOPClassUID for path in files]) as to:
        for path in files:
            status = to.send_c_store(path).get("Status")
            # Warnings are of a file that is kept.
            if status is None or (status and status >> 12 != 0xB):
                said = "nothing" if status is None else f"0x{status:04X}"
                raise DataError(f"the archive must take {path.name}; it said {said}: see its log, and start again")


def find_study(clinic: Clinic, accession: str) -> list[ArchivedExam]:
    """Return the archive's exams of an accession number; the errors of `connect` and `check_uid`."""
    from pydicom import Dataset
    from pynetdicom.sop_class import StudyRootQueryRetrieveInformationModelFind as Find

    asked = Dataset()
    asked.QueryRetrieveLevel, asked.AccessionNumber = "STUDY", accession
    for key in KEYS:
        setattr(asked, key, None)
    with connect(clinic, [Find]) as to:
        found = [one for status, one in to.send_c_find(asked, Find) if _is_pending(status)]
    rows = [[str(one.get(key) or "") for key in KEYS] for one in found]
    for uid, *_ in rows:
        check_uid(uid)
    return [ArchivedExam(uid, patient, int(count or 0)) for uid, patient, count in rows]


def retrieve_study(clinic: Clinic, study: ArchivedExam) -> bool:
    """Have all files of an exam sent to this system, which must listen, and return whether the archive says so.

    Raises:
        DataError: As `connect`.
    """
    from pydicom import Dataset
    from pynetdicom.sop_class import StudyRootQueryRetrieveInformationModelMove as Move

    asked = Dataset()
    asked.QueryRetrieveLevel, asked.StudyInstanceUID = "STUDY", study.uid
    with connect(clinic, [Move]) as to:
        *_, (last, _) = to.send_c_move(asked, clinic.ae_title, Move)
    return last.get("Status") == 0


def _is_pending(status: Dataset) -> bool:
    if "Status" not in status:
        raise DataError("the archive must answer which exams it has; the connection broke: start again")
    return status.Status in PENDING
