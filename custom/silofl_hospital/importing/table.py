"""Folders of classes, or a table of labels, for each site: pictures, volumes or DICOM series.

Own data, from nowhere else::

    SOURCE/
      north/               a folder for each site
        labels.csv         columns file, label and patient (or labels.tsv)
        images/a.png ...   anywhere in the site's folder: file is the path from there
      south/ ...

If no site has a table, the folders in a site's folder are its classes, and all images in them their examples.

SOURCE may be one such table itself, with a further column site; file is then the path from the table's folder, and a
patient is at one site.

The label is the name of a class; the classes of all sites together are numbered by their names, or in the order of
--labels. Where any row names several, as ``effusion|nodule``, all labels are findings (multilabel); a row with nothing,
or with ``No Finding``, has none. In place of the column label each finding may have a column of 0 and 1: all other
columns, or those that --labels names. Without the column patient, the patients of DICOM files are those of their
headers (PatientID) where these differ; otherwise nobody knows whose images they are: they are split by file.

A column part (training, validation or test; also train, val) gives the split. Where no row is for the validation, it is
taken out of the training.

A label that measures something, as an age or a volume, is refused: SiloFL learns classes and segmentations.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from silofl.base.errors import ConfigError, DataError, Faults, quote_value
from silofl.base.naming import normalise_accents
from silofl.data.manifest import PARTS
from silofl.reading.patient_ids import read_own_id
from silofl.reading.patient_names import normalise_name
from silofl_hospital.importing.cases import shorten_names
from silofl_hospital.importing.masks import ENDINGS, split_ending
from silofl_hospital.importing.options import ImportOptions, Layout
from silofl_hospital.importing.partition import split_by_patient
from silofl_hospital.importing.patients import (
    FILE,
    LABEL,
    NOBODY,
    PART,
    PATIENT,
    SITE,
    assign_sites,
    can_tell_apart,
    is_nothing,
    read_rows,
    warn_unknown_patients,
)
from silofl_hospital.importing.site_files import (
    UNKNOWN,
    JsonRecord,
    SitePlan,
    Writer,
    copy_image,
    number_labels,
    split_patients,
    unify_spellings,
    visible_files,
    visible_folders,
)

TABLES = ("labels.csv", "labels.tsv")
CLASSES = "classification"
# A class has several examples; numbers of more kinds than these are measured.
MOST_NUMBERS = 20
# Stands between two findings, as in NIH's ChestX-ray14, which calls none so.
SEVERAL, NONE = "|", "no finding"
# Word of the column part -> the part.
GIVEN = {"train": "training", "val": "validation", **{part: part for part in PARTS}}


@dataclass(frozen=True)
class Entry:
    """A row of a table.

    Attributes:
        name: The file's path as the table gives it.
        path: Where it lies.
        labels: The name of its class, or of its findings.
        patient: Whose it is; None where the table does not say.
        part: Where it belongs; None where the table does not say.
    """

    name: str
    path: Path
    labels: tuple[str, ...]
    patient: str | None
    part: str | None = None


@dataclass(frozen=True)
class SiteTable:
    """The rows of a site.

    Attributes:
        folder: Where paths begin.
        name: What messages call the table.
        rows: By column.
    """

    folder: Path
    name: str
    rows: Sequence[Mapping[str, str]]


def plan_table(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/<site>/labels.csv and the files it names, or of a table with a column of sites.

    Raises:
        ConfigError: The labels that are given are not those of the tables.
        DataError: A table cannot be read, a file is not there, labels are no classes, or a table of all sites gives a
            file or a patient to two.
    """
    tables = _read_table(source) if source.is_file() else _read_folders(source)
    findings = _list_finding_columns(tables.values(), options.labels)
    if findings:
        tables = {site: _join_findings(table, findings) for site, table in tables.items()}
    has_several = any(SEVERAL in row[LABEL] for table in tables.values() for row in table.rows)
    task = "multilabel" if findings or has_several else CLASSES
    sites = {site: _read_entries(table, task, findings or options.labels or ()) for site, table in tables.items()}
    found = [name for one in sites.values() for entry in one for name in entry.labels]
    labels = _number_classes(found, findings or options.labels)
    empty = SitePlan(task, labels, {}, {})
    plans = {site: _plan_site(site, sites[site], empty, options) for site in sorted(sites)}
    if source.is_file():
        _check_sites(plans)
    return warn_unknown_patients(plans, "column patient", f"Name them in {TABLES[0]} (columns file, label and patient)")


