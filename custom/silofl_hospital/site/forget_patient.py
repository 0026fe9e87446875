"""``silofl site forget --patient``: remove what a site keeps of one patient, and say what cannot be taken back."""

import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from silofl.base.csv_text import decode_csv, encode_csv
from silofl.base.errors import DataError
from silofl.base.files import hold_lock, list_unfinished, write_json, write_text
from silofl.base.schema import dump_record, read_file
from silofl.data.cache_entries import LOCK as CACHE_LOCK
from silofl.data.cache_entries import list_entries, list_unfinished_entries, read_entry
from silofl.data.learnt import FILE as LEARNT
from silofl.data.learnt import LearntFrom
from silofl.data.manifest import FILE_NAME, PARTS, read_content
from silofl.data.records import find_case_name
from silofl.federation.egress_log import FILE, LOCK
from silofl.inference.cases_table import FILE as CASES
from silofl.reading.patient_names import key_patient
from silofl.setup.site import Site
from silofl.training.case_pictures import FEATURES, PICTURES, SCORES
from silofl_hospital.site.kept import MARK, find_data_folder, find_runs


@dataclass(frozen=True)
class Traces:
    """What a site keeps of one patient.

    Attributes:
        entries: Folders of decoded images to be deleted.
        parts: The parts of the data in which the patient was, by these entries.
        files: File -> cases that it is to lose; all of the file where None.
        runs: The folders of the studies' runs.
        caches: The folders that the entries lie in.
    """

    entries: list[Path] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)
    files: dict[Path, set[str] | None] = field(default_factory=dict)
    runs: list[Path] = field(default_factory=list)
    caches: set[Path] = field(default_factory=set)

    @property
    def is_found(self) -> bool:
        """Whether anything names the patient: the selector's features, and what a kill left half done, name nobody."""
        return bool(self.parts) or any(self.files.values())


def find_traces(site: Site, name: str, studies: Sequence[str], patient: str, cases: Iterable[str]) -> Traces:
    """Return what a site keeps of a patient, without touching it.

    Args:
        studies: The studies to look into; where there is none, the folders that all share.
        patient: As dataset.json named the patient.
        cases: The patient's cases, where no cache knows them any more.

    Raises:
        DataError: A dataset.json still names the patient. No sentence of this function does.
    """
    found, patient = Traces(), key_patient(patient)
    # A check fills a cache before any run of the study is there.
    studies = studies or [MARK]
    folders = {study: folder for study in studies if (folder := find_data_folder(site, study, name))}
    for folder in folders.values():
        _check_gone(folder, patient, set(cases))
    own = {study: str(folder.resolve()) for study, folder in folders.items()}
    # By the data that name them: other data may name another patient's case alike.
    known: dict[str, set[str]] = defaultdict(lambda: set(cases))
    for cache in {site.cache_folder(study, name) for study in studies}:
        found.caches.add(cache)
        for entry in map(read_entry, list_entries(cache)):
            # An entry of an older version, which nobody can open any more, says nothing of its data.
            dataset = entry.dataset or str(cache)
            mine = {
                part: entry.list_patient_cases(part, patient) | entry.select_cases(part, known[dataset])
                for part in PARTS
            }
            if any(mine.values()):
                found.entries.append(entry.folder)
                found.parts.update(part for part, those in mine.items() if those)
                known[dataset].update(*mine.values())
        found.entries.extend(list_unfinished_entries(cache))
    for study in studies:
        runs = find_runs(site, study, name)
        found.runs.extend(runs)
        named = known[own.get(study, "")] | known[str(site.cache_folder(study, name))]
        for run in runs:
            found.files.update(_find_naming_files(run, named))
    return found


def remove_traces(traces: Traces) -> None:
    """Remove a patient's traces.

    Raises:
        ConfigError: A run still goes on, or a job uses the cache; then nothing is removed.
    """
    with ExitStack() as stack:
        # All locks before the first deletion: one run that still goes on keeps everything.
        for lock in [run / LOCK for run in traces.runs if (run / LOCK).is_file()]:
            stack.enter_context(hold_lock(lock))
        for cache in traces.caches:
            if cache.is_dir():
                stack.enter_context(hold_lock(cache / CACHE_LOCK))
        for folder in traces.entries:
            shutil.rmtree(folder)
        for file, cases in traces.files.items():
            if cases is None:
                file.unlink()
            else:
                _REMOVERS[file.name](file, cases)


