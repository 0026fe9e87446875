"""The table of a site's cases, the plan of its dataset.json and files before anything is written, and what plans it."""

import inspect
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from silofl.base.errors import ConfigError, DataError
from silofl.data.manifest import PARTS
from silofl.data.targets import IGNORE
from silofl.reading.access import read_bytes
from silofl.reading.patient_ids import read_own_id
from silofl.reading.patient_names import key_patient, unify_patients
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.partition import split_by_patient

Writer = Callable[[Path], Any]
# A file's path at the site, and the function that writes it.
File = tuple[str, Writer]
JsonRecord = dict[str, Any]
# Field of `ImportOptions` that not every layout uses -> its name on the command line.
NAMES = {
    "label_values": "values in labels",
    "image_pattern": "image-pattern",
    "mask_pattern": "mask-pattern",
    "mask_threshold": "mask-threshold",
    "resample_masks": "resample-masks",
    "skip": "skip",
    "window": "window",
    "rate": "rate",
    "arrangement": "layout",
}


@dataclass(frozen=True)
class Case:
    """A row of a site's table of cases.

    Attributes:
        name: The name that no other case of the site has.
        images: Its image, or one for each contrast, None where there is none.
        masks: Its mask, or several that are joined; none in a classification.
        labels: The name of its class, or of its findings; in a segmentation the label of each mask that has one alone.
        patient: Whose it is; None where nobody has said it.
        part: Where it belongs; None where the import decides.
    """

    name: str
    images: tuple[Path | None, ...]
    masks: tuple[Path, ...] = ()
    labels: tuple[str, ...] = ()
    patient: str | None = None
    part: str | None = None

    @property
    def image_files(self) -> list[Path]:
        """The images that are there."""
        return [path for path in self.images if path is not None]


@dataclass(frozen=True)
class SitePlan:
    """A site's dataset.json, and the functions that write its files, by path relative to dataset.json.

    `masks` are written and checked before `files`; `notes` are sentences for the person who imports; `channel_names`
    are the contrasts whose files each case lists; `ignored` is the number of what nobody annotated; `regions` are
    proposed for the study, name -> numbers of labels.
    """

    task: str
    labels: dict[int, str]
    records: dict[str, list[JsonRecord]]
    files: dict[str, Writer]
    split_unit: str = "patient"
    notes: tuple[str, ...] = ()
    channel_names: tuple[str, ...] = ()
    ignored: int | None = None
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    masks: Mapping[str, Writer] = field(default_factory=dict)

    def list_records(self) -> list[JsonRecord]:
        """Return the records of all parts."""
        return [record for part in self.records.values() for record in part]

    def describe(self) -> dict[str, object]:
        """Return the content of dataset.json."""
        content: dict[str, object] = {"task": self.task}
        content["labels"] = {str(number): name for number, name in self.labels.items()}
        content["split_unit"] = self.split_unit
        if self.regions:
            content["regions"] = {name: list(numbers) for name, numbers in self.regions.items()}
        if self.ignored is not None:
            content[IGNORE] = self.ignored
        if self.channel_names:
            content["channel_names"] = list(self.channel_names)
        return content | self.records


@dataclass(frozen=True)
class Layout:
    """The function that plans an import, the fields of `NAMES` that it uses, and one that lists what is there."""

    plan: Callable[[Path, ImportOptions], dict[str, SitePlan]]
    uses: tuple[str, ...] = ()
    list_content: Callable[[Path], list[dict[str, str]]] | None = None

    def check(self, layout: str, options: ImportOptions) -> None:
        """Refuse an option that means nothing to the layout.

        Raises:
            ConfigError: Such an option is given.
        """
        for option, name in NAMES.items():
            if getattr(options, option) and option not in self.uses:
                raise ConfigError(f"Layout {layout!r} does not use {name}. Leave it out.")

    def describe(self) -> str:
        """Return what the files are, where to get them, and what SOURCE must hold: the text at the head of its file."""
        text = inspect.getdoc(sys.modules[self.plan.__module__]) or ""
        return text.replace("::\n", ":\n")


def plan_site(
    site: str, cases: Sequence[Case], records: Sequence[JsonRecord], plan: SitePlan, options: ImportOptions
) -> SitePlan:
    """Put the cases of a site into training, validation and test.

    They are split by patient, or each by itself where one's patient is not known.

    Args:
        records: The image and the label of each case, as dataset.json has them.
        plan: The site's plan without its records.

    Raises:
        DataError: The site has fewer than two patients, or its table gives a patient to two parts.
    """
    patients, notes = _find_patients(site, cases)
    units = patients or [case.name for case in cases]
    classes = _list_classes(units, records) if plan.task == "classification" else None
    part_of = _read_parts(site, cases, units)
    if not part_of:
        part_of = split_patients(site, units, options, "patients" if patients else "images", classes)
    # A table may give training and test alone: the validation is then taken out of the training.
    elif "validation" not in part_of.values():
        rest = [unit for unit, part in part_of.items() if part == "training"]
        part_of |= split_by_patient(rest, 0.0, options.validation, options.seed, classes)
    parts: dict[str, list[JsonRecord]] = {part: [] for part in PARTS}
    for case, unit, record in zip(cases, units, records, strict=True):
        patient = {"patient": unit} if patients else {}
        parts[part_of[unit]].append(record | patient | {"case": case.name})
    split_unit = "patient" if patients else "unknown"
    return replace(plan, records=parts, split_unit=split_unit, notes=(*notes, *plan.notes))


