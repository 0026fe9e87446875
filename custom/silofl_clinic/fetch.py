"""Fetch the exams of a list from the archive, and count those that are not whole by cause."""

import argparse
import csv
import shutil
from collections import Counter
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
    clinic = load_settings(Clinic, options.config)
    wanted = read_exams(options.list)
    inbox = Inbox(clinic)
    counts: Counter[str] = Counter()
    # By C-MOVE the archive calls back.
    with Receiver(clinic, inbox).listen():
        for accession, patient in wanted:
            cause = fetch(clinic, inbox, accession, patient) or "whole"
            counts[cause] += 1
            print(f"{accession}: {cause}", flush=True)
    texts = [f"{count} {cause}" for cause, count in sorted(counts.items())]
    print(f"{len(wanted)} asked for: {', '.join(texts)}")
    print(f"in {clinic.root}: {describe_counts(inbox.counts())}")
    return ExitCode.COMPLETE if counts.keys() <= {"whole"} else ExitCode.INCOMPLETE


def read_exams(path: Path) -> list[tuple[str, str]]:
    """Return accession number and patient, "" where none is named, of each row of a table.

    Raises:
        ConfigError: It cannot be read, has no column ``accession``, or a row without one.
    """
    text = read_document(path, "CSV", LONGEST_LIST) or ""
    rows = list(csv.DictReader(text.splitlines()))
    if not rows or ACCESSION not in rows[0]:
        raise ConfigError(f"{path.name} has no column {ACCESSION}, or no row; add them, a row for each exam")
    pairs = []
    for number, row in enumerate(rows, start=2):
        accession = (row[ACCESSION] or "").strip()
        # In a question to the archive these signs stand for any letters.
        if not accession or {*accession} & {*"*?\\"}:
            raise ConfigError(f"line {number} of {path.name} names no accession but {accession!r}; correct it")
        pairs.append((accession, (row.get(PATIENT) or "").strip()))
    return pairs


def fetch(clinic: Clinic, inbox: Inbox, accession: str, patient: str) -> str:
    """Fetch the exams of an accession number, and return why they are not whole; "" where they are."""
    studies = find_study(clinic, accession)
    cause = "" if studies else NOT_FOUND
    for study in studies:
        if patient and study.patient and key_patient(study.patient) != key_patient(patient):
            cause = cause or OTHER
        # Those that an earlier try has fetched need not come again.
        elif not inbox.has(study.uid):
            fetched = _fetch_study(clinic, inbox, study)
            cause = cause or fetched
    return cause


def _fetch_study(clinic: Clinic, inbox: Inbox, study: ArchivedExam) -> str:
    folder = clinic.root / ARRIVING / study.uid
    # What an earlier try has left would be counted with what comes now.
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    is_whole = retrieve_study(clinic, study) and len([*folder.rglob("*.dcm")]) >= study.num_instances
    # The archive may keep its connection for the next exam.
    (folder / UNFINISHED).unlink(missing_ok=True)
    if not is_whole:
        (folder / UNFINISHED).touch()
    return inbox.put_away(folder)
