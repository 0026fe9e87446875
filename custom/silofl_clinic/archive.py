"""The archive of a clinic: exams are asked for by C-MOVE, answers are sent by C-STORE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from silofl.base.errors import ConfigError, DataError
from silofl_clinic.exams import check_uid
from silofl_clinic.receiver import make_entity, make_tls
from silofl_clinic.settings import Clinic

if TYPE_CHECKING:
    from pynetdicom.association import Association

# DICOM's answers that bring an exam; every other one ends the list.
PENDING = (0xFF00, 0xFF01)
# DICOM's names of the questions which exams there are (C-FIND), and to send one (C-MOVE).
FIND, MOVE = "1.2.840.10008.5.1.4.1.2.2.1", "1.2.840.10008.5.1.4.1.2.2.2"
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
        ConfigError: The settings name no archive.
        DataError: The archive does not answer, or refuses this system.
    """
    archive = clinic.archive
    if archive is None:
        raise ConfigError("clinic.yaml names no archive; add it, with ae_title, address and port")
    entity = make_entity(clinic)
    for context in contexts:
        entity.add_requested_context(context)
    tls = make_tls(clinic, is_server=False)
    association = entity.associate(
        archive.address,
        archive.port,
        ae_title=archive.ae_title,
        tls_args=(tls, archive.address) if tls else None,
    )
    if not association.is_established:
        said = "it refused this system" if association.is_rejected else "it did not answer"
        raise DataError(
            f"archive {archive.ae_title} takes no connection at {archive.address}:{archive.port} ({said}); have it "
            f"know the AE title {clinic.ae_title}, or correct clinic.yaml"
        )
    try:
        yield association
    finally:
        association.release()


def send_files(clinic: Clinic, files: Sequence[Path]) -> None:
    """Send files to the archive; the errors of `connect`, and DataError where it does not take one."""
    import pydicom

    kinds = [pydicom.dcmread(path, specific_tags=["SOPClassUID"]).SOPClassUID for path in files]
    with connect(clinic, kinds) as association:
        for path in files:
            status = association.send_c_store(path).get("Status")
            # 0xB000 to 0xBFFF are warnings about a file that the archive keeps.
            if status is None or (status and status >> 12 != 0xB):
                said = "nothing" if status is None else f"0x{status:04X}"
                raise DataError(f"the archive did not take {path.name} and said {said}; see its log, and start again")


def find_study(clinic: Clinic, accession: str) -> list[ArchivedExam]:
    """Return the archive's exams of an accession number; the errors of `connect` and `check_uid`."""
    from pydicom import Dataset

    query = Dataset()
    query.QueryRetrieveLevel = "STUDY"
    query.AccessionNumber = accession
    # An empty element asks for its value.
    for key in KEYS:
        setattr(query, key, None)
    exams = []
    with connect(clinic, [FIND]) as association:
        for status, study in association.send_c_find(query, FIND):
            if "Status" not in status:
                raise DataError("the connection broke before the archive answered which exams it has; start again")
            if status.Status in PENDING:
                # pynetdicom gives None for an answer that it cannot decode.
                uid, patient, count = [str((study or Dataset()).get(key) or "") for key in KEYS]
                check_uid(uid)
                exams.append(ArchivedExam(uid, patient, int(count or 0)))
    return exams


def retrieve_study(clinic: Clinic, study: ArchivedExam) -> bool:
    """Have all files of an exam sent to this system, which must listen, and return whether the archive says so.

    Raises:
        DataError: As `connect`.
    """
    from pydicom import Dataset

    query = Dataset()
    query.QueryRetrieveLevel = "STUDY"
    query.StudyInstanceUID = study.uid
    with connect(clinic, [MOVE]) as association:
        # The answers before count the files that are still to come.
        *_, (status, _) = association.send_c_move(query, clinic.ae_title, MOVE)
    return bool(status.get("Status") == 0)
