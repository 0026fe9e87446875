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
from silofl.data.ct_values import NUM_BINS, Patient, count_values, share_values
from silofl.data.domain import image_kind
from silofl.data.manifest import FILE_NAME, Manifest, parse_channel_names, read_content, read_manifest
from silofl.data.preparation import build_requests, read_label_map
from silofl.data.progress import track_progress
from silofl.data.records import Record
from silofl.reading.decoder import decode_ahead
from silofl.reading.header import read_header
from silofl.reading.image import Image
from silofl.study import Study
from silofl.study.sections import FITTING

# Of what leaves: more digits could tell a patient.
DIGITS = 3
LONGEST_NAME, MOST_NAMES = 100, 200

Size = Annotated[float, Strict(), Field(gt=0, le=1e6, allow_inf_nan=False)]
Patients = Annotated[int, Strict(), Field(ge=0, le=10**7)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Named = Annotated[str, Strict(), Field(max_length=LONGEST_NAME), AfterValidator(one_line)]
# None is withheld.
Counts = Annotated[dict[Named, Patients | None], Field(max_length=MOST_NAMES)]


def check_shares(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Refuse another number of bins, and shares of more than everything."""
    # They are rounded.
    if shares and (len(shares) != NUM_BINS or not 0.9 < sum(shares) < 1.1):
        raise ValueError(f"{NUM_BINS} shares of 1, or none")
    return shares


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
        shape: Median size by axis; of a volume along the body's axes: right, front, head.
        spacing_mm: Median size of a voxel likewise; None where the files state none.
        ct_shares: Of CT, the share of labelled voxels in each bin of `silofl.data.ct_values`; none of other images.
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
    ct_shares: Annotated[tuple[Share, ...], AfterValidator(check_shares)] = ()
    least: Patients


@dataclass(frozen=True)
class _Measures:
    """The measures of one case: `labels` are the names that it has, `ct_counts` those of `count_values`."""

    patient: Patient
    labels: frozenset[str]
    contrasts: tuple[str, ...]
    shape: tuple[int, ...]
    spacing_mm: NDArray[np.float64] | None
    ct_counts: NDArray[np.float64] | None


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
    found, kinds = [], set[str]()
    with decode_ahead(build_requests(records, manifest)):
        for record in track_progress(records, len(records), f"reading {folder.name}", has_progress):
            try:
                image = read_source(manifest.source(record), study.data)
                measured = _measure_case(record, image, manifest, study)
            except DataError as error:
                raise DataError(f"case {record.case!r}: {error}") from None
            found.append(measured)
            kinds.add(image_kind(image))
    if len(kinds) > 1:
        raise DataError(f"the images must all be of one kind, not {' and '.join(sorted(kinds))}")
    return _sum_up(found, kinds.pop(), manifest, min_patients)


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
    headers = [read_header(path) for path, _ in filter(None, source.files)]
    shape, spacing = measure_grid(image)
    is_sized = all(header.has_spacing for header in headers)
    is_ct = len(image.array) == 1 and _is_ct({header.modality for header in headers}, study.data.channel_names)
    return _Measures(
        patient=(record.patient is not None, record.case if record.patient is None else record.patient),
        labels=frozenset(name for number in numbers if (name := names.get(number))),
        contrasts=source.contrasts,
        shape=shape,
        spacing_mm=spacing if is_sized else None,
        ct_counts=count_values(image.array, label) if is_ct else None,
    )


def measure_grid(image: Image) -> tuple[tuple[int, ...], NDArray[np.float64] | None]:
    """Return an image's size, and of a volume its voxels' in mm, both along the body's axes: right, front, head."""
    if image.affine is None:
        return image.array.shape[1:] if image.is_window else image.spatial_shape, None
    from nibabel.affines import voxel_sizes
    from nibabel.orientations import io_orientation

    # The body's axis that each voxel axis runs along.
    order = np.argsort(io_orientation(image.affine)[:, 0].astype(int))
    return tuple(np.array(image.spatial_shape)[order].tolist()), voxel_sizes(image.affine)[order]


def _is_ct(modalities: set[str | None], channel_names: Sequence[str]) -> bool:
    """Return whether a case is CT by its files, or by its channel's name where they state nothing."""
    is_named = [name.upper() for name in channel_names] == ["CT"]
    return modalities == {"CT"} or (modalities == {None} and is_named)


def _sum_up(found: Sequence[_Measures], kind: str, manifest: Manifest, least: int) -> Inventory | None:
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
        ct_shares=_share_ct(found, least),
        least=least,
    )


def _share_ct(found: Sequence[_Measures], least: int) -> tuple[float, ...]:
    """Return the shares of CT's values; none where one case is no CT, or where no bin is of enough patients."""
    counts: dict[Patient, list[NDArray[np.float64]]] = {}
    for one in found:
        if one.ct_counts is None:
            return ()
        counts.setdefault(one.patient, []).append(one.ct_counts)
    shares = share_values(counts, least)
    return () if shares is None else tuple(round_number(share) for share in shares)


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
