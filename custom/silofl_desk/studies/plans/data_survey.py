"""Survey the data of several sites: their task, their labels, and the form of their first images."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from silofl.base.errors import ConfigError, DataError, Faults
from silofl.data.contrasts import ImageFiles, check_contrasts, list_missing_contrasts, read_source
from silofl.data.data_profile import Kind, image_kind
from silofl.data.inventory import read_task_and_labels
from silofl.data.manifest import FILE_NAME, check_channels, parse_channel_names, parse_regions, read_content
from silofl.data.records import Record, locate, parse_record
from silofl.reading.header import read_header
from silofl.reading.image import Image
from silofl.reading.images import read_label
from silofl.study.data_settings import DataSettings

# So many training images of each site are read: enough to know kind, channels and size without reading all.
SAMPLES = 3
BYTE = 255


@dataclass(frozen=True)
class FirstImage:
    """One image of the survey: its site, its record, its files, its decoded content and its mask's numbers.

    `label_sizes` is the pixels of each label in the mask of a picture; empty of other images.
    """

    site: str
    record: Record
    source: ImageFiles
    image: Image
    label_sizes: Mapping[int, int]


@dataclass(frozen=True)
class Survey:
    """The properties that the data of all sites share.

    Attributes:
        sites: Names of the sites.
        task: ``segmentation`` or ``classification``.
        labels: Number -> name.
        channel_names: The contrasts that some site has; none where no site names them.
        regions: The regions that the data propose for the study, name -> labels.
        split_unit: What no two parts of a site's data share; ``unknown`` where one site does not know.
        samples: The first training images of each site.
        class_counts: Classification: number of the class -> training cases of all sites.
        has_validation: Whether any site has validation data.
    """

    sites: tuple[str, ...]
    task: str
    labels: dict[int, str]
    regions: dict[str, tuple[int, ...]]
    channel_names: tuple[str, ...]
    split_unit: str
    samples: tuple[FirstImage, ...]
    class_counts: Counter[int]
    has_validation: bool

    @property
    def most_frequent(self) -> tuple[str, float] | None:
        """The class with most training cases, and its share of them; None of other tasks."""
        if not self.class_counts:
            return None
        number, count = self.class_counts.most_common(1)[0]
        return self.labels[number], count / self.class_counts.total()

    @property
    def kind(self) -> Kind:
        """The kind of the images.

        Raises:
            DataError: The images are of several kinds.
        """
        kinds: dict[Kind, str] = {image_kind(sample.image): sample.record.case for sample in self.samples}
        if len(kinds) > 1:
            raise DataError(f"The images are of several kinds: {_list_with_cases(kinds)}. Make a study of each.")
        return next(iter(kinds))

    @property
    def channels(self) -> int:
        """Channels that the study needs: those with names, else 1 or 3 for pictures, otherwise as many as are stored.

        Raises:
            DataError: Sites differ in what cannot be converted.
        """
        if self.channel_names:
            return len(self.channel_names)
        stored = {len(sample.image.array): sample.record.case for sample in self.samples}
        # Pictures are converted when they are read: grey ones to colour where any has it, and alpha is dropped.
        if self.kind != "windows" and stored.keys() <= {1, 3, 4}:
            return 1 if stored.keys() == {1} else 3
        if len(stored) > 1:
            numbers = _list_with_cases(stored)
            raise DataError(f"The images have different numbers of channels: {numbers}. Bring them to one form.")
        return next(iter(stored))

    @property
    def missing(self) -> list[str]:
        """The contrasts that some of the first images lack."""
        return list_missing_contrasts(self.channel_names, (sample.source for sample in self.samples))

    @property
    def is_resampled(self) -> bool:
        """Whether contrasts of one of the first cases lie on different grids."""
        return any(sample.image.is_resampled for sample in self.samples)

    @property
    def modality(self) -> str | None:
        """DICOM's code of all files; None where they differ or one states none."""
        codes: set[str | None] = set()
        for sample in self.samples:
            # A contrast that a case lacks has no file.
            codes |= {read_header(file[0]).modality for file in sample.source.files if file is not None}
        return codes.pop() if len(codes) == 1 else None

    @property
    def has_bytes(self) -> bool:
        """Whether all images are stored as whole numbers of 8 bits."""
        return all(sample.image.dtype_max == BYTE for sample in self.samples)


def _list_with_cases(cases: Mapping[Any, str]) -> str:
    """List values, each with a case that has it."""
    return ", ".join(f"{value} (case {case!r})" for value, case in cases.items())


