"""A site's table of patients, which says whose the images of own data are, and what to say where there is none."""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from silofl.data.access import read_bytes
from silofl.data.layouts.cases import SiteCases, shorten_names
from silofl.data.layouts.masks import ENDINGS
from silofl.data.layouts.site_files import UNKNOWN, SitePlan
from silofl.data.patient_names import normalise_name
from silofl.errors import DataError
from silofl.naming import normalise_accents

TABLES = ("patients.csv", "patients.tsv")


def read_patients(found: SiteCases) -> dict[str, str] | dict[str, None]:
    """Return the patient of each case of a site by patients.csv or patients.tsv in its folder.

    Its column ``file`` holds a case, or one of the case's images, by its path in the folder of the images or of the
    site, or by its name where no other case has it. Without a table the patient is the one whom each case's DICOM files
    name; None for all where one case has none, or all have the same, as archives write it.

    Raises:
        DataError: The table cannot be read, lacks a column, or does not name one patient for each case.
    """
    tables = [found.folder / name for name in TABLES if (found.folder / name).exists()]
    if not tables:
        is_known = None not in found.patient_ids.values() and len({*found.patient_ids.values()}) > 1
        return found.patient_ids if is_known else dict.fromkeys(found.images)
    table = f"{tables[0].name} of site {found.site!r}"
    rows: dict[str, set[str]] = {}
    for name, patients in read_columns(tables[0], table, "file", "patient").items():
        rows.setdefault(_normalise_path(name), set()).update(filter(None, map(normalise_name, patients)))
    # A file's name alone is enough where no other case has it.
    file_names = {case: {path.name for path in images if path is not None} for case, images in found.images.items()}
    num_cases = Counter(name for names in file_names.values() for name in names)
    named = {
        case: {
            one
            for name in (case, *found.list_image_paths(case), *(name for name in names if num_cases[name] == 1))
            for one in rows.get(_normalise_path(name), ())
        }
        for case, names in file_names.items()
    }
    missing = [case for case, patients in named.items() if not patients]
    if missing:
        example = found.list_image_paths(missing[0])[-1]
        raise DataError(
            f"{table} must name the patient of {shorten_names(missing)}; add rows whose file is the case, as "
            f"{missing[0]}, or its image, as {example}"
        )
    for case, patients in named.items():
        if len(patients) > 1:
            raise DataError(f"{table} must name one patient of {case}, not {shorten_names(patients)}; correct its rows")
    patient_of = {case: patients.pop() for case, patients in named.items()}
    _check_capitals(patient_of.values(), table)
    return patient_of


def _check_capitals(patients: Iterable[str], table: str) -> None:
    first: dict[str, str] = {}
    for patient in patients:
        other = first.setdefault(patient.casefold(), patient)
        if other != patient:
            raise DataError(
                f"{table} must write patient {patient!r} as {other!r}, or differ from it in more than capitals; "
                "correct its rows"
            )


def _normalise_path(name: str) -> str:
    """Return a path as it is compared: its letters and signs in one form, the ending of a file without capitals."""
    name = name.replace("\\", "/").removeprefix("./")
    ending = next((ending for ending in ENDINGS if name.lower().endswith(ending)), "")
    return normalise_accents(name[: len(name) - len(ending)]) + ending


def assign_sites(pairs: Iterable[tuple[str, str]], remedy: str, what: str = "patient") -> dict[str, str]:
    """Return the site of each patient.

    Args:
        pairs: A patient and a site, any number of times.
        remedy: What to do about a patient at two sites.
        what: What messages call a patient, where another thing has a site.

    Raises:
        DataError: A patient is at two sites: one would learn from whom the other tests.
    """
    found: dict[str, str] = {}
    for name, site in pairs:
        first = found.setdefault(name, site)
        if first != site:
            raise DataError(f"{what} {name!r} must be at one site, not at {first!r} and {site!r}; {remedy}")
    return found


def warn_unknown_patients(
    plans: Mapping[str, SitePlan],
    source: str = "patients.csv",
    remedy: str = "Put patients.csv, with the columns file and patient, into each site's folder",
) -> dict[str, SitePlan]:
    """Let the plans of sites whose patients are unknown say loudly what follows from that.

    Args:
        plans: Site -> its plan.
        source: What would name the patients.
        remedy: How to supply it.
    """
    unknown = {
        site: sum(map(len, plan.records.values())) for site, plan in plans.items() if plan.split_unit == "unknown"
    }
    counts = ", ".join(f"{site} {count}" for site, count in unknown.items())
    sentence = (
        f"PATIENTS UNKNOWN: no {source} says whose the {sum(unknown.values())} images are ({counts}). The split is by "
        f"file: one person may be in training and test, and results then look too good. {remedy} and import again. Or "
        "go on: new-study then writes split_unit: unknown, and min_patients counts no patient"
    )
    notes = {site: [sentence if note == UNKNOWN else note for note in plans[site].notes] for site in unknown}
    return {**plans, **{site: replace(plans[site], notes=tuple(notes[site])) for site in unknown}}


def read_columns(table: Path, name: str, key: str, value: str) -> dict[str, set[str]]:
    """Return what a table with a header says of each name: the values of one column by those of another.

    Args:
        table: The file; its columns are separated by tabs, semicolons or commas.
        name: The file's, for errors.
        key: The column of the names.
        value: The column of what is said of them; empty ones say nothing.

    Raises:
        DataError: The table cannot be read, is not in UTF-8, or lacks a column.
    """
    found: dict[str, set[str]] = {}
    for row in read_rows(table, name, (key, value)):
        if row[key] and row[value]:
            found.setdefault(row[key], set()).add(row[value])
    return found


def read_rows(table: Path, name: str, wanted: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table with a header, by column; a short row has "" for what it lacks.

    Args:
        table: The file; its columns are separated by tabs, semicolons or commas.
        name: The file's, for errors.
        wanted: Columns that it must have.

    Raises:
        DataError: The table cannot be read, is not in UTF-8, or lacks a column.
    """
    try:
        lines = read_bytes(table, name).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{name} must be text in UTF-8, not something else; save it anew") from None
    # Commas last: they may stand in the names of columns that tabs or semicolons part.
    delimiter = next((d for d in "\t;," if lines and d in lines[0]), ",")
    try:
        header, *rows = list(csv.reader(lines, delimiter=delimiter)) or [[""]]
    except csv.Error as error:
        raise DataError(f"{name} must be a table of columns, not broken ({error}); save it anew") from None
    columns = [normalise_accents(column.strip()) for column in header]
    if not {*wanted} <= set(columns):
        raise DataError(f"{name} must have the columns {' and '.join(wanted)}, not {', '.join(columns)}; rename them")
    empty = dict.fromkeys(columns, "")
    return [{**empty, **dict(zip(columns, map(str.strip, row), strict=False))} for row in rows if row]
