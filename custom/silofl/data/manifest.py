"""dataset.json: the list of a site's cases by part, checked before any image is read."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from silofl.base.documents import build_table
from silofl.base.errors import DataError, Faults, error_text, quote_value
from silofl.base.naming import check_name, normalise_texts
from silofl.core.findings import list_findings, pack_findings
from silofl.data.contrasts import ImageFiles, list_missing_contrasts
from silofl.data.leakage import check_parts
from silofl.data.records import Record, check_keys, locate, parse_record
from silofl.data.targets import IGNORE
from silofl.reading.access import read_bytes
from silofl.study import Study
from silofl.study.data_settings import SplitUnit

FILE_NAME = "dataset.json"
PARTS = ("training", "validation", "test")
KEYS = ("task", "labels", "split_unit", "labels_annotated", IGNORE, "regions", "channel_names", *PARTS)
SPLIT_UNITS = get_args(SplitUnit)


@dataclass(frozen=True)
class Manifest:
    """A checked dataset.json.

    Attributes:
        folder: The folder of dataset.json.
        task: ``segmentation`` or ``classification``.
        labels: Number and name of every label of the study.
        stored_numbers: Number that the files have -> the study's number of the same name.
        split_unit: What no two parts share: ``patient``; or, where one patient is in several parts on purpose,
            ``recordings``, ``slices`` of a volume, or only ``examples``; ``unknown`` where the patients are not known.
        training: Cases to learn from, at least one.
        validation: Cases to choose a model by; may be empty, then no choice is made.
        test: Cases to measure on, at least one.
        labels_annotated: The labels that the label maps show, some or all of the study's.
        channel_names: The contrasts that the image files hold, in their order; some or all of the study's.
        places: Where each image and label file lies, by the path that dataset.json gives, links resolved.
        digest: SHA-256 of the file's bytes.
        ignored: The number in the label maps of what nobody annotated; None where all is annotated.
    """

    folder: Path
    task: str
    labels: dict[int, str]
    stored_numbers: dict[int, int]
    split_unit: str
    training: tuple[Record, ...]
    validation: tuple[Record, ...]
    test: tuple[Record, ...]
    labels_annotated: tuple[int, ...]
    channel_names: tuple[str, ...]
    places: dict[str, Path]
    digest: str
    ignored: int | None = None

    @property
    def parts(self) -> dict[str, tuple[Record, ...]]:
        """The records by the name of their part."""
        return {"training": self.training, "validation": self.validation, "test": self.test}

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of all parts."""
        return (*self.training, *self.validation, *self.test)

    def source(self, record: Record) -> ImageFiles:
        """Return the files of a record's image."""
        files = [None if path is None else (self.places[path], path) for path in record.images]
        return ImageFiles(tuple(files), self.channel_names, record.index)

    def missing(self, wanted: Iterable[str]) -> list[str]:
        """Return which contrasts of the study's some record lacks."""
        return list_missing_contrasts(wanted, map(self.source, self.records))

    def without(self, cases: Collection[str]) -> "Manifest":
        """Return it without some cases."""
        kept: dict[str, Any] = {}
        for part, records in self.parts.items():
            kept[part] = tuple(record for record in records if record.case not in cases)
        return replace(self, **kept)


def read_manifest(folder: Path, study: Study, needed: Sequence[str] | None = None) -> Manifest:
    """Read and check the dataset.json of a site's data folder.

    Args:
        study: The study whose task, labels and split unit the data must have.
        needed: The parts that must have a case; by default those that the study needs.

    Raises:
        DataError: The file is missing, unreadable or not JSON; it does not fit the study; a part that needs a case has
            none; a path leaves the folder or leads nowhere; two parts share a patient, a recording, a case or an image.
    """
    content, digest = _read_with_digest(folder)
    stored_numbers = _match_labels(content, study)
    annotated = _parse_annotated_labels(content, study, stored_numbers)
    parts = {part: _parse_records(content.get(part, []), part, study, stored_numbers) for part in PARTS}
    needed = study.needed_parts if needed is None else needed
    # Who needs no part needs a case in one of them: without any, the test data are named.
    if not any(parts.values()):
        needed = (*needed, "test")
    for part in needed:
        if not parts[part]:
            raise DataError(f"{FILE_NAME} has no case in {part}; list one there")
    manifest = Manifest(
        folder=folder,
        task=study.task,
        labels=dict(study.labels),
        stored_numbers=stored_numbers,
        split_unit=content.get("split_unit", "patient"),
        **parts,
        labels_annotated=annotated,
        channel_names=parse_channel_names(content),
        places=_locate_files(folder, chain.from_iterable(parts.values())),
        digest=digest,
        ignored=_parse_ignored(content, study, stored_numbers),
    )
    # All faults of one check are counted, up to a number.
    faults = Faults()
    for record in manifest.records:
        with faults.collect_fault():
            check_channels(record, manifest.channel_names)
    faults.tell()
    check_parts(parts, manifest.places, agree_split_unit(study, manifest.split_unit))
    return manifest


