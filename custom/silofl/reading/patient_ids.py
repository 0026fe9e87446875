"""The patients whom DICOM headers name (PatientID), beside those of a table or a dataset.json."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from silofl.reading.header import read_dicom_element
from silofl.reading.patient_names import key_patient, normalise_name

# What archives write for everybody in place of a patient's number, in small letters and digits alone.
PLACEHOLDERS = {
    *("anon", "anonym", "anonymous", "anonymized", "anonymised", "anonymouspatient", "deidentified", "unknown", "none"),
    *("noid", "noname", "patient", "patientid", "removed", "test", "na", "nan", "nil", "null"),
}


def read_own_id(paths: Iterable[Path]) -> str | None:
    """Return the one patient whom an image's DICOM files name.

    Args:
        paths: The files or folders of the image, one for each contrast.

    Returns:
        The PatientID; None of other forms, and where it is missing, a placeholder, or not the same for all.
    """
    found: set[str | None] = set()
    for path in paths:
        patient = None
        # That a header is broken is told, with its case, where the image is read.
        with suppress(Exception):
            patient = normalise_name(read_dicom_element(path, "PatientID") or "")
        found.add(patient if patient and not _is_placeholder(patient) else None)
    one = {name and key_patient(name) for name in found}
    return min(filter(None, found)) if len(one) == 1 and None not in one else None


def count_shared_ids(pairs: Iterable[tuple[str, str | None]]) -> tuple[int, int]:
    """Return how many PatientIDs stand with more than one of something, and how many there are.

    Args:
        pairs: Of each image a patient's name or a part, and the PatientID or None.
    """
    others: dict[str, set[str]] = {}
    for other, patient in pairs:
        if patient is not None:
            others.setdefault(key_patient(patient), set()).add(key_patient(other))
    return sum(len(found) > 1 for found in others.values()), len(others)


def _is_placeholder(patient: str) -> bool:
    letters = re.sub(r"[\W_]", "", patient).casefold()
    # Of one sign alone, as 0000 and xxx; but 1 and 7 are numbers.
    return letters in PLACEHOLDERS or not letters or {*letters} in ({"0"}, {"x"})
