"""The inventory of a site: what its data hold, before any study; no number is of fewer patients than the site allows.

Counts are of patients; whom dataset.json does not name counts as a patient per case, and for no floor.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, Strict

from silofl.base.errors import ConfigError, DataError, one_line, quote_value
from silofl.base.naming import check_name
from silofl.base.settings import Section, parse
from silofl.core.findings import unpack_findings
from silofl.core.small_cells import find_small_cells
from silofl.data.contrasts import check_contrasts, read_source
from silofl.data.ct_values import NUM_BINS, Patient, count_values, share_values
from silofl.data.data_profile import image_kind
from silofl.data.manifest import FILE_NAME, Manifest, parse_channel_names, read_content, read_manifest
from silofl.data.preparation import build_requests, read_label_map
from silofl.data.progress import track_progress
from silofl.data.records import Record
from silofl.reading.decoder import decode_ahead
from silofl.reading.header import read_header
from silofl.reading.image import Image
from silofl.study import Study
from silofl.study.sections import FITTING

# What leaves has no more digits, which could tell a patient.
DIGITS = 3
LONGEST_NAME = 100
MOST_NAMES = 200

Size = Annotated[float, Strict(), Field(gt=0, le=1e6, allow_inf_nan=False)]
Patients = Annotated[int, Strict(), Field(ge=0, le=10**7)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Named = Annotated[str, Strict(), Field(max_length=LONGEST_NAME), AfterValidator(one_line)]
# A count of None is withheld.
Counts = Annotated[dict[Named, Patients | None], Field(max_length=MOST_NAMES)]


def _check_shares(shares: tuple[float, ...]) -> tuple[float, ...]:
    # Each share is rounded, so that their sum is 1 only roughly.
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
    ct_shares: Annotated[tuple[Share, ...], AfterValidator(_check_shares)] = ()
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
    study = _build_reading_study(folder)
    manifest = read_manifest(folder, study, needed=())
    cases = []
    kinds = set()
    with decode_ahead(build_requests(manifest.records, manifest)):
        for record in track_progress(manifest.records, len(manifest.records), f"reading {folder.name}", has_progress):
            try:
                image = read_source(manifest.source(record), study.data)
                cases.append(_measure_case(record, image, manifest, study))
            except DataError as error:
                raise DataError(f"case {record.case!r}: {error}") from None
            kinds.add(image_kind(image))
    if len(kinds) > 1:
        raise DataError(f"{folder.name} mixes {' and '.join(sorted(kinds))}; give each kind a data folder of its own")
    return _sum_up(cases, kinds.pop(), manifest, min_patients)


def _build_reading_study(folder: Path) -> Study:
    # By this study the data are read as they are, whatever other sites have.
    content = read_content(folder)
    try:
        task, labels = read_task_and_labels(content)
        names = parse_channel_names(content)
        check_contrasts(names, f"channel_names in {FILE_NAME}")
        # Nothing is trained: where a study must choose, it names the first that fits the task.
        values = {
            "name": "survey",
            "task": task,
            "labels": labels,
            "rounds": 1,
            "baseline_comparison": False,
            "metric": FITTING[task]["metric"][0],
            "algorithm": {"name": "local"},
            "model": {"name": FITTING[task]["model.name"][0]},
            "training": {"loss": FITTING[task]["training.loss"][0]},
            "data": {
                "channels": max(1, len(names)),
                "channel_names": names,
                "resample": bool(names),
                "split_unit": content.get("split_unit", "patient"),
            },
        }
        return parse(Study, values, "dataset.json")
    except ConfigError as error:
        raise DataError(str(error)) from None


def _measure_case(record: Record, image: Image, manifest: Manifest, study: Study) -> _Measures:
    source = manifest.source(record)
    label = read_label_map(record, manifest, image, study)
    if label is not None:
        # The background has no name in a segmentation; in classification 0 may be a class.
        numbers = {*np.unique(label).tolist()} - {0}
    elif study.is_multilabel:
        numbers = {*np.flatnonzero(unpack_findings(np.array([record.label]), 1 + max(study.labels))[0]).tolist()}
    else:
        numbers = {record.label}
    headers = [read_header(path) for path, _ in filter(None, source.files)]
    shape, spacing = measure_grid(image)
    is_sized = all(header.has_spacing for header in headers)
    is_ct = len(image.array) == 1 and _is_ct({header.modality for header in headers}, study.data.channel_names)
    return _Measures(
        # A patient whom nobody knows is one of the case's name, and counts for no floor.
        patient=(record.patient is not None, record.patient or record.case),
        labels=frozenset(name for number, name in study.labels.items() if number in numbers),
        contrasts=source.contrasts,
        shape=shape,
        spacing_mm=spacing if is_sized else None,
        ct_counts=count_values(image.array, label) if is_ct else None,
    )


def measure_grid(image: Image) -> tuple[tuple[int, ...], NDArray[np.float64] | None]:
    """Return an image's size, and of a volume its voxels' in mm, both along the body's axes: right, front, head."""
    if image.affine is None:
        return image.array.shape[1:] if image.is_window else image.spatial_shape, None
    from nibabel.orientations import io_orientation

    # The first column is the body's axis that each voxel axis runs along.
    order = np.argsort(io_orientation(image.affine)[:, 0].astype(int))  # type: ignore[no-untyped-call]
    spacing = np.sqrt(np.sum(image.affine[:3, :3] ** 2, axis=0))
    return tuple(np.array(image.spatial_shape)[order].tolist()), spacing[order]