def agree_split_unit(study: Study, split_unit: str) -> str:
    """Return what a study and a dataset.json keep apart: the unit of both, or else patients, the stricter rule."""
    return split_unit if study.data.split_unit == split_unit else "patient"


def read_content(folder: Path) -> dict[str, Any]:
    """Read the dataset.json of a data folder as plain values, without comparing it with a study.

    Raises:
        DataError: The file is missing, unreadable or not JSON; a key is unknown, twice there or missing.
    """
    return _read_with_digest(folder)[0]


def read_digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's dataset.json.

    Raises:
        DataError: It cannot be read.
    """
    return _read_with_digest(folder)[1]


def _read_with_digest(folder: Path) -> tuple[dict[str, Any], str]:
    name = f"{FILE_NAME} of the data folder {folder.name!r}"
    if not (folder / FILE_NAME).exists():
        raise DataError(f"{name} does not exist; write it with silofl import, or correct data in site.yaml")
    raw = read_bytes(folder / FILE_NAME, name)
    try:
        # Editors on Windows begin a file with a byte order mark.
        content = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=build_table)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{FILE_NAME} is no JSON in UTF-8 with each key once ({error_text(error, 160)}); correct it"
        ) from None
    if not isinstance(content, dict):
        raise DataError(f"{FILE_NAME} holds a {type(content).__name__} in place of an object; start it with a brace")
    check_keys(content, FILE_NAME, ("task", "labels"), KEYS)
    unit = content.get("split_unit", "patient")
    if unit not in SPLIT_UNITS:
        listed = ", ".join(SPLIT_UNITS)
        raise DataError(f"split_unit of {FILE_NAME} must be one of {listed}, not {quote_value(unit)}; correct it")
    return content, hashlib.sha256(raw).hexdigest()


def _match_labels(content: Mapping[str, Any], study: Study) -> dict[int, int]:
    """Return the study's number of each label by that in the files; refuse data of other labels."""
    remedy = "give the site the data of this study, or ask the study lead"
    if content["task"] != study.task:
        raise DataError(
            f"task of {FILE_NAME} must be {study.task!r} as in the study, not {quote_value(content['task'])}; {remedy}"
        )
    _check_channel_names(parse_channel_names(content), study)
    number_of = {name: number for number, name in sorted(study.labels.items())}
    labels = normalise_texts(content["labels"])
    stored = {}
    if isinstance(labels, dict):
        for key, name in labels.items():
            if key.isdecimal() and isinstance(name, str) and name in number_of:
                stored[int(key)] = number_of[name]
    is_each_once = bool(stored) and len({*stored.values()}) == len(stored) == len(labels)
    # A site that drew some of the labels names these only. In a label map 0 is the background.
    is_drawn = study.task == "segmentation" and 0 not in stored
    if not is_each_once or not (is_drawn or len(stored) == len(number_of) == len({*stored} & {*study.labels})):
        wanted = {str(number): name for name, number in number_of.items()}
        raise DataError(
            f"labels of {FILE_NAME} must be {wanted} as in the study, not {quote_value(content['labels'])}; {remedy}"
        )
    return stored


