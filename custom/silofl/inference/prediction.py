"""A super model's answer to one case."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.core.findings import unpack_findings
from silofl.core.operating_point import OperatingPoint, temper
from silofl.data.parts import Examples
from silofl.study import Study

MM3_IN_ML = 1000.0


@dataclass(frozen=True, eq=False)
class CaseAnswer:
    """The answer to a case as probabilities, and the models it comes from.

    Attributes:
        model: Its name in a prediction.
        weights: Model -> its weight; they sum to 1.
        scores: Output of the selector -> its probability.
        is_fallback: Whether no site's score was above the threshold.
        probabilities: float32 (n, out_channels, *spatial) or float64 (n, classes), the weighted mean of the models.
        features: Model -> the mean over slices or windows of its representation, (features,); without those of which
            nobody has said where it is.
    """

    model: str
    weights: dict[str, float]
    scores: dict[str, float]
    is_fallback: bool
    probabilities: NDArray[np.floating]
    features: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Prediction:
    """A case's answer, and which model gave it.

    Attributes:
        model: ``global``, a site's name, ``ensemble``, or ``mean of all sites``.
        scores: Output of the selector -> its probability; empty without a selector.
        bias: What was added to the log-odds of the foreground.
        is_fallback: Whether no site's score was above the threshold, so that the global model answered.
        label_map: uint8 on the input's own grid: (X, Y, Z) of a volume, (rows, columns) of a picture; (n, H, W) of
            prepared images; None for classification.
        label: The class of the case; None for segmentation and multilabel.
        findings: The names of the findings whose probability is above one half; None for other tasks.
        class_scores: Name of each class or finding -> its probability, mean over the case's slices, after the
            temperature; empty for segmentation.
        temperature: What divided the logits; 1 where nothing did.
        decision_thresholds: Name of a class or finding -> the probability from which it is called, where chosen.
        volumes_ml: Each label's name -> its volume in millilitres; None where its voxels' size is not known.
        affine: (4, 4), voxel indices to millimetres right, front and head; None where the input has none.
        warnings: Why the answer may mean nothing, as sentences.
        do_not_use: Why the study's rule forbids to use the answer; None where it states no rule.
        unchecked: What was not compared with training, because nothing is known of it.
        deviations: What was compared -> how many deviations it lies above the mean of the hospitals' own cases.
    """

    model: str
    scores: dict[str, float]
    is_fallback: bool
    label_map: NDArray[np.uint8] | None = None
    label: int | None = None
    findings: tuple[str, ...] | None = None
    class_scores: dict[str, float] | None = None
    temperature: float = 1.0
    decision_thresholds: dict[str, float] = field(default_factory=dict)
    volumes_ml: dict[str, float] | None = None
    affine: NDArray[np.float64] | None = None
    bias: float = 0.0
    warnings: tuple[str, ...] = ()
    do_not_use: tuple[str, ...] | None = None
    unchecked: tuple[str, ...] = ()
    deviations: Mapping[str, float] = field(default_factory=dict)


def call_case(probabilities: NDArray[np.floating], operating_point: OperatingPoint, study: Study) -> dict[str, Any]:
    """Return a classification's part of a `Prediction`: one answer for a case, by the mean over its slices.

    Args:
        probabilities: Of each slice, (n, classes).
        operating_point: How they are read.
        study: Names the classes, or findings.
    """
    # Slices are averaged before the case is called: it has one answer.
    mean = probabilities.astype(np.float64).mean(axis=0, keepdims=True)
    names = [name for _, name in sorted(study.labels.items())]
    (decided,) = operating_point.decide(mean, study.is_multilabel).tolist()
    shown = temper(mean, operating_point.temperature, study.is_multilabel)[0]
    thresholds = operating_point.shown_thresholds(study.is_multilabel)
    answer = {
        "class_scores": dict(zip(names, shown.tolist(), strict=True)),
        "temperature": operating_point.temperature,
        "decision_thresholds": {study.labels[number]: threshold for number, threshold in thresholds.items()},
    }
    # A set of findings is one number there, and their names here.
    if study.is_multilabel:
        return answer | {"findings": tuple(compress(names, unpack_findings([decided], len(names))[0]))}
    return answer | {"label": decided}


def measure_volumes_ml(
    label_map: NDArray[Any], affine: NDArray[np.float64] | None, labels: Mapping[int, str]
) -> dict[str, float] | None:
    """Return each label's volume in millilitres: its voxels times ``|det(affine)|``.

    Args:
        label_map: Label numbers, (X, Y, Z).
        affine: Voxel indices to millimetres, (4, 4); None of a picture.
        labels: Number -> name.
    """
    if affine is None:
        return None
    # A grid may be turned or sheared: the determinant is the voxel's volume all the same.
    voxel_ml = abs(float(np.linalg.det(affine[:3, :3]))) / MM3_IN_ML
    volumes = {}
    for number, name in sorted(labels.items()):
        volumes[name] = int(np.count_nonzero(label_map == number)) * voxel_ml
    return volumes


def measure_case_ml(label_map: NDArray[Any], case: Examples, study: Study) -> dict[str, float] | None:
    """Return each label's millilitres in the answer to a prepared case; None where its voxels' size is not known."""
    spacing = case.spacings.get(case.cases[0])
    if spacing is None or study.task != "segmentation":
        return None
    return measure_volumes_ml(label_map, np.diag([*spacing, 1.0]), study.labels)
