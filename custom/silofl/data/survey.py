"""Survey the data of several sites: their task, their labels, and the form of their first images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from silofl.data.domain import Kind, kind_of
from silofl.data.header import read_header
from silofl.data.images import Image, read_image
from silofl.data.manifest import FILE_NAME, read_content
from silofl.data.records import Record, locate, parse_record
from silofl.errors import ConfigError, DataError

# Training images of each site that are read: enough to know kind, channels and size without reading all.
SAMPLES = 3


@dataclass(frozen=True)
class Sample:
    """One image of the survey: its record, its path and its decoded content."""

    record: Record
    path: Path
    image: Image


@dataclass(frozen=True)
class Survey:
    """The properties that the data of all sites share.

    Attributes:
        sites: Names of the sites.
        task: ``segmentation`` or ``classification``.
        labels: Number -> name.
        split_unit: What no two parts of a site's data share; ``unknown`` where one site does not know.
        samples: The first training images of each site.
    """

    sites: tuple[str, ...]
    task: str
    labels: dict[int, str]
    split_unit: str
    samples: tuple[Sample, ...]

    @property
    def kind(self) -> Kind:
        """The kind of the images.

        Raises:
            DataError: The images are of several kinds.
        """
        kinds: dict[Kind, str] = {kind_of(sample.image): sample.record.case for sample in self.samples}
        if len(kinds) > 1:
            (first, one), (second, other), *_ = kinds.items()
            raise DataError(
                f"the images must all be {first}, as case {one!r}, not {second}, as case {other!r}; make two studies"
            )
        return next(iter(kinds))

    @property
    def channels(self) -> int:
        """Channels that the study needs: 1 or 3 for pictures, otherwise as many as are stored.

        Raises:
            DataError: Sites differ in what cannot be converted.
        """
        stored = {len(sample.image.array): sample.record.case for sample in self.samples}
        if self.kind != "windows" and stored.keys() <= {1, 3, 4}:
            return 1 if stored.keys() == {1} else 3
        if len(stored) > 1:
            (first, one), (second, other), *_ = stored.items()
            raise DataError(
                f"case {one!r} must have the channels of case {other!r}, {second}, not {first}; bring them to one form"
            )
        return next(iter(stored))

    @property
    def modality(self) -> str | None:
        """DICOM's code of all images; None where they differ or one states none."""
        codes = {read_header(sample.path).modality for sample in self.samples}
        return codes.pop() if len(codes) == 1 else None

    @property
    def is_integer(self) -> bool:
        """Whether all images are stored as integers."""
        return all(sample.image.dtype_max is not None for sample in self.samples)


def survey(data: Path) -> Survey:
    """Survey one site's data folder, or all site folders in a folder.

    Raises:
        ConfigError: There is no site's data.
        DataError: A dataset.json or one of the first images is wrong, or sites differ in task, labels or split unit.
    """
    folders = [data] if (data / FILE_NAME).is_file() else sorted(path.parent for path in data.glob(f"*/{FILE_NAME}"))
    if not folders:
        raise ConfigError(f"--data must hold a dataset.json, or a folder with one for each site; {data} does not")
    found = [_surveyed(folder) for folder in folders]
    # A study of which one site does not know its patients is unknown; what the others keep apart stays apart.
    known = [part for part in found if part.split_unit != "unknown"]
    for sites, keys in ((found, ("task", "labels")), (known, ("split_unit",))):
        for other in sites[1:]:
            _check_agrees(other, sites[0], keys)
    unit = found[0].split_unit if len(known) == len(found) else "unknown"
    names, samples = (tuple(one for part in found for one in getattr(part, key)) for key in ("sites", "samples"))
    return Survey(names, found[0].task, found[0].labels, unit, samples)


def _surveyed(folder: Path) -> Survey:
    content, site = read_content(folder), folder.resolve().name
    try:
        task, labels = _declared(content)
        records = content.get("training")
        if not isinstance(records, list) or not records:
            raise DataError(f"{FILE_NAME} must list at least one case in training, not {records!r}")
        samples = tuple(
            _sample(folder, value, number, task, labels) for number, value in enumerate(records[:SAMPLES], 1)
        )
    except DataError as error:
        raise DataError(f"site {site!r}: {error}") from None
    return Survey((site,), task, labels, str(content.get("split_unit", "patient")), samples)


def _declared(content: Mapping[str, object]) -> tuple[str, dict[int, str]]:
    task, labels = content["task"], content["labels"]
    if task not in ("segmentation", "classification"):
        raise DataError(f"{FILE_NAME} must have the task segmentation or classification, not {task!r}; correct it")
    if not isinstance(labels, dict) or not all(key.isdecimal() for key in labels):
        raise DataError(f'{FILE_NAME} must have labels as {{"1": "nucleus"}}, not {labels!r}; correct it')
    return str(task), {int(number): str(name) for number, name in labels.items()}


def _sample(folder: Path, value: object, number: int, task: str, labels: dict[int, str]) -> Sample:
    record = parse_record(value, f"record {number} of training", task, labels)
    path = locate(folder, record.image, record.case)
    return Sample(record, path, read_image(path, record.image, record.index))


def _check_agrees(other: Survey, first: Survey, keys: Iterable[str]) -> None:
    for name in keys:
        wanted, found = getattr(first, name), getattr(other, name)
        if found != wanted:
            raise DataError(
                f"site {other.sites[0]!r} must have the {name} of site {first.sites[0]!r}, {wanted}, not {found}; "
                "bring the sites' dataset.json to one form"
            )
