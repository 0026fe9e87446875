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
    names = set()
    for path in paths:
        name = ""
        # That a header is broken is told, with its case, where the image is read.
        with suppress(Exception):
            name = normalise_name(read_dicom_element(path, "PatientID") or "")
        if not name or _is_placeholder(name):
            return None
        names.add(name)
    # Two spellings of one patient are one; the least of them is the same whatever the order of the paths.
    return min(names) if len({key_patient(name) for name in names}) == 1 else None


def count_shared_ids(pairs: Iterable[tuple[str, str | None]]) -> tuple[int, int]:
    """Return how many PatientIDs stand with more than one of something, and how many there are.

    Args:
        pairs: Of each image a patient's name or a part, and the PatientID or None.
    """
    beside: dict[str, set[str]] = {}
    for name, patient in pairs:
        if patient is not None:
            beside.setdefault(key_patient(patient), set()).add(key_patient(name))
    return sum(len(names) > 1 for names in beside.values()), len(beside)


def _is_placeholder(patient: str) -> bool:
    letters = re.sub(r"[\W_]", "", patient).casefold()
    # Of one sign alone, as 0000 and xxx; but 1 and 7 are numbers.
    return letters in PLACEHOLDERS or not letters or {*letters} in ({"0"}, {"x"})