def _read_folders(source: Path) -> dict[str, SiteTable]:
    tables = {
        folder: next((folder / name for name in TABLES if (folder / name).exists()), None)
        for folder in visible_folders(source)
    }
    if not any(tables.values()):
        return _list_class_folders(source, list(tables))
    found = {}
    for folder, table in tables.items():
        if table is None:
            raise DataError(
                f"site {folder.name!r} must have {TABLES[0]}; it is not there: write it, or remove the folder"
            )
        name = f"{table.name} of site {folder.name!r}"
        found[folder.name] = SiteTable(folder, name, read_rows(table, name, (FILE,)))
    return found


def _list_class_folders(source: Path, sites: Sequence[Path]) -> dict[str, SiteTable]:
    """Return the rows of sites without a table, whose folders are their classes."""
    classes = {folder: visible_folders(folder) for folder in sites}
    names = {one.name for own in classes.values() for one in own}
    if not all(classes.values()) or len(names) < 2 or names & {"images", "masks"}:
        raise DataError(
            f"{source.name} must hold a folder for each site with {TABLES[0]} (columns file, label and patient), or "
            "with a folder of images for each class, or be such a table, not none of these; put the folders of classes "
            "into one that is named as their site"
        )
    rows = {
        site: [
            {FILE: path.relative_to(site).as_posix(), LABEL: one.name}
            for one in own
            for path in visible_files(one)
            if path.name.lower().endswith(ENDINGS)
        ]
        for site, own in classes.items()
    }
    return {site.name: SiteTable(site, f"the folder of site {site.name!r}", found) for site, found in rows.items()}


def _read_table(table: Path) -> dict[str, SiteTable]:
    rows = read_rows(table, table.name, (FILE, SITE))
    return {
        site: SiteTable(table.parent, table.name, [row for row in rows if row[SITE] == site])
        for site in sorted({row[SITE] for row in rows})
    }


