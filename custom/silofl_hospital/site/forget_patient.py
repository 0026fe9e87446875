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
    traces = Traces()
    patient = key_patient(patient)
    # A check fills a cache before any run of the study is there.
    studies = studies or [MARK]
    # Study -> its data, as a cache's entries name them.
    dataset_of: dict[str, str] = {}
    for study in studies:
        if folder := find_data_folder(site, study, name):
            _check_gone(folder, patient, set(cases))
            dataset_of[study] = str(folder.resolve())
    # Data -> the patient's cases: other data may name another patient's case alike.
    cases_in: dict[str, set[str]] = defaultdict(lambda: set(cases))
    for cache in {site.cache_folder(study, name) for study in studies}:
        traces.caches.add(cache)
        for entry in map(read_entry, list_entries(cache)):
            # An entry of an older version, which nobody can open any more, says nothing of its data.
            dataset = entry.dataset or str(cache)
            # Those of the patient are gathered first: a case that one part adds selects none in the next part.
            by_part = {}
            for part in PARTS:
                by_part[part] = entry.list_patient_cases(part, patient) | entry.select_cases(part, cases_in[dataset])
            if any(by_part.values()):
                traces.entries.append(entry.folder)
                traces.parts.update(part for part, part_cases in by_part.items() if part_cases)
                cases_in[dataset].update(*by_part.values())
        traces.entries.extend(list_unfinished_entries(cache))
    for study in studies:
        runs = find_runs(site, study, name)
        traces.runs.extend(runs)
        named = cases_in[dataset_of.get(study, "")] | cases_in[str(site.cache_folder(study, name))]
        for run in runs:
            traces.files.update(_find_naming_files(run, named))
    return traces


def remove_traces(traces: Traces) -> None:
    """Remove a patient's traces.

    Raises:
        ConfigError: A run still goes on, or a job uses the cache; then nothing is removed.
    """
    with ExitStack() as stack:
        # All locks before the first deletion: one run that still goes on keeps everything.
        for run in traces.runs:
            if (run / LOCK).is_file():
                stack.enter_context(hold_lock(run / LOCK))
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
        lines.append(f"{file}: all of it" if cases is None else f"{file}: cases: {len(cases)}")
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
    # The next start would decode the patient's images anew.
    if not (folder / FILE_NAME).is_file():
        return
    content = read_content(folder)
    count = 0
    for part in PARTS:
        records = content.get(part)
        # The file may be of any form: nobody has checked it before.
        for record in records if isinstance(records, list) else []:
            if isinstance(record, dict):
                # As `silofl.data.records` reads them: a number is a text, and blanks at the ends are none of a name.
                name = str(record.get("patient", "")).strip()
                count += key_patient(name) == patient or find_case_name(record) in cases
    if count:
        advice = "; where it is another patient's case, name the STUDY that is meant" if cases else ""
        raise DataError(
            f"{folder / FILE_NAME} still names the patient, in {count} of its records; remove these and the patient's "
            f"files first, then call this again, before the site's next start{advice}"
        )


def _find_naming_files(run: Path, cases: set[str]) -> dict[Path, set[str] | None]:
    """Return the files of a run that name a case -> the cases; whole, those that may show one without its name."""
    # Of pictures, a killed process may have left any part.
    files: dict[Path, set[str] | None] = dict.fromkeys(list_unfinished(run))
    for name, read in _READERS.items():
        if (run / name).is_file() and (named := cases & set(read(run / name))):
            files[run / name] = named if name in _REMOVERS else None
    if (run / FEATURES).is_file():
        files[run / FEATURES] = None
    return files


def _read_scored_cases(path: Path) -> Sequence[str]:
    return [row[0] for row in _read_rows(path)[1:]]


def _read_rows(path: Path) -> list[list[str]]:
    return decode_csv(path.read_bytes().decode())


def _read_pictured_cases(path: Path) -> Sequence[str]:
    with np.load(path, allow_pickle=False) as arrays:
        return list(map(str, arrays["cases"]))


def _remove_rows(path: Path, cases: set[str]) -> None:
    head, *rows = _read_rows(path)
    write_text(path, encode_csv([head, *(row for row in rows if row[0] not in cases)]))


def _read_learnt_cases(path: Path) -> Iterable[str]:
    learnt = read_file(LearntFrom, path)
    return learnt.cases if learnt else ()


def _remove_learnt(path: Path, cases: set[str]) -> None:
    if learnt := read_file(LearntFrom, path):
        kept = {case: digests for case, digests in learnt.cases.items() if case not in cases}
        write_json(path, dump_record(replace(learnt, cases=kept)))


_READERS = {
    SCORES: _read_scored_cases,
    CASES: _read_scored_cases,
    PICTURES: _read_pictured_cases,
    LEARNT: _read_learnt_cases,
}
# The pictures of a run go whole: they are a few of its worst cases.
_REMOVERS = {SCORES: _remove_rows, CASES: _remove_rows, LEARNT: _remove_learnt}