def _is_ct(modalities: set[str | None], channel_names: Sequence[str]) -> bool:
    # The channel's name decides only where the files state no modality.
    is_named = [name.upper() for name in channel_names] == ["CT"]
    return modalities == {"CT"} or (modalities == {None} and is_named)


def _sum_up(cases: Sequence[_Measures], kind: str, manifest: Manifest, least: int) -> Inventory | None:
    patients = {case.patient for case in cases}
    num_known = _count_known(patients)
    if num_known < least:
        return None
    label_names = [manifest.labels[number] for number in manifest.labels_annotated]
    labels = {name: {case.patient for case in cases if name in case.labels} for name in label_names}
    contrasts = {name: {case.patient for case in cases if name in case.contrasts} for name in manifest.channel_names}
    shapes = _group_by_patient(cases, [np.array(case.shape) for case in cases])
    sizes = [case.spacing_mm for case in cases if case.spacing_mm is not None]
    return Inventory(
        task=manifest.task,
        kind=kind,
        unit="patients" if num_known == len(patients) else "cases",
        patients=len(patients),
        cases=len(cases),
        labels=_count_patients(labels, least, is_partition=manifest.task == "classification"),
        contrasts=_count_patients(contrasts, least),
        shape=_find_median(shapes),
        spacing_mm=_find_median(_group_by_patient(cases, sizes)) if len(sizes) == len(cases) else None,
        ct_shares=_share_ct(cases, least),
        least=least,
    )


def _count_known(patients: Collection[Patient]) -> int:
    return sum(is_known for is_known, _ in patients)


def _count_patients(
    groups: Mapping[str, Collection[Patient]], least: int, is_partition: bool = False
) -> dict[str, int | None]:
    # Only patients who are known by name keep a number above the floor.
    few = find_small_cells({name: _count_known(patients) for name, patients in groups.items()}, least, is_partition)
    return {name: None if name in few else len(patients) for name, patients in groups.items()}


def _share_ct(cases: Sequence[_Measures], least: int) -> tuple[float, ...]:
    """Return the shares of CT's values; none where one case is no CT, or where no bin is of enough patients."""
    counts = [case.ct_counts for case in cases if case.ct_counts is not None]
    if len(counts) < len(cases):
        return ()
    shares = share_values(_group_by_patient(cases, counts), least)
    return () if shares is None else tuple(_round_number(share) for share in shares)


def _find_median(by_patient: Mapping[Patient, Sequence[np.ndarray]]) -> tuple[float, ...]:
    # Each patient counts once, with the mean over the own cases.
    means = [np.mean(values, axis=0) for values in by_patient.values()]
    return tuple(_round_number(value) for value in np.median(means, axis=0))


def _group_by_patient(cases: Sequence[_Measures], values: Sequence[np.ndarray]) -> dict[Patient, list[np.ndarray]]:
    by_patient: dict[Patient, list[np.ndarray]] = {}
    for case, value in zip(cases, values, strict=True):
        by_patient.setdefault(case.patient, []).append(value)
    return by_patient


def _round_number(value: float) -> float:
    # Nine decimals take away the rounding of sums.
    return float(f"{round(value, 9):.{DIGITS}g}")


def read_task_and_labels(content: Mapping[str, object]) -> tuple[str, dict[int, str]]:
    """Return the task of a dataset.json and its labels, number -> name.

    Raises:
        DataError: One is of another form.
    """
    task = content["task"]
    labels = content["labels"]
    if not isinstance(task, str) or task not in FITTING:
        raise DataError(f"task of {FILE_NAME} must be {' or '.join(FITTING)}, not {quote_value(task)}; correct it")
    if not isinstance(labels, dict) or not all(key.isdecimal() for key in labels):
        raise DataError(
            f'labels of {FILE_NAME} must be numbers and names, as {{"1": "nucleus"}}, not {quote_value(labels)}; '
            "correct them"
        )
    remedy = f"rename it in {FILE_NAME}"
    return task, {int(key): check_name(name, "a label", DataError, remedy) for key, name in labels.items()}
