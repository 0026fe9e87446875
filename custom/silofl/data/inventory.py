"""The inventory of a site: what its data hold, before any study; no number is of fewer patients than the site allows.

Counts are of patients; whom dataset.json does not name counts as a patient per case, and for no floor.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, Strict

from silofl.base.errors import ConfigError, DataError, one_line
from silofl.base.naming import check_name
from silofl.base.settings import Section, parse
from silofl.core.few import find_few
from silofl.core.findings import unpack_findings
from silofl.data.contrasts import check_contrasts, read_source
from silofl.data.domain import image_kind
from silofl.data.manifest import FILE_NAME, Manifest, parse_channel_names, read_content, read_manifest
from silofl.data.preparation import build_requests, read_label_map
from silofl.data.progress import track_progress
from silofl.data.records import Record
from silofl.reading.decoder import decode_ahead
from silofl.reading.header import read_dicom_element, read_header
from silofl.reading.image import Image
from silofl.study import Study
from silofl.study.sections import FITTING

# Of what leaves: more digits could tell a patient.
DIGITS = 3
LONGEST_NAME, MOST_NAMES = 100, 200
COLOURS, BRIGHTNESS = ("red", "green", "blue"), "brightness"
# All patients of a segmentation, and of findings, are one group; of classes each is one.
ALL = ""
NOT_STATED = "not stated"

Number = Annotated[float, Strict(), Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Size = Annotated[float, Strict(), Field(gt=0, le=1e6, allow_inf_nan=False)]
Patients = Annotated[int, Strict(), Field(ge=0, le=10**7)]
Named = Annotated[str, Strict(), Field(max_length=LONGEST_NAME), AfterValidator(one_line)]
# None is withheld.
Counts = Annotated[dict[Named, Patients | None], Field(max_length=MOST_NAMES)]


class Look(Section):
    """A measure of the images of a group of patients.

    Attributes:
        patients: How many there are.
        mean: Mean over them.
        deviation: Standard deviation between them.
    """

    patients: Annotated[Patients, Field(ge=1)]
    mean: Number
    deviation: Annotated[Number, Field(ge=0)]


class Inventory(Section):
    """What a site's data hold.

    Attributes:
        task: What they are labelled for.
        kind: What the images are.
        unit: What counts: patients, or cases where some patients are not known.
        patients: All of them.
        cases: All of them.
        labels: Label or class -> patients who have it; None where fewer than `least` do: withheld.
        contrasts: Name -> patients who have it; none where the images have no names.
        shape: Median size by axis as it is stored.
        spacing_mm: Median size of a voxel by axis; None where the files state none.
        vendors: Manufacturer of the scanner, by DICOM files -> patients; none where the files name none.
        looks: Class, or nothing for all -> colour, brightness or contrast -> its mean and deviation.
        least: Patients that every number must be of.
    """

    task: Literal["segmentation", "classification", "multilabel"]
    kind: Literal["pictures", "volumes", "windows"]
    unit: Literal["patients", "cases"]
    patients: Patients
    cases: Patients
    labels: Counts
    contrasts: Counts
    shape: Annotated[tuple[Size, ...], Field(min_length=2, max_length=3)]
    spacing_mm: Annotated[tuple[Size, Size, Size] | None, Field()] = None
    vendors: Counts
    looks: Annotated[dict[Named, Annotated[dict[Named, Look], Field(max_length=64)]], Field(max_length=MOST_NAMES)]
    least: Patients


@dataclass(frozen=True)
class _Measures:
    """The measures of one case: `looks` are NaN where a contrast is missing, `labels` the names that it has."""

    patient: tuple[bool, str]
    group: str
    looks: NDArray[np.float64]
    labels: frozenset[str]
    contrasts: tuple[str, ...]
    shape: tuple[int, ...]
    spacing_mm: NDArray[np.float64] | None
    vendor: tuple[str]


def take_inventory(folder: Path, min_patients: int, has_progress: bool = True) -> Inventory | None:
    """Return the inventory of a site's data folder, whose images are read once.

    Args:
        min_patients: Patients, known by name, that every number must be of.
        has_progress: Whether a terminal shows a progress bar.

    Returns:
        None where fewer patients are known than that.

    Raises:
        DataError: dataset.json is wrong, a file cannot be read, or the images are of several kinds.
    """
    study = build_reading_study(folder)
    manifest = read_manifest(folder, study, needed=())
    records = [record for part in manifest.parts.values() for record in part]
    found, names = [], set[tuple[str, tuple[str, ...]]]()
    with decode_ahead(build_requests(records, manifest)):
        for record in track_progress(records, len(records), f"reading {folder.name}", has_progress):
            try:
                image = read_source(manifest.source(record), study.data)
                measured = _measure_case(record, image, manifest, study)
            except DataError as error:
                raise DataError(f"case {record.case!r}: {error}") from None
            found.append(measured)
            names.add((image_kind(image), tuple(_name_looks(image, study))))
    if len({kind for kind, _ in names}) > 1:
        raise DataError(f"the images must all be of one kind, not {' and '.join(sorted({k for k, _ in names}))}")
    kind, looks = sorted(names)[-1]
    return _sum_up(found, kind, looks, manifest, min_patients)


def build_reading_study(folder: Path) -> Study:
    """Return the study by which a site's data are read as they are, whatever others have.

    Raises:
        DataError: dataset.json has no task, labels or contrasts that a study can have.
    """
    content = read_content(folder)
    try:
        task, labels = read_task_and_labels(content)
        names = parse_channel_names(content)
        check_contrasts(names, "channel_names in dataset.json")
        values = {"name": "survey", "task": task, "labels": labels, "rounds": 1, "guard": False}
        values |= {"metric": FITTING[task]["metric"][0], "algorithm": {"name": "local"}}
        values["model"] = {"name": FITTING[task]["model.name"][0]}
        values["training"] = {"loss": FITTING[task]["training.loss"][0]}
        values["data"] = {"channels": max(1, len(names)), "channel_names": names, "resample": bool(names)}
        values["data"] |= {"split_unit": content.get("split_unit", "patient")}
        return parse(Study, values, "dataset.json")
    except ConfigError as error:
        raise DataError(str(error)) from None


def _measure_case(record: Record, image: Image, manifest: Manifest, study: Study) -> _Measures:
    source, label = manifest.source(record), read_label_map(record, manifest, image, study)
    names = {0: None} | study.labels if label is not None else study.labels
    if label is not None:
        numbers = np.unique(label).tolist()
    elif study.is_multilabel:
        numbers = np.flatnonzero(unpack_findings(np.array([record.label]), 1 + max(study.labels))[0]).tolist()
    else:
        numbers = [record.label]
    files = [path for path, _ in filter(None, source.files)]
    is_sized = image.affine is not None and all(read_header(path).has_spacing for path in files)
    return _Measures(
        patient=(record.patient is not None, record.case if record.patient is None else record.patient),
        group=study.labels[record.label] if study.task == "classification" else ALL,
        looks=_measure_look(image, source.contrasts, study),
        labels=frozenset(name for number in numbers if (name := names.get(number))),
        contrasts=source.contrasts,
        shape=image.spatial_shape if not image.is_window else image.array.shape[1:],
        spacing_mm=np.linalg.norm(image.affine[:3, :3], axis=0) if is_sized else None,
        vendor=(read_dicom_element(files[0], "Manufacturer") or NOT_STATED,),
    )


def _name_looks(image: Image, study: Study) -> list[str]:
    """Return the names of a picture's colours and brightness, or of the contrasts or channels of another image."""
    if image_kind(image) == "pictures" and not study.data.channel_names:
        return [*COLOURS, BRIGHTNESS]
    number = len(image.array)
    return [*study.data.channel_names] or ([BRIGHTNESS] if number == 1 else [f"channel {i + 1}" for i in range(number)])


