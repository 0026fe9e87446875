"""Survey the data of several sites: their task, their labels, and the form of their first images."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from silofl.base.errors import ConfigError, DataError, Faults
from silofl.data.contrasts import ImageFiles, check_contrasts, list_missing_contrasts, read_source
from silofl.data.data_profile import Kind, image_kind
from silofl.data.inventory import read_task_and_labels
from silofl.data.manifest import FILE_NAME, check_channels, parse_channel_names, parse_regions, read_content
from silofl.data.records import Record, locate, parse_record
from silofl.reading.header import read_header
from silofl.reading.image import Image
from silofl.study.data_settings import DataSettings

# Training images of each site that are read: enough to know kind, channels and size without reading all.
SAMPLES = 3
BYTE = 255


@dataclass(frozen=True)
class FirstImage:
    """One image of the survey: its site, its record, its files and its decoded content."""

    site: str
    record: Record
    source: ImageFiles
    image: Image


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
        ((number, most),) = self.class_counts.most_common(1) or ((None, 0),)
        return None if number is None else (self.labels[number], most / self.class_counts.total())

    @property
    def kind(self) -> Kind:
        """The kind of the images.

        Raises:
            DataError: The images are of several kinds.
        """
        kinds: dict[Kind, str] = {image_kind(sample.image): sample.record.case for sample in self.samples}
        if len(kinds) > 1:
            (first, one), (second, other), *_ = kinds.items()
            raise DataError(
                f"the images must all be {first}, as case {one!r}, not {second}, as case {other!r}; make two studies"
            )
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
            (first, one), (second, other), *_ = stored.items()
            raise DataError(
                f"case {one!r} must have the channels of case {other!r}, {second}, not {first}; bring them to one form"
            )
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
        files = [file for sample in self.samples for file in sample.source.files if file is not None]
        codes = {read_header(path).modality for path, _ in files}
        return codes.pop() if len(codes) == 1 else None

    @property
    def has_bytes(self) -> bool:
        """Whether all images are stored as whole numbers of 8 bits."""
        return all(sample.image.dtype_max == BYTE for sample in self.samples)


def survey_sites(data: Path) -> Survey:
    """Survey one site's data folder, or all site folders in a folder.

    Raises:
        ConfigError: There is no site's data.
        DataError: A dataset.json or one of the first images is wrong, or sites differ in task, labels or split unit, or
            in the capitals of a contrast's name.
    """
    found, faults = [], Faults()
    for folder in list_site_folders(data, "--data"):
        with faults.collect_fault():
            found.append(_survey_site(folder))
    faults.tell()
    # A study of which one site does not know its patients is unknown; what the others keep apart stays apart.
    known = [part for part in found if part.split_unit != "unknown"]
    for sites, keys in ((found, ("task", "labels", "regions")), (known, ("split_unit",))):
        for other in sites[1:]:
            _check_agrees(other, sites[0], keys)
    contrasts = tuple(dict.fromkeys(name for part in found for name in part.channel_names))
    for part in found:
        if contrasts and not part.channel_names:
            raise DataError(f"site {part.sites[0]!r} must have channel_names in {FILE_NAME}, as other sites; add them")
        _check_spelling(part, contrasts)
    unit = found[0].split_unit if len(known) == len(found) else "unknown"
    names, samples = (tuple(one for part in found for one in getattr(part, key)) for key in ("sites", "samples"))
    counts = sum((part.class_counts for part in found), Counter())
    first = found[0]
    is_validated = any(part.has_validation for part in found)
    return Survey(names, first.task, first.labels, first.regions, contrasts, unit, samples, counts, is_validated)


def list_site_folders(data: Path, argument: str) -> list[Path]:
    """Return a site's data folder, or all site folders in a folder.

    Raises:
        ConfigError: There is none.
    """
    folders = [data] if (data / FILE_NAME).is_file() else sorted(path.parent for path in data.glob(f"*/{FILE_NAME}"))
    if not folders:
        raise ConfigError(
            f"{argument} must hold a dataset.json, or a folder with one for each site; {data} does not: silofl import "
            "writes them"
        )
    return folders


def _survey_site(folder: Path) -> Survey:
    content, site = read_content(folder), folder.resolve().name
    try:
        task, labels = read_task_and_labels(content)
        records = content.get("training")
        if not isinstance(records, list) or not records:
            raise DataError(f"{FILE_NAME} must list at least one case in training, not {records!r}")
        names, regions = parse_channel_names(content), parse_regions(content)
        check_contrasts(names, f"channel_names in {FILE_NAME}")
        settings = DataSettings(channels=max(1, len(names)), channel_names=names, resample=bool(names))
        samples, faults = [], Faults()
        for number, value in enumerate(records[:SAMPLES], 1):
            with faults.collect_fault():
                record = parse_record(value, f"record {number} of training", task, labels)
                samples.append(_read_sample(folder, record, settings))
        faults.tell()
    except (ConfigError, DataError) as error:
        raise DataError(f"site {site!r}: {error}") from None
    unit = str(content.get("split_unit", "patient"))
    classes = (one.get("label") for one in records if isinstance(one, dict) and task == "classification")
    counts = Counter(number for number in classes if isinstance(number, int) and number in labels)
    is_validated = bool(content.get("validation"))
    return Survey((site,), task, labels, regions, names, unit, tuple(samples), counts, is_validated)


def _read_sample(folder: Path, record: Record, settings: DataSettings) -> FirstImage:
    files = [None if path is None else (locate(folder.resolve(), path, record.case), path) for path in record.images]
    check_channels(record, settings.channel_names)
    source = ImageFiles(tuple(files), settings.channel_names, record.index)
    return FirstImage(folder.resolve().name, record, source, read_source(source, settings))


def _check_spelling(part: Survey, contrasts: Iterable[str]) -> None:
    """Refuse a contrast whose name differs in capitals alone: it would be another one, of which others see zeros."""
    first: dict[str, str] = {}
    for name in contrasts:
        known = first.setdefault(name.casefold(), name)
        if known != name and name in part.channel_names:
            raise DataError(
                f"site {part.sites[0]!r} must write the contrast {name!r} as another site does, {known!r}, or name it "
                f"otherwise; correct channel_names in {FILE_NAME}"
            )


def _check_agrees(other: Survey, first: Survey, keys: Iterable[str]) -> None:
    for name in keys:
        wanted, found = getattr(first, name), getattr(other, name)
        if found != wanted:
            raise DataError(
                f"site {other.sites[0]!r} must have the {name} of site {first.sites[0]!r}, {wanted}, not {found}; "
                "bring the sites' dataset.json to one form"
            )
