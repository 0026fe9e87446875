"""Folders of classes, or a table of labels, for each site: pictures, volumes or DICOM series.

Own data, from nowhere else::

    SOURCE/
      north/               a folder for each site
        labels.csv         columns file, label and patient (or labels.tsv)
        images/a.png ...   anywhere in the site's folder: file is the path from there
      south/ ...

If no site has a table, the folders in a site's folder are its classes, and all images in them their examples.

Folders train, val and test (or training, valid, validation, testing) in a site's folder are the parts of its split; in
the place of the sites' folders they are those of one site, SOURCE. Of folders of classes, masks and thumbnails are left
out and counted, and so is everywhere the second form of an image, as a.jpg beside a.png.

SOURCE may be one such table itself, with a further column site; file is then the path from the table's folder, and a
patient is at one site.

The label is the name of a class; the classes of all sites together are numbered by their names, or in the order of
--labels. --labels no=nein,yes=ja says that the table also writes nein for no, and ja for yes. Where any row names
several, as ``effusion|nodule``, all labels are findings (multilabel); a row with nothing, or with ``No Finding``, has
none. In place of the column label each finding may have a column of 0 and 1: all other columns, or those that --labels
names. Without the column patient, the patients of DICOM files are those of their headers (PatientID) where these
differ; otherwise nobody knows whose images they are: they are split by file.

A column part (training, validation or test, or a word as above) gives the split. Where no row is for the validation, it
is taken out of the training.

Recordings of time series, as ECG, take the place of images: EDF, or arrays of time x channels as .npy, or as .npz with
one array. --window 1000 cuts each into windows of 1000 samples, and also takes tables of numbers (.csv, a row for each
time, a column for each channel); --rate 250 brings the channels of EDF to 250 samples in a second. A window has the
label of its recording, and lies in one part with its others.

A label that measures something, as an age or a volume, is refused: SiloFL learns classes and segmentations.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from silofl.base.errors import ConfigError, DataError, Faults, quote_value
from silofl.base.naming import normalise_accents
from silofl.reading.patient_names import key_patient, normalise_name
from silofl_hospital.importing.headers import settle_headers
from silofl_hospital.importing.masks import ENDINGS, split_ending
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.patients import FILE, LABEL, NOBODY, PART, PATIENT, SITE, is_nothing, read_rows
from silofl_hospital.importing.recordings import check_alike, cut_windows, expand_windows, is_recording
from silofl_hospital.importing.site_files import (
    Case,
    JsonRecord,
    Layout,
    SitePlan,
    Writer,
    copy_image,
    number_labels,
    plan_site,
)
from silofl_hospital.importing.tree import (
    PART_WORDS,
    describe_left_out,
    find_copies,
    find_masks,
    find_parts,
    find_thumbnails,
    list_sites,
    shorten_names,
    visible_files,
)

TABLES = ("labels.csv", "labels.tsv")
CLASSES = "classification"
# A class has several examples; numbers of more kinds than these are measured.
MOST_NUMBERS = 20
# Stands between two findings, as in NIH's ChestX-ray14.
SEVERAL = "|"
# What the same set writes for an image without findings.
NO_FINDING = "no finding"


@dataclass(frozen=True)
class SiteTable:
    """The rows of a site.

    Attributes:
        folder: Where paths begin.
        name: What messages call the table.
        rows: By column.
        notes: Sentences about what is left out.
    """

    folder: Path
    name: str
    rows: Sequence[Mapping[str, str]]
    notes: Sequence[str] = ()


def plan_table(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/<site>/labels.csv and the files it names, or of a table with a column of sites.

    Raises:
        ConfigError: The labels that are given are not those of the tables.
        DataError: A table cannot be read, a file is not there, labels are no classes, or a table of all sites gives a
            file or a patient to two.
    """
    tables = _read_table(source) if source.is_file() else _read_folders(source, options)
    findings = _list_finding_columns(tables.values(), options.labels)
    if findings:
        tables = {site: _join_findings(table, findings) for site, table in tables.items()}
    has_several = any(SEVERAL in row[LABEL] for table in tables.values() for row in table.rows)
    task = "multilabel" if findings or has_several else CLASSES
    given = findings or options.labels
    cases = {}
    notes = {}
    names: dict[str, set[str]] = {}
    for site in sorted(tables):
        read = _read_cases(tables[site], task, given or (), options)
        copies = {*find_copies(case.image_files[0] for case in read)}
        cases[site] = [case for case in read if case.image_files[0] not in copies]
        names[site] = {label for case in cases[site] for label in case.labels}
        left_out = {"second forms of an image": copies}
        notes[site] = [*tables[site].notes, *describe_left_out(site, left_out, tables[site].folder)]
        notes[site] += _describe_strangers(site, names)
    labels = _number_classes(set[str]().union(*names.values()), given)
    plans = {}
    for site, site_cases in cases.items():
        plan = _plan_cases(site, site_cases, task, labels, options)
        plans[site] = replace(plan, notes=(*notes[site], *plan.notes))
    shapes: dict[str, tuple[int, int]] = {}
    for site, plan in plans.items():
        plans[site] = _cut_recordings(site, cases[site], plan, shapes, options)
    check_alike(shapes)
    # Tables of their own number their own patients: p1 of two sites is two persons.
    if source.is_file():
        _check_sites(plans)
    return plans


