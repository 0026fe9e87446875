"""Fetch the exams of a list from the archive, and count those that are not whole by cause."""

import argparse
import csv
import shutil
from pathlib import Path

from silofl.base.documents import read_document
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import make_folder
from silofl.base.settings import load_settings
from silofl.reading.patient_names import key_patient
from silofl_clinic.archive import ArchivedExam, find_study, retrieve_study
from silofl_clinic.exams import ARRIVING, OTHER, UNFINISHED, Inbox, describe_counts
from silofl_clinic.receiver import Receiver
from silofl_clinic.settings import Clinic

ACCESSION, PATIENT = "accession", "patient"
LONGEST_LIST = 1 << 24
NOT_FOUND = "not-found"


def run(options: argparse.Namespace) -> int:
    """Fetch each exam of the list; print a line for each."""
    clinic, wanted = load_settings(Clinic, options.config), read_exams(options.list)
    if clinic.archive is None:
        raise ConfigError("clinic.yaml must name the archive, with ae_title, address and port; it does not: add it")
    inbox, causes = Inbox(clinic), []
    # By C-MOVE the archive calls back.
    with Receiver(clinic, inbox).listen():
        for accession, patient in wanted:
            causes.append(fetch(clinic, inbox, accession, patient))
            print(f"{accession}: {causes[-1] or 'whole'}", flush=True)
    counts = {cause or "whole": causes.count(cause) for cause in causes}
    print(f"{len(wanted)} asked for: {', '.join(f'{n} {cause}' for cause, n in sorted(counts.items()))}")
    print(f"in {clinic.root}: {describe_counts(inbox.counts())}")
    return ExitCode.INCOMPLETE if any(causes) else ExitCode.COMPLETE


def read_exams(path: Path) -> list[tuple[str, str]]:
    """Return accession number and patient, "" where none is named, of each row of a table.

    Raises:
        ConfigError: It cannot be read, has no column ``accession``, or a row without one.
    """
    text = read_document(path, "CSV", LONGEST_LIST)
    if text is None:
        raise ConfigError(f"{path.name} must be a table with a column {ACCESSION}; it is not there: write it")
    rows = list(csv.DictReader(text.splitlines()))
    if not rows or ACCESSION not in rows[0]:
        raise ConfigError(f"{path.name} must have a column {ACCESSION} and a row for each exam; it has not: add them")
    pairs = [tuple((row.get(key) or "").strip() for key in (ACCESSION, PATIENT)) for row in rows]
    for number, (accession, _) in enumerate(pairs, start=2):
        # In a question to the archive they stand for any letters.
        if not accession or any(sign in accession for sign in "*?\\"):
            raise ConfigError(f"line {number} of {path.name} must name an accession, not {accession!r}; correct it")
    return pairs


def fetch(clinic: Clinic, inbox: Inbox, accession: str, patient: str) -> str:
    """Fetch the exams of an accession number, and return why they are not whole; "" where they are."""
    found = find_study(clinic, accession)
    if not found:
        return NOT_FOUND
    causes = []
    for study in found:
        if patient and study.patient and key_patient(study.patient) != key_patient(patient):
            causes.append(OTHER)
        # Those that an earlier try has fetched need not come again.
        elif not inbox.has(study.uid):
            causes.append(_fetch_study(clinic, inbox, study))
    return next(filter(None, causes), "")


def _fetch_study(clinic: Clinic, inbox: Inbox, study: ArchivedExam) -> str:
    folder = clinic.root / ARRIVING / study.uid
    # What an earlier try has left would be counted with it.
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    is_whole = retrieve_study(clinic, study) and len([*folder.rglob("*.dcm")]) >= study.num_instances
    # The archive may keep its connection for the next exam.
    (folder / UNFINISHED).unlink(missing_ok=True)
    if not is_whole:
        (folder / UNFINISHED).touch()
    return inbox.put_away(folder)