def describe_traces(traces: Traces) -> list[str]:
    """Return what would be removed, a line each, without the patient's name or that of a case."""
    lines = [
        f"{folder}: decoded images, with the model that the site has trained on them alone" for folder in traces.entries
    ]
    for file, cases in traces.files.items():
        lines.append(f"{file}: {'all of it' if cases is None else f'cases: {len(cases)}'}")
    return lines


def describe_remaining(traces: Traces) -> list[str]:
    """Return what cannot be taken back, or not by this command, a sentence each."""
    lines = [f"what run {run.name} has sent: {run / FILE} and its summary list it" for run in traces.runs]
    parts = ", ".join(part for part in PARTS if part in traces.parts)
    return [
        *lines,
        f"by the cache, the patient was in: {parts}" if parts else "no cache says in which part the patient was",
        "what was sent of a patient in training is in the models of the server, of the other sites, and of whoever has "
        "a super model, and cannot be taken out of them: tell the study lead, who can begin a run without the patient",
        "this site's own models, in rounds/, supermodel/, chosen/ and own/ of these runs, learnt from those in "
        "training: silofl site forget STUDY deletes them, with the record of what left",
        "this site's logs, check-site.txt in the kit, and pages that were written from these runs may name the case: "
        "look for it there, and see silofl site prune",
    ]


def _check_gone(folder: Path, patient: str, cases: set[str]) -> None:
    """Refuse a patient whom dataset.json still names."""
    if not (folder / FILE_NAME).is_file():
        return
    content = read_content(folder)
    records = [record for part in PARTS for record in _as_list(content.get(part)) if isinstance(record, dict)]
    # As `silofl.data.records` reads them: a number is a text, and blanks at the ends are none of a name.
    named = [(str(record.get("patient", "")).strip(), find_case_name(record)) for record in records]
    count = sum(key_patient(who) == patient or case in cases for who, case in named)
    if count:
        other = "; where it is another patient's case, name the STUDY that is meant" if cases else ""
        raise DataError(
            f"{folder / FILE_NAME} must name the patient no more, not in {count} of its records; remove these and the "
            f"patient's files first, then call this again, before the site's next start{other}"
        )


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _find_naming_files(run: Path, cases: set[str]) -> dict[Path, set[str] | None]:
    """Return the files of a run that name a case -> the cases; whole, those that may show one without its name."""
    # Of pictures, a killed process may have left any part.
    found: dict[Path, set[str] | None] = dict.fromkeys(list_unfinished(run))
    for name, read in _READERS.items():
        if (run / name).is_file() and (named := cases & set(read(run / name))):
            found[run / name] = named if name in _REMOVERS else None
    if (run / FEATURES).is_file():
        found[run / FEATURES] = None
    return found


def _read_scored_cases(path: Path) -> Sequence[str]:
    return [row[0] for row in _read_rows(path)[1:]]


def _read_rows(path: Path) -> list[list[str]]:
    return decode_csv(path.read_bytes().decode())


def _read_pictured_cases(path: Path) -> Sequence[str]:
    with np.load(path, allow_pickle=False) as arrays:
        return arrays["cases"].tolist()


def _remove_rows(path: Path, cases: set[str]) -> None:
    head, *rows = _read_rows(path)
    write_text(path, encode_csv([head, *(row for row in rows if row[0] not in cases)]))


def _read_learnt_cases(path: Path) -> Iterable[str]:
    known = read_file(LearntFrom, path)
    return known.cases if known else ()


def _remove_learnt(path: Path, cases: set[str]) -> None:
    if known := read_file(LearntFrom, path):
        kept = {case: digests for case, digests in known.cases.items() if case not in cases}
        write_json(path, dump_record(replace(known, cases=kept)))


_READERS = {
    SCORES: _read_scored_cases,
    CASES: _read_scored_cases,
    PICTURES: _read_pictured_cases,
    LEARNT: _read_learnt_cases,
}
# The pictures of a run go whole: they are a few of its worst cases.
_REMOVERS = {SCORES: _remove_rows, CASES: _remove_rows, LEARNT: _remove_learnt}