def _find_patients(site: str, cases: Sequence[Case]) -> tuple[list[str], list[str]]:
    """Return the patient of each case in one spelling, none where one is not known, and what to say of them."""
    patients = [case.patient for case in cases]
    notes = []
    if not all(patients):
        patients = [read_own_id(case.image_files) for case in cases]
        if not can_tell_apart(patients):
            # One case without a patient makes all unknown: nobody could say whom the split keeps apart.
            return [], []
        notes.append(f"{site}: the patients are those of the DICOM headers (PatientID)")
    names = [str(patient) for patient in patients]
    spelling = unify_patients(names)
    respelled = {spelling[name] for name in names if spelling[name] != name}
    if respelled:
        notes.append(
            f"{site}: patients that are written in several ways, which differ in capitals or a ^ or .0 at the end "
            f"alone, count as one each: {len(respelled)}; if these are different persons, give them different names"
        )
    numbers: dict[str, set[str]] = {}
    for name in spelling.values():
        if name.isdecimal():
            numbers.setdefault(name.lstrip("0"), set()).add(name)
    for names_of_one in numbers.values():
        if len(names_of_one) > 1:
            notes.append(
                f"{site}: {' and '.join(sorted(names_of_one))} differ in zeros at the beginning alone, and count as "
                "two patients; if they are one, write it in one way"
            )
    return [spelling[name] for name in names], notes


def can_tell_apart(patients: Sequence[str | None]) -> bool:
    """Return whether DICOM's headers name a patient of each image, and not one for all, as archives write it."""
    return None not in patients and len({key_patient(str(name)) for name in patients}) > 1


def _list_classes(units: Sequence[str], records: Sequence[JsonRecord]) -> dict[str, int] | None:
    """Return the class of each patient; None where one has several."""
    classes: dict[str, int] = {}
    for unit, record in zip(units, records, strict=True):
        if classes.setdefault(unit, record["label"]) != record["label"]:
            # A patient of two classes cannot be counted to one: the split does without classes.
            return None
    return classes


def _read_parts(site: str, cases: Sequence[Case], units: Sequence[str]) -> dict[str, str]:
    """Return the part of each patient, or image, that the table gives; none without a column of parts."""
    part_of: dict[str, str] = {}
    for case, unit in zip(cases, units, strict=True):
        if case.part is not None and part_of.setdefault(unit, case.part) != case.part:
            raise DataError(f"site {site!r} has {unit} in {part_of[unit]} and {case.part}; correct the column part")
    for part in ("training", "test"):
        if part_of and part not in part_of.values():
            raise DataError(f"site {site!r} has no row for the {part}; name some in the column part")
    return part_of


def split_patients(
    site: str,
    patients: Iterable[str],
    options: ImportOptions,
    units: str = "patients",
    classes: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Return a site's part by patient, with training and test kept apart.

    Args:
        patients: The patient of each example, or another unit that must stay in one part.
        units: Name of the units in errors.
        classes: Patient -> class, where each has one.

    Raises:
        DataError: The site has fewer than two patients, or no share is for the test.
    """
    part_of = split_by_patient(list(patients), options.test, options.validation, options.seed, classes)
    # One patient in training and test at once would make results look too good.
    if len(part_of) < 2:
        raise DataError(
            f"site {site!r} has {len(part_of)} {units}, fewer than the 2 that keep training and test apart; join it "
            "with another site or leave it out"
        )
    # Without a test nobody would learn how good the model is.
    if "test" not in part_of.values():
        raise DataError(
            f"test must be above 0 for a share of the {units} of site {site!r}, not {options.test}; raise it"
        )
    return part_of


def copy_image(source: Path, target: Path) -> None:
    """Copy a file or a folder (a DICOM series)."""
    if source.is_dir():
        shutil.copytree(source, target)
        return
    # A file that cannot be read is told by its name, unlike a disk that is full.
    target.write_bytes(read_bytes(source, source.name))


def number_labels(names: Iterable[str], first: int) -> dict[int, str]:
    """Number label names from `first`: 1 for segmentation, 0 for classification."""
    return dict(enumerate(names, start=first))