def _read_folders(source: Path, options: ImportOptions) -> dict[str, SiteTable]:
    sites = list_sites(source)
    found = {site: _read_site(site, _read_own_table) for site in sites}
    if not any(found.values()):
        found = {site: _read_site(site, partial(_list_class_folders, options=options)) for site in sites}
        names: set[str] = set()
        for table in found.values():
            names.update(row[LABEL] for row in (table.rows if table else ()))
        # Folders of images and masks are a segmentation's, and no classes.
        if not all(found.values()) or len(names) < 2 or names & {"images", "masks"}:
            raise DataError(
                f"{source.name} holds no folders of sites with {TABLES[0]} (columns file, label and patient), or with "
                f"a folder of images for each class, and is no such table{_describe_other_table(sites)}; put the "
                "folders of classes into one that is named as their site"
            )
    tables = {}
    for site, table in found.items():
        if table is None:
            raise DataError(
                f"site {site.name!r} has no {TABLES[0]}{_describe_other_table([site])}; write it, or remove the folder"
            )
        tables[site.name] = table
    return tables


def _describe_other_table(sites: Iterable[Path]) -> str:
    """Return what a table of another name lacks, for the end of a fault; nothing where no site has one."""
    for site in sites:
        for path in visible_files(site):
            if path.suffix.lower() in (".csv", ".tsv"):
                columns = ", ".join((read_rows(path, path.name, ()) or [{}])[0])
                return f" ({path.relative_to(site)} is called otherwise, and its columns are {columns})"
    return ""


def _read_site(site: Path, read: Callable[[Path], SiteTable | None]) -> SiteTable | None:
    """Return the rows of a site, or together those of the parts in its folder."""
    whole = read(site)
    if whole is not None:
        return whole
    part_of = find_parts(site)
    found = {path: table for path in part_of if (table := read(path)) is not None}
    if not found:
        return None
    rows = []
    unclassed: list[Path] = []
    notes: list[str] = []
    for path, part in part_of.items():
        if path not in found:
            unclassed += [file for file in visible_files(path) if file.name.lower().endswith(ENDINGS)]
            continue
        notes += found[path].notes
        for row in found[path].rows:
            # Where the labels of one part alone are known the import deals it.
            given = {PART: part} if len(found) > 1 else {}
            rows.append({**row, **given, FILE: row[FILE] and f"{path.name}/{row[FILE]}"})
    notes += describe_left_out(site.name, {"images of no class": unclassed}, site)
    return SiteTable(site, f"the folder of site {site.name!r}", rows, notes)


def _read_own_table(folder: Path) -> SiteTable | None:
    for name in TABLES:
        if (folder / name).exists():
            called = f"{name} of site {folder.name!r}"
            return SiteTable(folder, called, read_rows(folder / name, called, (FILE,)))
    return None


