"""The plan of an import: a site's dataset.json and its files, before anything is written."""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from silofl.base.errors import DataError
from silofl.data.targets import IGNORE
from silofl.reading.access import read_bytes
from silofl.reading.patient_names import unify_patients
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.partition import split_by_patient

Writer = Callable[[Path], Any]
# A file's path at the site, and the function that writes it.
File = tuple[str, Writer]
JsonRecord = dict[str, Any]


UNKNOWN = "the set names no patients: one person may stand in training and test; split_unit is unknown"


@dataclass(frozen=True)
class SitePlan:
    """A site's dataset.json, and the functions that write its files, by path relative to dataset.json.

    `notes` are sentences for the person who imports; `channel_names` are the contrasts whose files each case lists;
    `ignored` is the number of what nobody annotated; `regions` are proposed for the study, name -> numbers of labels.
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

    def with_notes(self, notes: Iterable[str]) -> "SitePlan":
        """Return the plan with further sentences for the person who imports."""
        return replace(self, notes=(*self.notes, *notes))

    @property
    def dataset(self) -> dict[str, object]:
        """The content of dataset.json."""
        labels = {str(number): name for number, name in self.labels.items()}
        channels = {"channel_names": list(self.channel_names)} if self.channel_names else {}
        regions = {"regions": {name: list(own) for name, own in self.regions.items()}} if self.regions else {}
        more = regions | ({} if self.ignored is None else {IGNORE: self.ignored}) | channels
        return {"task": self.task, "labels": labels, "split_unit": self.split_unit, **more, **self.records}


def unify_spellings(site: str, patients: Sequence[str | None]) -> tuple[list[str | None], tuple[str, ...]]:
    """Return patients with one spelling each, and a sentence where there were several."""
    one = unify_patients(filter(None, patients))
    several = len({other for name, other in one.items() if name != other})
    notes = (
        f"{site}: patients that are written in several ways, which differ in capitals or a ^ at the end alone, count "
        f"as one each: {several}; if these are different persons, give them different names",
    )
    return [None if name is None else one[name] for name in patients], notes * bool(several)


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
    if len(part_of) < 2:
        raise DataError(
            f"site {site!r} must have at least 2 {units} to keep training and test apart, not {len(part_of)}; join it "
            "with another site or leave it out"
        )
    if "test" not in part_of.values():
        raise DataError(f"site {site!r} must have a share of its {units} for the test, not {options.test}; raise it")
    return part_of


def visible_folders(source: Path) -> list[Path]:
    """Return the folders directly in a folder, by name, without hidden ones."""
    return sorted(path for path in source.iterdir() if path.is_dir() and not path.name.startswith("."))


def visible_files(folder: Path) -> list[Path]:
    """Return the files in a folder and in the folders within it, in order, without hidden ones."""
    # Where a file is hidden, or lies in a hidden folder, a file system or a program has put it there.
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def copy_image(source: Path, target: Path) -> None:
    """Copy a file or a folder (a DICOM series)."""
    if source.is_dir():
        shutil.copytree(source, target)
        return
    target.write_bytes(read_bytes(source, source.name))


def number_labels(names: Iterable[str], first: int) -> dict[int, str]:
    """Number label names from `first`: 1 for segmentation, 0 for classification."""
    return dict(enumerate(names, start=first))
