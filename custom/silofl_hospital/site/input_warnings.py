"""Warnings of a site's data that can be read and learnt from, and should be looked at all the same."""

from collections.abc import Iterator, Mapping

import numpy as np

from silofl.core.findings import unpack_findings
from silofl.data.batches import limit_batch_size
from silofl.data.intensity import LEAST_RANGE
from silofl.data.manifest import Manifest
from silofl.data.parts import Examples
from silofl.data.site_data import SiteData
from silofl.parts.checked_cast import checked_cast
from silofl.reading.image_grid import find_reoriented
from silofl.reading.patient_ids import count_shared_ids, read_own_id
from silofl.study import Study

PIECE = 256


def find_warnings(data: SiteData, study: Study) -> list[str]:
    """Return what should be looked at of a site's data, a sentence each that names no case, patient or file.

    Args:
        data: The data, read from their dataset.json.
        study: The study that they were read for.
    """
    warnings = _find_unreadable(data) + _find_patient_warnings(data)
    if study.task == "segmentation":
        manifest = checked_cast(data.manifest, Manifest)
        pairs = []
        for record in manifest.records:
            pairs.append((manifest.source(record).first[0], manifest.places[str(record.label)]))
        warnings += find_reoriented(pairs)
    if study.data.intensity == "dtype":
        warnings += _find_dark(data.training)
    return warnings


def _find_dark(part: Examples) -> list[str]:
    """Return a sentence where images use little of the range of their type."""
    highest = max((float(np.asarray(part.images[piece]).max()) for piece in _yield_pieces(part)), default=0.0)
    if not 0 < highest < LEAST_RANGE:
        return []
    return [
        f"the brightest training image reaches {highest:.2g} of the range of its file's type, which data.intensity "
        "'dtype' divides by; set the study's data.intensity to percentiles"
    ]


def _find_unreadable(data: SiteData) -> list[str]:
    """Return a sentence where cases are left out because they cannot be read."""
    count = sum(data.unreadable.values())
    if not count:
        return []
    reasons = ", ".join(f"{number} {reason}" for reason, number in data.unreadable.items())
    total = count + len(checked_cast(data.manifest, Manifest).records)
    return [
        f"{count} of {total} cases cannot be read and are left out, as skip_unreadable allows ({reasons}); who "
        "mends them writes dataset.json anew, because they stay left out until it changes"
    ]


def _find_patient_warnings(data: SiteData) -> list[str]:
    """Return a sentence where a patient of DICOM's headers has several names, or stands in several parts unnamed."""
    named = []
    unnamed = []
    manifest = checked_cast(data.manifest, Manifest)
    for part, records in manifest.parts.items():
        for record in records:
            patient = read_own_id(path for path, _ in filter(None, manifest.source(record).files))
            if record.patient is None:
                unnamed.append((part, patient))
            else:
                named.append((record.patient, patient))
    divided, count = count_shared_ids(named)
    scattered, count_unnamed = count_shared_ids(unnamed)
    warnings = []
    if divided:
        warnings.append(
            f"{divided} of {count} PatientIDs in DICOM headers stand for several patients of dataset.json; see that "
            "these are different persons, of whom an archive writes one number"
        )
    # One number for all images is an archive's, and no patient's.
    if scattered and count_unnamed > 1:
        warnings.append(
            f"{scattered} of {count_unnamed} patients whom DICOM headers name (PatientID), and dataset.json does not, "
            "stand in several parts; name them in dataset.json, or import again"
        )
    return warnings


def find_label_warnings(data: SiteData, study: Study, counts: Mapping[str, int]) -> list[str]:
    """Return a sentence where no training case has one of the labels that the site annotates, and models train.

    Args:
        study: The study that they were read for.
        counts: `count_labels` of the training part.
    """
    annotated = checked_cast(data.manifest, Manifest).labels_annotated
    absent = [name for number in annotated if not counts[name := study.labels[number]]]
    # A study that trains nothing takes the labels as they are.
    if not absent or not study.rounds:
        return []
    return [
        f"no training case has {' or '.join(absent)}; look at the labels, or, where nobody drew it, list the others "
        "alone as labels_annotated in dataset.json"
    ]


def count_labels(part: Examples, study: Study) -> dict[str, int]:
    """Return the number of examples in which each of the study's labels occurs, by the label's name."""
    counts = dict.fromkeys(sorted(study.labels), 0)
    for piece in _yield_pieces(part):
        targets = np.asarray(part.targets[piece])
        if study.is_multilabel:
            has_label = unpack_findings(targets, len(counts))
        else:
            rows = targets.reshape(len(targets), -1)
            has_label = np.stack([(rows == label).any(axis=1) for label in counts], axis=1)
        for label, count in zip(counts, has_label.sum(axis=0).tolist(), strict=True):
            counts[label] += count
    return {study.labels[label]: count for label, count in counts.items()}


def _yield_pieces(part: Examples) -> Iterator[slice]:
    # Memory-mapped, a part is never in memory all at once.
    step = limit_batch_size(part.images, PIECE)
    for start in range(0, len(part), step):
        yield slice(start, start + step)