def _measure_look(image: Image, contrasts: Sequence[str], study: Study) -> NDArray[np.float64]:
    """Return a picture's shares of red, green and blue, and its brightness from 0 to 1; or the channels' means."""
    scale = image.dtype_max if image.dtype_max and image_kind(image) == "pictures" else 1
    means = image.array.reshape(len(image.array), -1).mean(axis=1, dtype=np.float64) / scale
    if study.data.channel_names:
        return np.where([name in contrasts for name in study.data.channel_names], means, np.nan)
    if image_kind(image) != "pictures":
        return means
    # Grey is each colour alike; a fourth channel says what is seen through.
    colours = means[:3] if len(means) >= len(COLOURS) else np.repeat(means[:1], len(COLOURS))
    total = colours.sum()
    shares = colours / total if total > 0 else np.full(len(COLOURS), 1 / len(COLOURS))
    return np.array([*shares, colours.mean()])


def _sum_up(
    found: Sequence[_Measures], kind: str, looks: Sequence[str], manifest: Manifest, least: int
) -> Inventory | None:
    patients = {one.patient for one in found}
    known = sum(is_known for is_known, _ in patients)
    if known < least:
        return None

    def count_names(key: str, names: Iterable[str], is_partition: bool = False) -> dict[str, int | None]:
        having = {name: {one.patient for one in found if name in getattr(one, key)} for name in names}
        numbers = {name: sum(is_known for is_known, _ in of_group) for name, of_group in having.items()}
        few = find_few(numbers, least, is_partition)
        return {name: None if name in few else len(of_group) for name, of_group in having.items()}

    has_classes = manifest.task == "classification"
    labels = count_names("labels", (manifest.labels[number] for number in manifest.labels_annotated), has_classes)
    groups = [name for name, number in labels.items() if number] if has_classes else [ALL]
    names = sorted({name for one in found for name in one.vendor})
    vendors = count_names("vendor", names, is_partition=True)
    shown = {name: number for name, number in vendors.items() if number is not None}
    sizes = [one.spacing_mm for one in found]
    return Inventory(
        task=manifest.task,
        kind=kind,
        unit="patients" if known == len(patients) else "cases",
        patients=len(patients),
        cases=len(found),
        labels=labels,
        contrasts=count_names("contrasts", manifest.channel_names),
        shape=_find_median(found, [np.array(one.shape) for one in found]),
        spacing_mm=None if any(size is None for size in sizes) else _find_median(found, sizes),
        # A machine that few were seen by has a name that could tell them.
        vendors=({} if names == [NOT_STATED] else shown) | ({"others": None} if len(shown) < len(names) else {}),
        looks={group: _summarise_looks([one for one in found if one.group == group], looks, least) for group in groups},
        least=least,
    )


