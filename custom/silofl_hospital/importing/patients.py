"""A site's table of patients, which says whose the images of own data are, and what to say where there is none."""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from silofl.base.errors import DataError, quote_value
from silofl.base.naming import normalise_accents
from silofl.reading.access import read_bytes
from silofl.reading.patient_names import key_patient, normalise_name
from silofl_hospital.importing.cases import SiteCases, shorten_names
from silofl_hospital.importing.masks import ENDINGS
from silofl_hospital.importing.site_files import UNKNOWN, SitePlan

TABLES = ("patients.csv", "patients.tsv")
FILE, LABEL, PATIENT, SITE, PART = "file", "label", "patient", "site", "part"
# What programs write for nothing, in small letters: pandas, R, Excel and people.
NOTHING = {
    *("nan", "-nan", "na", "n/a", "n.a.", "none", "null", "nil", "<na>", "nat", "-", "--", "?"),
    *("#n/a", "#n/a n/a", "#na", "#null!", "-1.#ind", "1.#ind", "-1.#qnan", "1.#qnan"),
}
NOBODY = "a word as nan or NA names nobody"


def read_patients(found: SiteCases) -> Mapping[str, str | None]:
    """Return the patient of each case of a site by its folders, or by patients.csv or patients.tsv in its folder.

    Its column ``file`` holds a case, or one of the case's images, by its path in the folder of the images or of the
    site, or by its name where no other case has it. Without a table the patient is the one whom each case's DICOM files
    name; None for all where one case has none, or all have the same, as archives write it.

    Raises:
        DataError: The table cannot be read, lacks a column, or does not name one patient for each case.
    """
    if found.patients:
        return found.patients
    tables = [found.folder / name for name in TABLES if (found.folder / name).exists()]
    if not tables:
        return found.patient_ids if can_tell_apart(found.patient_ids.values()) else dict.fromkeys(found.images)
    table = f"{tables[0].name} of site {found.site!r}"
    rows: dict[str, set[str]] = {}
    for row in read_rows(tables[0], table, (FILE, PATIENT)):
        patient = normalise_name(row[PATIENT])
        if row[FILE] and patient:
            rows.setdefault(_normalise_path(row[FILE]), set()).add(patient)
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
            f"{missing[0]}, or its image, as {example} ({NOBODY})"
        )
    for case, patients in named.items():
        if len({*map(key_patient, patients)}) > 1:
            raise DataError(f"{table} must name one patient of {case}, not {shorten_names(patients)}; correct its rows")
    return {case: min(patients) for case, patients in named.items()}


def can_tell_apart(patients: Iterable[str | None]) -> bool:
    """Return whether DICOM's headers name a patient of each image, and not one for all, as archives write it."""
    names = [*patients]
    return None not in names and len({*map(key_patient, filter(None, names))}) > 1


def _normalise_path(name: str) -> str:
    """Return a path as it is compared: its letters and signs in one form, the ending of a file without capitals."""
    name = name.replace("\\", "/").removeprefix("./")
    ending = next((ending for ending in ENDINGS if name.lower().endswith(ending)), "")
    return normalise_accents(name[: len(name) - len(ending)]) + ending


def assign_sites(pairs: Iterable[tuple[str, str]], remedy: str, what: str = PATIENT) -> dict[str, str]:
    """Return the site of each patient.

    Args:
        pairs: A patient and a site, any number of times.
        remedy: What to do about a patient at two sites.
        what: What messages call a patient, where another thing has a site.

    Raises:
        DataError: A patient is at two sites: one would learn from whom the other tests.
    """
    found: dict[str, str] = {}
    firsts: dict[str, str] = {}
    for name, site in pairs:
        first = firsts.setdefault(key_patient(name) if what == PATIENT else name, site)
        found[name] = site
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
        source: What would name the patients.
    """
    unknown = {
        site: sum(map(len, plan.records.values())) for site, plan in plans.items() if plan.split_unit == "unknown"
    }
    counts = ", ".join(f"{site} {count}" for site, count in unknown.items())
    sentence = (
        f"PATIENTS UNKNOWN: no {source} says whose the {sum(unknown.values())} images are ({counts}). The split is by "
        f"file: one person may be in training and test, and results then look too good. {remedy} and import again. "
        "You can continue without it. Then the study is marked split_unit: unknown, and sites "
        "cannot check the minimum number of patients"
    )
    notes = {site: [sentence if note == UNKNOWN else note for note in plans[site].notes] for site in unknown}
    return {**plans, **{site: replace(plans[site], notes=tuple(notes[site])) for site in unknown}}


def read_rows(table: Path, name: str, wanted: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table with a header, by column; a short row has "" for what it lacks.

    Args:
        table: The file; its columns are separated by tabs, semicolons or commas.
        wanted: Columns that it must have, in capitals or small letters.

    Returns:
        The rows; a word of `NOTHING` is "" except in a column of labels, whose reader judges it.

    Raises:
        DataError: The table cannot be read, is not in UTF-8, lacks a column or has one twice, or has longer rows.
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
    spelled = {known.casefold(): known for known in (*wanted, FILE, LABEL, PATIENT, SITE, PART)}
    columns = [spelled.get(column.casefold(), column) for column in map(normalise_accents, map(str.strip, header))]
    if twins := sorted({column for column in columns if column and columns.count(column) > 1}):
        raise DataError(f"{name} must have each column once, not {quote_value(twins[0])} twice; rename or remove one")
    if not {*wanted} <= set(columns):
        raise DataError(f"{name} must have the columns {' and '.join(wanted)}, not {', '.join(columns)}; rename them")
    judged = {*spelled.values()} - {LABEL}
    found = []
    for number, row in enumerate(rows, start=1):
        if any(field.strip() for field in row[len(columns) :]):
            raise DataError(
                f"{name} must have at most {len(columns)} fields in a row, as its columns, not {len(row)} in row "
                f"{number} below them; put a text with {quote_value(delimiter)} in it into double quotes"
            )
        pairs = zip_longest(columns, map(str.strip, row[: len(columns)]), fillvalue="")
        values = {key: "" if key in judged and is_nothing(value) else value for key, value in pairs if key}
        found += [values] if row else []
    return found


def is_nothing(value: str) -> bool:
    """Return whether a field is empty, or says so by a word."""
    return not value or value.casefold() in NOTHING