def _list_class_folders(folder: Path, options: ImportOptions) -> SiteTable | None:
    """Return the rows of a folder whose folders are its classes; None of another."""
    if find_parts(folder):
        return None
    images = []
    for path in visible_files(folder):
        if path.name.lower().endswith(ENDINGS) or is_recording(path, options):
            images.append(path)
    left_out = {"thumbnails": find_thumbnails(folder), "masks of images": find_masks(images)}
    is_left_out = set[Path]().union(*left_out.values())
    rows = []
    for path in images:
        file = path.relative_to(folder)
        if path not in is_left_out and len(file.parts) > 1:
            rows.append({FILE: file.as_posix(), LABEL: file.parts[0]})
    notes = describe_left_out(folder.name, left_out, folder)
    return SiteTable(folder, f"the folder of site {folder.name!r}", rows, notes) if rows else None


def _read_table(table: Path) -> dict[str, SiteTable]:
    rows_of: dict[str, list[Mapping[str, str]]] = {}
    for row in read_rows(table, table.name, (FILE, SITE)):
        rows_of.setdefault(row[SITE], []).append(row)
    return {site: SiteTable(table.parent, table.name, rows) for site, rows in rows_of.items()}


def _list_finding_columns(tables: Iterable[SiteTable], given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of findings; none where a column names the label."""
    # All rows of a table have the same columns.
    lacking = [table for table in tables if table.rows and LABEL not in table.rows[0]]
    if not lacking:
        return ()
    columns = list(lacking[0].rows[0])
    known = (FILE, PATIENT, SITE, PART)
    findings = given or [column for column in columns if column not in known and column.casefold() != NO_FINDING]
    if not findings:
        raise DataError(
            f"{lacking[0].name} has no column {LABEL} among {', '.join(columns)}; rename one, or give each finding a "
            "column of 0 and 1"
        )
    for finding in findings:
        if SEVERAL in finding:
            raise DataError(
                f"{lacking[0].name} must name a finding without {SEVERAL!r}, which parts findings, not "
                f"{quote_value(finding)}; rename its column"
            )
    return tuple(findings)


def _join_findings(table: SiteTable, findings: Sequence[str]) -> SiteTable:
    """Return a table with the findings of a row in its column label, where each has a column of 0 and 1."""
    faults = Faults()
    rows = []
    for row in table.rows:
        present = []
        for finding in findings:
            value = row.get(finding, "")
            number = _parse_number(value)
            with faults.collect_fault():
                if number not in (0, 1):
                    raise DataError(
                        f"{table.name} must hold 0 or 1 in the column {quote_value(finding)} of findings, not "
                        f"{quote_value(value)}; decide it, remove the row, or name the columns of findings with "
                        "--labels"
                    )
            if number == 1:
                present.append(finding)
        rows.append({**row, LABEL: SEVERAL.join(present)})
    faults.tell()
    return replace(table, rows=rows)


def _read_cases(table: SiteTable, task: str, given: Collection[str], options: ImportOptions) -> list[Case]:
    faults = Faults()
    cases: list[Case] = []
    places = _index_files(table, options)
    for row in table.rows:
        with faults.collect_fault():
            cases.append(_read_case(row, table, places, task, given, options))
    faults.tell()
    counts = Counter(case.name for case in cases)
    twins = [name for name, count in counts.items() if count > 1]
    if twins:
        raise DataError(f"{table.name} has several rows of {shorten_names(twins)}; keep one of a file")
    unknown = [case.name for case in cases if case.patient == ""]
    if unknown and len(unknown) < len(cases):
        raise DataError(
            f"{table.name} names no patient of {shorten_names(unknown)}, but those of the others; add them ({NOBODY})"
        )
    return cases


def _index_files(table: SiteTable, options: ImportOptions) -> dict[str, list[str]]:
    """Return the files in a table's folder by the paths that programs write for them; none where all rows name theirs.

    That is the path in one form of its letters, which Macs store in another, and the path without its ending.
    """
    places: dict[str, list[str]] = {}
    if all(row[FILE] and (table.folder / row[FILE]).exists() for row in table.rows):
        return places
    for path in visible_files(table.folder):
        if path.name.lower().endswith(ENDINGS) or is_recording(path, options):
            file = path.relative_to(table.folder).as_posix()
            whole = normalise_accents(file)
            ending = path.suffix if is_recording(path, options) else split_ending(path, file)[1]
            for name in (whole, whole[: -len(ending)]):
                places.setdefault(name, []).append(file)
    return places


def _read_case(
    row: Mapping[str, str],
    table: SiteTable,
    places: Mapping[str, Sequence[str]],
    task: str,
    given: Collection[str],
    options: ImportOptions,
) -> Case:
    # Windows writes paths with backslashes.
    file = PurePosixPath(row[FILE].replace("\\", "/"))
    # A path that leaves the folder could name any file of the machine.
    if not row[FILE] or file.is_absolute() or ".." in file.parts:
        raise DataError(f"{table.name} must name files by their path within its folder, not {quote_value(row[FILE])}")
    if not (table.folder / file).exists():
        alike = places.get(normalise_accents(str(file)), ())
        if len(alike) != 1:
            what = f"a file that is {len(alike)} files" if alike else "a file that is not there"
            raise DataError(f"{table.name} names {what}, {quote_value(row[FILE])}; correct the row")
        file = PurePosixPath(alike[0])
    path = table.folder / file
    if not is_recording(path, options):
        split_ending(path, f"{table.name}: {file}")
    label = normalise_accents(row[LABEL])
    if task == CLASSES:
        label = options.spellings.get(label, label)
    findings = dict.fromkeys(options.spellings.get(name, name) for name in map(str.strip, label.split(SEVERAL)))
    present = tuple(name for name in findings if name and name.casefold() != NO_FINDING)
    labels = (label,) if task == CLASSES else present
    for name in labels:
        # An exam that nobody has read is of no class, and not without findings.
        if is_nothing(name) and name not in given:
            what = "class" if task == CLASSES else "findings"
            raise DataError(
                f"{table.name} has {quote_value(name)} as the {what} of {file}; fill the column {LABEL} (No Finding "
                "where nothing was found), remove the row, or, where a label is called so, name all with --labels"
            )
    patient = normalise_name(row[PATIENT]) if PATIENT in row else None
    part = PART_WORDS.get(row[PART].casefold()) if PART in row else None
    if PART in row and part is None:
        raise DataError(
            f"the part of {file} in {table.name} must be training, validation or test, not {quote_value(row[PART])}; "
            f"correct the column {PART}"
        )
    return Case(normalise_accents(str(file)), (path,), labels=labels, patient=patient, part=part)


def _number_classes(names: Collection[str], given: Sequence[str] | None) -> dict[int, str]:
    """Return the classes by number, from 0."""
    if given is not None:
        lacking = {*names} - {*given}
        if lacking:
            raise ConfigError(f"labels leave out classes of the tables, {shorten_names(lacking)}; add them")
        return number_labels(given, first=0)
    numbers = {}
    for name in names:
        value = _parse_number(name)
        if value is not None:
            numbers[name] = value
    broken = [name for name, value in numbers.items() if value % 1]
    if len(numbers) == len(names) and (broken or len(numbers) > MOST_NUMBERS):
        raise DataError(
            f"{LABEL} must be the name of a class, not a number that measures something, as {min(broken or numbers)} "
            f"of {len(names)} different ones: SiloFL has no regression; make classes of ranges, as low and high, or "
            "name the classes with --labels"
        )
    if len(names) < 2:
        raise DataError(f"{LABEL} must name at least 2 classes, not {len(names)}; add files of another class")
    # Sick and sick, or 0 and 0.0, would be two classes that differ in nothing.
    key_of = {name: re.sub("[_-]", " ", name).casefold() for name in names} | numbers
    counts = Counter(key_of.values())
    twins = sorted(name for name in names if counts[key_of[name]] > 1)
    if twins:
        same = [name for name in twins if key_of[name] == key_of[twins[0]]]
        raise DataError(
            f"{LABEL} writes one class as {' and '.join(same)}; correct the tables, or name all with --labels, of this "
            f"one {same[0]}={same[1]}"
        )
    # Numbers are sorted as numbers: 10 comes after 9.
    return number_labels(sorted(names, key=lambda name: (numbers.get(name, 0), name)), first=0)


def _describe_strangers(site: str, names: Mapping[str, set[str]]) -> list[str]:
    """Return a caution where a site shares no class with those before it, whose classes may be called otherwise."""
    before = {other: labels for other, labels in names.items() if other != site and labels}
    own = names[site]
    if not own or not before or any(own & labels for labels in before.values()):
        return []
    other, labels = next(iter(before.items()))
    mapping = ",".join(f"{label}=WORD" for label in sorted(labels))
    return [
        f"{site} has no class of {other}: {shorten_names(own)} there, {shorten_names(labels)} here; where one is the "
        f"other, name its word at {site} with --labels {mapping}"
    ]


def _parse_number(text: str) -> float | None:
    try:
        # Some countries' Excel writes a decimal comma.
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _check_sites(plans: Mapping[str, SitePlan]) -> None:
    """Refuse a file, or a patient by table or headers, at two sites: one would learn from whom the other tests."""
    site_of: dict[tuple[str, str], str] = {}
    for site, plan in plans.items():
        for record in plan.list_records():
            keys = [(FILE, str(record["case"]))]
            if PATIENT in record:
                keys.append((PATIENT, key_patient(str(record[PATIENT]))))
            for column, name in keys:
                if site_of.setdefault((column, name), site) != site:
                    raise DataError(
                        f"{column} {name!r} is at two sites, {site_of[column, name]!r} and {site!r}; correct the "
                        f"column {SITE}, or give two patients two names"
                    )


def _plan_cases(
    site: str, cases: Sequence[Case], task: str, labels: Mapping[int, str], options: ImportOptions
) -> SitePlan:
    number_of = {name: number for number, name in labels.items()}
    records: list[JsonRecord] = []
    files: dict[str, Writer] = {}
    copies, notes = settle_headers(site, (case.image_files[0] for case in cases), options)
    for case in cases:
        numbers = sorted(number_of[name] for name in case.labels)
        image = f"images/{case.name}"
        path = case.image_files[0]
        files[image] = partial(copy_image, copies.get(path, path))
        records.append({"image": image, "label": numbers[0] if task == CLASSES else numbers})
    plan = SitePlan(task, dict(labels), {}, files, notes=tuple(notes))
    return plan_site(site, cases, records, plan, options)


def _cut_recordings(
    site: str, cases: Sequence[Case], plan: SitePlan, shapes: dict[str, tuple[int, int]], options: ImportOptions
) -> SitePlan:
    """Return a plan with a record for each window of its recordings; another plan as it is.

    Args:
        shapes: Gets the channels and samples of each recording's windows.
    """
    recordings = [case for case in cases if is_recording(case.image_files[0], options)]
    if not recordings:
        return plan
    if len(recordings) < len(cases):
        raise DataError(f"site {site!r} has recordings and images, as {recordings[0].name}; import each alone")
    faults = Faults()
    files: dict[str, Writer] = {}
    counts: dict[str, int] = {}
    for case in recordings:
        called = f"site {site!r}: {case.name}"
        with faults.collect_fault():
            windows = cut_windows(case.image_files[0], called, options)
            staged = options.scratch / site / f"{len(files)}.npz"
            staged.parent.mkdir(exist_ok=True)
            np.savez_compressed(staged, windows=windows)
            files[f"images/{case.name}.npz"] = partial(copy_image, staged)
            shapes[called] = windows.shape[1:]
            counts[case.name] = len(windows)
    faults.tell()
    parts: dict[str, list[JsonRecord]] = {}
    for part, records in plan.records.items():
        parts[part] = []
        for record in records:
            image = f"{record['image']}.npz"
            parts[part] += expand_windows(record | {"image": image}, counts[str(record["case"])])
    return replace(plan, records=parts, files=files)


LAYOUT = Layout(plan_table, ("window", "rate"))