def _summarise_looks(found: Sequence[_Measures], names: Sequence[str], least: int) -> dict[str, Look]:
    # Images of other channels than most have other measures.
    fitting = [one for one in found if len(one.looks) == len(names)]
    means = _average_by_patient(fitting, [one.looks for one in fitting])
    looks = {}
    for i, name in enumerate(names):
        there = {patient: values[i] for patient, values in means.items() if np.isfinite(values[i])}
        if there and sum(is_known for is_known, _ in there) >= least:
            numbers = np.array(list(there.values()))
            deviation = round_number(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0
            looks[name] = Look(patients=len(numbers), mean=round_number(numbers.mean()), deviation=deviation)
    return looks


def _find_median(found: Sequence[_Measures], values: Sequence[NDArray]) -> tuple[float, ...]:
    """Return the median over patients, of whom each has the mean over the own cases."""
    middle = np.median([*_average_by_patient(found, values).values()], axis=0)
    return tuple(round_number(value) for value in middle)


def _average_by_patient(found: Sequence[_Measures], values: Sequence[NDArray]) -> dict[tuple[bool, str], NDArray]:
    by_patient: dict[tuple[bool, str], list[NDArray]] = {}
    for one, value in zip(found, values, strict=True):
        by_patient.setdefault(one.patient, []).append(value)
    return {patient: np.mean(rows, axis=0) for patient, rows in by_patient.items()}


def round_number(value: float) -> float:
    """Return a number to `DIGITS` digits, without the rounding of sums."""
    return float(f"{round(value, 9):.{DIGITS}g}")


def read_task_and_labels(content: Mapping[str, object]) -> tuple[str, dict[int, str]]:
    """Return the task of a dataset.json and its labels, number -> name.

    Raises:
        DataError: One is of another form.
    """
    task, labels = content["task"], content["labels"]
    if not isinstance(task, str) or task not in FITTING:
        raise DataError(f"{FILE_NAME} must have the task {' or '.join(FITTING)}, not {task!r}; correct it")
    if not isinstance(labels, dict) or not all(key.isdecimal() for key in labels):
        raise DataError(f'{FILE_NAME} must have labels as {{"1": "nucleus"}}, not {labels!r}; correct it')
    remedy = f"rename it in {FILE_NAME}"
    return task, {int(key): check_name(name, "a label", DataError, remedy) for key, name in labels.items()}