def survey_sites(data: Path) -> Survey:
    """Survey one site's data folder, or all site folders in a folder.

    Raises:
        ConfigError: There is no site's data.
        DataError: A dataset.json or one of the first images is wrong, or sites differ in task, labels or split unit, or
            in the capitals of a contrast's name.
    """
    surveys: dict[str, Survey] = {}
    faults = Faults()
    for folder in list_site_folders(data):
        with faults.collect_fault():
            surveys[folder.resolve().name] = _survey_site(folder)
    faults.tell()
    check_sites_agree(surveys, ("task", "labels", "regions"))
    # A study of which one site does not know its patients is unknown; what the others keep apart stays apart.
    with_unit = {site: survey for site, survey in surveys.items() if survey.split_unit != "unknown"}
    check_sites_agree(with_unit, ("split_unit",))
    parts = list(surveys.values())
    contrasts = tuple(dict.fromkeys(chain.from_iterable(part.channel_names for part in parts)))
    counts: Counter[int] = Counter()
    for site, part in surveys.items():
        # Without names nobody knows which channel of the others an image is.
        if contrasts and not part.channel_names:
            raise DataError(f"site {site!r} has no channel_names in {FILE_NAME}, which other sites have; add them")
        _check_spelling(part, contrasts)
        counts.update(part.class_counts)
    return replace(
        parts[0],
        sites=tuple(surveys),
        channel_names=contrasts,
        split_unit=parts[0].split_unit if len(with_unit) == len(surveys) else "unknown",
        samples=tuple(chain.from_iterable(part.samples for part in parts)),
        class_counts=counts,
        has_validation=any(part.has_validation for part in parts),
    )


def list_site_folders(data: Path) -> list[Path]:
    """Return a site's data folder, or all site folders in a folder.

    Raises:
        ConfigError: There is none.
    """
    folders = [data] if (data / FILE_NAME).is_file() else sorted(path.parent for path in data.glob(f"*/{FILE_NAME}"))
    if not folders:
        raise ConfigError(f"{data} holds no dataset.json, nor folders with one. Write them with silofl import.")
    return folders


def _survey_site(folder: Path) -> Survey:
    content = read_content(folder)
    site = folder.resolve().name
    try:
        task, labels = read_task_and_labels(content)
        records = content.get("training")
        if not isinstance(records, list) or not records:
            raise DataError(f"training of {FILE_NAME} must be a list of at least one case, not {records!r}")
        names = parse_channel_names(content)
        regions = parse_regions(content)
        check_contrasts(names, f"channel_names in {FILE_NAME}")
        # Contrasts on different grids are read too: whether the study resamples follows from them.
        settings = DataSettings(channels=max(1, len(names)), channel_names=names, resample=bool(names))
        samples = []
        faults = Faults()
        for number, value in enumerate(records[:SAMPLES], 1):
            with faults.collect_fault():
                record = parse_record(value, f"record {number} of training", task, labels)
                samples.append(_read_sample(folder, record, settings))
        faults.tell()
    except (ConfigError, DataError) as error:
        # The sentences name files as dataset.json does, which all sites have.
        raise DataError(f"site {site!r}: {error}") from None
    counts: Counter[int] = Counter()
    if task == "classification":
        for value in records:
            label = value.get("label") if isinstance(value, dict) else None
            # A record with a wrong label is refused when the data are read for a training.
            if isinstance(label, int) and label in labels:
                counts[label] += 1
    return Survey(
        sites=(site,),
        task=task,
        labels=labels,
        regions=regions,
        channel_names=names,
        split_unit=str(content.get("split_unit", "patient")),
        samples=tuple(samples),
        class_counts=counts,
        has_validation=bool(content.get("validation")),
    )


def _read_sample(folder: Path, record: Record, settings: DataSettings) -> FirstImage:
    files = [None if path is None else (locate(folder.resolve(), path, record.case), path) for path in record.images]
    check_channels(record, settings.channel_names)
    source = ImageFiles(tuple(files), settings.channel_names, record.index)
    image = read_source(source, settings)
    sizes: dict[int, int] = {}
    if isinstance(record.label, str) and image_kind(image) == "pictures":
        drawn = read_label(locate(folder.resolve(), record.label, record.case), record.label, record.index).array
        numbers, counts = np.unique(drawn[drawn > 0], return_counts=True)
        sizes = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    return FirstImage(folder.resolve().name, record, source, image, sizes)


def _check_spelling(part: Survey, contrasts: Iterable[str]) -> None:
    """Refuse a contrast whose name differs in capitals alone: it would be another one, of which others see zeros."""
    spellings: dict[str, str] = {}
    for name in contrasts:
        earlier = spellings.setdefault(name.casefold(), name)
        if earlier != name and name in part.channel_names:
            raise DataError(
                f"site {part.sites[0]!r} writes the contrast {name!r}, and another site {earlier!r}; write it alike, "
                f"or name it otherwise, in channel_names of {FILE_NAME}"
            )


def check_sites_agree(sites: Mapping[str, object], keys: Iterable[str]) -> None:
    """Refuse sites that are to be taken together and differ.

    Args:
        sites: Site -> what its dataset.json says, with attributes.
        keys: The attributes that all have alike.

    Raises:
        DataError: Two sites differ in one.
    """
    for site, content in sites.items():
        expected_site, expected = next(iter(sites.items()))
        for key in keys:
            expected_value = getattr(expected, key)
            value = getattr(content, key)
            if value != expected_value:
                raise DataError(
                    f"sites {expected_site!r} and {site!r} differ in {key}: {expected_value!r} and {value!r}; bring "
                    f"their {FILE_NAME} to one form"
                )
