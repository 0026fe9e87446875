"""A site's table of patients, which says whose the images of own data are, and what to say where there is none."""

import codecs
import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from silofl.base.errors import DataError, quote_value
from silofl.base.naming import normalise_accents
from silofl.reading.access import read_bytes
from silofl.reading.patient_names import key_patient, normalise_name
from silofl_hospital.importing.cases import SiteCases
from silofl_hospital.importing.masks import ENDINGS
from silofl_hospital.importing.site_files import SitePlan
from silofl_hospital.importing.tree import shorten_names

TABLES = ("patients.csv", "patients.tsv")
FILE = "file"
LABEL = "label"
PATIENT = "patient"
SITE = "site"
PART = "part"
# What programs write for nothing, in small letters: pandas, R, Excel and people.
NOTHING = {
    *("nan", "-nan", "na", "n/a", "n.a.", "none", "null", "nil", "<na>", "nat", "-", "--", "?"),
    *("#n/a", "#n/a n/a", "#na", "#null!", "-1.#ind", "1.#ind", "-1.#qnan", "1.#qnan"),
}
NOBODY = "a word as nan or NA names nobody"


def read_patients(found: SiteCases) -> SiteCases:
    """Return the cases of a site with the patient of each by patients.csv or patients.tsv in its folder, if it has one.

    Its column ``file`` holds a case, or one of the case's images, by its path in the folder of the images or of the
    site, or by its name where no other case has it.

    Raises:
        DataError: The table cannot be read, lacks a column, or does not name one patient for each case.
    """
    tables = [found.folder / name for name in TABLES if (found.folder / name).exists()]
    if not tables or any(case.patient for case in found.cases):
        return found
    table = f"{tables[0].name} of site {found.site!r}"
    rows: dict[str, set[str]] = {}
    for row in read_rows(tables[0], table, (FILE, PATIENT)):
        patient = normalise_name(row[PATIENT])
        if row[FILE] and patient:
            rows.setdefault(_normalise_path(row[FILE]), set()).add(patient)
    # How many cases have an image of a name: the name alone is enough where no other case has it.
    num_cases = Counter[str]()
    for case in found.cases:
        num_cases.update({path.name for path in case.image_files})
    cases = []
    unnamed = []
    for case in found.cases:
        unique = [path.name for path in case.image_files if num_cases[path.name] == 1]
        patients: set[str] = set()
        for name in (case.name, *found.list_image_paths(case), *unique):
            patients |= rows.get(_normalise_path(name), set())
        if len({*map(key_patient, patients)}) > 1:
            raise DataError(
                f"{table} names several patients of {case.name}, {shorten_names(patients)}; correct its rows"
            )
        if not patients:
            unnamed.append(case)
        # Of several spellings always the same one is taken.
        cases.append(replace(case, patient=min(patients, default=None)))
    if unnamed:
        example = found.list_image_paths(unnamed[0])[-1]
        raise DataError(
            f"{table} names no patient of {shorten_names(case.name for case in unnamed)}; add rows whose file is the "
            f"case, as {unnamed[0].name}, or its image, as {example} ({NOBODY})"
        )
    return replace(found, cases=cases)


def _normalise_path(name: str) -> str:
    """Return a path as it is compared: its letters and signs in one form, the ending of a file without capitals."""
    name = name.replace("\\", "/").removeprefix("./")
    ending = next((ending for ending in ENDINGS if name.lower().endswith(ending)), "")
    return normalise_accents(name[: len(name) - len(ending)]) + ending


def warn_unknown_patients(plans: Mapping[str, SitePlan]) -> list[str]:
    """Return a sentence that says loudly what follows where patients are unknown; none where all are known."""
    counts = {site: len(plan.list_records()) for site, plan in plans.items() if plan.split_unit == "unknown"}
    if not counts:
        return []
    if next(iter(plans.values())).task == "segmentation":
        source = "patients.csv"
        remedy = "Put patients.csv, with the columns file and patient, into each site's folder"
    else:
        source = "column patient"
        remedy = "Name them in labels.csv (columns file, label and patient)"
    shown = ", ".join(f"{site} {count}" for site, count in counts.items())
    return [
        f"PATIENTS UNKNOWN: no {source} says whose the {sum(counts.values())} images are ({shown}). The split is by "
        f"file: one person may be in training and test, and results then look too good. {remedy} and import again. "
        "You can continue without it. Then the study is marked split_unit: unknown, and sites "
        "cannot check the minimum number of patients"
    ]


def read_rows(table: Path, name: str, wanted: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table with a header, by column; a short row has "" for what it lacks.

    Args:
        table: The file, in UTF-8 or UTF-16; its columns are separated by tabs, semicolons or commas.
        wanted: Columns that it must have, in capitals or small letters.

    Returns:
        The rows; a word of `NOTHING` is "" except in a column of labels, whose reader judges it.

    Raises:
        DataError: The table cannot be read, is in neither, lacks a column or has one twice, or has longer rows.
    """
    try:
        content = read_bytes(table, name)
        # Excel's "Unicode text" begins with the mark of UTF-16.
        encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
        lines = content.decode(encoding).splitlines()
        # Commas last: they may stand in the names of columns that tabs or semicolons part.
        delimiter = next((d for d in "\t;," if lines and d in lines[0]), ",")
        # For Excel, which shows this line to nobody.
        if lines and lines[0].strip().casefold() == f"sep={delimiter}":
            del lines[0]
        header, *rows = list(csv.reader(lines, delimiter=delimiter)) or [[""]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name} is no table in UTF-8 ({error}); save it anew, in Excel as CSV UTF-8") from None
    spelled = {column.casefold(): column for column in (*wanted, FILE, LABEL, PATIENT, SITE, PART)}
    columns = []
    for field in header:
        column = normalise_accents(field.strip())
        columns.append(spelled.get(column.casefold(), column))
    if twins := sorted({column for column in columns if column and columns.count(column) > 1}):
        raise DataError(f"{name} has the column {quote_value(twins[0])} twice; rename or remove one")
    if lacking := [column for column in wanted if column not in columns]:
        raise DataError(f"{name} lacks {' and '.join(lacking)} among its columns, {', '.join(columns)}; rename one")
    # What a label without a name means is judged by the reader of labels.
    judged = {*spelled.values()} - {LABEL}
    found = []
    for number, row in enumerate(rows, start=1):
        if any(field.strip() for field in row[len(columns) :]):
            raise DataError(
                f"{name} has {len(row)} fields in row {number} below its {len(columns)} columns; put a text with "
                f"{quote_value(delimiter)} in it into double quotes"
            )
        values = {}
        for column, field in zip_longest(columns, row[: len(columns)], fillvalue=""):
            value = field.strip()
            if column:
                values[column] = "" if column in judged and is_nothing(value) else value
        # Excel leaves rows of empty cells where some were deleted.
        if any(field.strip() for field in row):
            found.append(values)
    return found


def is_nothing(value: str) -> bool:
    """Return whether a field is empty, or says so by a word."""
    return not value or value.casefold() in NOTHING