def _list_finding_columns(tables: Iterable[SiteTable], given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of findings; none where a column names the label."""
    columns = {table.name: [*next(iter(table.rows), {LABEL: ""})] for table in tables}
    if all(LABEL in found for found in columns.values()):
        return ()
    first = next(found for found in columns.values() if LABEL not in found)
    others = (FILE, PATIENT, SITE, PART)
    findings = tuple(given or (one for one in first if one not in others and one.casefold() != NONE))
    for name, found in columns.items():
        if not findings:
            raise DataError(
                f"{name} must have the columns {FILE} and {LABEL}, not {', '.join(found)}; rename them, or give each "
                "finding a column of 0 and 1"
            )
        for finding in findings:
            if SEVERAL in finding:
                raise DataError(
                    f"{name} must name a finding without {SEVERAL!r}, which parts findings, not "
                    f"{quote_value(finding)}; rename its column"
                )
            if finding not in found:
                raise DataError(
                    f"{name} must have the column {quote_value(finding)}, as the others; add it, or name the columns "
                    "of findings with --labels"
                )
    return findings


def _join_findings(table: SiteTable, findings: Sequence[str]) -> SiteTable:
    """Return a table with the findings of a row in its column label, where each has a column of 0 and 1."""
    rows = []
    for row in table.rows:
        for finding in findings:
            if _parse_number(row[finding]) not in (0, 1):
                raise DataError(
                    f"{table.name} must hold 0 or 1 in the column {quote_value(finding)} of findings, not "
                    f"{quote_value(row[finding])}; decide it, remove the row, or name the columns of findings with "
                    "--labels"
                )
        rows.append({**row, LABEL: SEVERAL.join(one for one in findings if _parse_number(row[one]) == 1)})
    return replace(table, rows=rows)


def _read_entries(table: SiteTable, task: str, given: Collection[str]) -> list[Entry]:
    faults, entries, name = Faults(), [], table.name
    for row in table.rows:
        with faults.collect_fault():
            entries.append(_read_entry(row, table.folder, name, task, given))
    faults.tell()
    twins = [file for file, count in Counter(entry.name for entry in entries).items() if count > 1]
    if twins:
        raise DataError(f"{name} must have one row a file, not several of {shorten_names(twins)}; remove the others")
    unknown = [entry.name for entry in entries if entry.patient == ""]
    if unknown and len(unknown) < len(entries):
        raise DataError(
            f"{name} must name the patient of {shorten_names(unknown)}, as of the others; add them ({NOBODY})"
        )
    return entries


def _read_entry(row: Mapping[str, str], folder: Path, name: str, task: str, given: Collection[str]) -> Entry:
    file = PurePosixPath(row[FILE].replace("\\", "/"))
    if not row[FILE] or file.is_absolute() or ".." in file.parts:
        raise DataError(f"{name} must name files by their path within its folder, not {quote_value(row[FILE])}")
    path = folder / file
    if not path.exists():
        raise DataError(f"{name} must name files that are there, not {quote_value(row[FILE])}; correct the row")
    split_ending(path, f"{name}: {file}")
    said = normalise_accents(row[LABEL])
    labels = (said,) if task == CLASSES else _split_findings(said)
    _check_labels(labels, task, given, f"{name} must name the {{}} of {file}")
    patient = normalise_name(row[PATIENT]) if PATIENT in row else None
    part = GIVEN.get(row[PART].casefold()) if PART in row else None
    if PART in row and part is None:
        raise DataError(
            f"{name} must put {file} into training, validation or test, not {quote_value(row[PART])}; correct the "
            f"column {PART}"
        )
    return Entry(normalise_accents(str(file)), path, labels, patient, part)


def _check_labels(labels: Iterable[str], task: str, given: Collection[str], must: str) -> None:
    """Refuse what stands for nothing: an exam that nobody has read is of no class, and not without findings."""
    nothing = next((label for label in labels if is_nothing(label) and label not in given), None)
    if nothing is not None:
        what, more = ("class", "") if task == CLASSES else ("findings", ", with No Finding where nothing was found")
        raise DataError(
            f"{must.format(what)}, not {quote_value(nothing)}; fill the column {LABEL}{more}, remove the row, or, "
            "where a label is called so, name all with --labels"
        )


def _split_findings(text: str) -> tuple[str, ...]:
    names = dict.fromkeys(map(str.strip, text.split(SEVERAL)))
    return tuple(name for name in names if name and name.casefold() != NONE)


def _number_classes(found: Iterable[str], given: Sequence[str] | None) -> dict[int, str]:
    """Return the classes by number, from 0."""
    names = {*found}
    if given is not None:
        if names - {*given}:
            raise ConfigError(
                f"labels must name all classes of the tables, not leave out {shorten_names(names - {*given})}; add them"
            )
        return number_labels(given, first=0)
    numbers = {name: value for name in names if (value := _parse_number(name)) is not None}
    is_measured = any(value % 1 for value in numbers.values()) or len(numbers) > MOST_NUMBERS
    if len(numbers) == len(names) and is_measured:
        example = next((name for name, value in numbers.items() if value % 1), min(numbers))
        raise DataError(
            f"{LABEL} must be the name of a class, not a number that measures something, as {example} of "
            f"{len(names)} different ones: SiloFL has no regression; make classes of ranges, as low and high, or name "
            "the classes with --labels"
        )
    if len(names) < 2:
        raise DataError(f"{LABEL} must name at least 2 classes, not {len(names)}; add files of another class")
    alike = Counter(name.casefold() for name in names)
    twins = sorted(name for name in names if alike[name.casefold()] > 1)
    if twins:
        raise DataError(f"{LABEL} must write a class in one way, not as {' and '.join(twins)}; correct the tables")
    return number_labels(sorted(names, key=lambda name: (numbers.get(name, 0), name)), first=0)


def _parse_number(text: str) -> float | None:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _check_sites(plans: Mapping[str, SitePlan]) -> None:
    """Refuse a table of all sites that gives a file or a patient to two; tables of their own number their own ones."""
    remedy = f"correct the column {SITE}, or give two patients two names in the column {PATIENT}"
    records = [(record, site) for site, plan in plans.items() for part in plan.records.values() for record in part]
    assign_sites(((str(record["case"]), site) for record, site in records), f"correct the column {SITE}", FILE)
    assign_sites(((str(record[PATIENT]), site) for record, site in records if PATIENT in record), remedy)


def _plan_site(site: str, entries: Sequence[Entry], empty: SitePlan, options: ImportOptions) -> SitePlan:
    """Return the plan of a site, whose task and labels an empty one has."""
    patients, notes = _find_patients(site, entries)
    patients, said = unify_spellings(site, patients)
    notes = (*notes, *said)
    units = [entry.name if patient is None else patient for entry, patient in zip(entries, patients, strict=True)]
    is_known = None not in patients
    number_of = {name: number for number, name in empty.labels.items()}
    of_unit: dict[str, set[int]] = {}
    for entry, unit in zip(entries, units, strict=True):
        of_unit.setdefault(unit, set()).update(number_of[name] for name in entry.labels)
    has_one = empty.task == CLASSES and all(len(own) == 1 for own in of_unit.values())
    classes = {unit: min(own) for unit, own in of_unit.items()} if has_one else None
    kind = "patients" if is_known else "images"
    given = _read_given_split(site, entries, units)
    part_of = given or split_patients(site, units, options, kind, classes)
    if given and "validation" not in given.values():
        rest = [unit for unit, part in given.items() if part == "training"]
        part_of = given | split_by_patient(rest, 0.0, options.validation, options.seed, classes)
    records: dict[str, list[JsonRecord]] = {part: [] for part in PARTS}
    for entry, patient, unit in zip(entries, patients, units, strict=True):
        numbers = sorted(number_of[name] for name in entry.labels)
        label = numbers[0] if empty.task == CLASSES else numbers
        record: JsonRecord = {"image": f"images/{entry.name}", "label": label}
        record |= {} if patient is None else {"patient": patient}
        records[part_of[unit]].append(record | {"case": entry.name})
    files: dict[str, Writer] = {f"images/{entry.name}": partial(copy_image, entry.path) for entry in entries}
    plan = replace(empty, records=records, files=files, notes=notes)
    return plan if is_known else replace(plan, split_unit="unknown", notes=(*notes, UNKNOWN))


def _read_given_split(site: str, entries: Sequence[Entry], units: Sequence[str]) -> dict[str, str]:
    """Return the part of each patient, or image, that the table gives; none without a column of parts."""
    found: dict[str, str] = {}
    for entry, unit in zip(entries, units, strict=True):
        if entry.part is not None and found.setdefault(unit, entry.part) != entry.part:
            raise DataError(
                f"site {site!r} must have {unit} in one part, not in {found[unit]} and {entry.part}; correct the "
                f"column {PART}"
            )
    for part in ("training", "test"):
        if found and part not in found.values():
            raise DataError(f"site {site!r} must have rows for the {part}, not none; name them in the column {PART}")
    return found


def _find_patients(site: str, entries: Sequence[Entry]) -> tuple[Sequence[str | None], tuple[str, ...]]:
    """Return whose the files are, None for all where one is not known, and what to say of it."""
    named = [entry.patient for entry in entries]
    if all(named):
        return [str(patient) for patient in named], ()
    by_header = [read_own_id([entry.path]) for entry in entries]
    if not can_tell_apart(by_header):
        return [None] * len(entries), ()
    return [str(one) for one in by_header], (f"{site}: the patients are those of the DICOM headers (PatientID)",)


LAYOUT = Layout(plan_table)