def parse_channel_names(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the contrasts that the image files of a dataset.json hold, in their order.

    Raises:
        DataError: They are no list of different names.
    """
    names = content.get("channel_names", [])
    is_texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_texts or len({*names}) < len(names):
        raise DataError(
            f'channel_names of {FILE_NAME} must be a list of different names, as ["T1"], not {quote_value(names)}'
        )
    return tuple(names)


def _check_channel_names(names: tuple[str, ...], study: Study) -> None:
    wanted = study.data.channel_names
    if bool(names) != bool(wanted) or not {*names} <= {*wanted}:
        listed = ", ".join(wanted) or "none, because the study names none"
        raise DataError(
            f"channel_names of {FILE_NAME} must be some or all of the study's, {listed}, not "
            f"{', '.join(names) or 'none'}; name the contrasts that the files of each case hold, in their order"
        )


def check_channels(record: Record, names: tuple[str, ...]) -> None:
    """Refuse a record that names neither one image nor one for each contrast of its dataset.json.

    Raises:
        DataError: The number of its images is another one.
    """
    if len(record.images) not in (1, len(names)):
        raise DataError(
            f"case {record.case!r} lists {len(record.images)} images; give one, or one for each of channel_names of "
            f"{FILE_NAME} ({', '.join(names) or 'none'})"
        )


def _parse_annotated_labels(content: Mapping[str, Any], study: Study, stored: Mapping[int, int]) -> tuple[int, ...]:
    numbers = content.get("labels_annotated", sorted(stored))
    # JSON's true is an int in Python, and equals 1.
    is_labels = isinstance(numbers, list) and all(type(number) is int and number in stored for number in numbers)
    is_allowed = study.task == "segmentation" or "labels_annotated" not in content
    if not is_labels or not numbers or len({*numbers}) < len(numbers) or not is_allowed:
        listed = ", ".join(f"{number} ({study.labels[stored[number]]})" for number in sorted(stored))
        raise DataError(
            f"labels_annotated of {FILE_NAME} must be some of the study's labels, each once, {listed}, not "
            f"{quote_value(numbers)}; leave it out where all are annotated, and where cases have classes"
        )
    return tuple(sorted(stored[number] for number in numbers))


def _parse_ignored(content: Mapping[str, Any], study: Study, stored: Mapping[int, int]) -> int | None:
    number: int | None = content.get(IGNORE)
    is_free = type(number) is int and number > 0 and number not in stored
    if number is not None and not (is_free and study.task == "segmentation"):
        raise DataError(
            f"{IGNORE} of {FILE_NAME} must be the number of pixels that nobody annotated, above 0 and none of the "
            f"labels', of a segmentation, not {quote_value(number)}; correct it, or leave it out"
        )
    return number


def parse_regions(content: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the regions that a dataset.json proposes for the study: name -> labels, of which the study judges.

    Raises:
        DataError: They are no lists of numbers by name.
    """
    regions = content.get("regions", {})
    if not isinstance(regions, dict) or not all(map(_is_numbers, regions.values())):
        raise DataError(
            f'regions of {FILE_NAME} must be numbers of labels by name, as {{"whole": [1, 2]}}, not '
            f"{quote_value(regions)}; correct them"
        )
    remedy = f"rename it in {FILE_NAME}"
    return {check_name(name, "a region", DataError, remedy): tuple(labels) for name, labels in regions.items()}


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value)


def _parse_records(values: object, part: str, study: Study, stored: Mapping[int, int]) -> tuple[Record, ...]:
    if not isinstance(values, list):
        raise DataError(f"{part} of {FILE_NAME} must be a list of cases, not {quote_value(values)}; put it in brackets")
    labels = {number: study.labels[of_study] for number, of_study in stored.items()}
    records = []
    faults = Faults()
    for number, value in enumerate(values, start=1):
        with faults.collect_fault():
            record = parse_record(value, f"record {number} of {part}", study.task, labels)
            if study.task == "classification":
                record = replace(record, label=stored[int(record.label)])
            elif study.task == "multilabel":
                findings = list_findings(int(record.label))
                record = replace(record, label=pack_findings([stored[finding] for finding in findings]))
            records.append(record)
    faults.tell()
    return tuple(records)


def _locate_files(folder: Path, records: Iterable[Record]) -> dict[str, Path]:
    root = folder.resolve()
    places: dict[str, Path] = {}
    # Most files lie in a few folders, of which each is resolved once.
    folders: dict[Path, Path] = {}
    faults = Faults()
    for record in records:
        for file in (*record.files, record.label):
            # A class is a number, and no file.
            if isinstance(file, str) and file not in places:
                with faults.collect_fault():
                    places[file] = locate(root, file, record.case, folders)
    faults.tell()
    return places
