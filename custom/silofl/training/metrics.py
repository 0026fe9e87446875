"""Scores of a model at a site: Dice by case for label maps; accuracy, recall and AUROC for classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from silofl.core.findings import unpack_findings
from silofl.data.targets import IGNORED
from silofl.data.volumes import Array, Volumes
from silofl.study.sections import CLASS_MEANS, CLASSIFICATION_ONLY, RANKED

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
# A label's number, or a region's name.
Label = int | str
ByLabel = Mapping[Label, Mapping[str, Value]]
Probabilities = tuple[float, ...]


@dataclass(frozen=True)
class Score:
    """A site's score over its cases.

    Attributes:
        by_case: Case -> its own value, the counted cases only.
        num_excluded: Cases left out because truth and prediction are both empty.
        labels_by_case: Label, or region -> case -> its value in it, where it counts; of a true class the share of the
            case's examples that are right. A finding and its absence are two classes.
        metric: The study's metric, which the value is.
        probabilities_by_case: True class, or set of findings -> case -> probability of each class; empty where they are
            not known.
        empty: Of a segmentation: case without any label in truth -> whether one is predicted in it.
        is_multilabel: Whether a case has a set of findings.
    """

    by_case: dict[str, float]
    num_excluded: int = 0
    labels_by_case: dict[Label, dict[str, float]] = field(default_factory=dict)
    metric: str = "dice"
    probabilities_by_case: dict[Label, dict[str, Probabilities]] = field(default_factory=dict)
    empty: dict[str, bool] = field(default_factory=dict)
    is_multilabel: bool = False

    @property
    def value(self) -> float:
        """Mean over the counted cases, or over the labels for balanced accuracy, in [0, 1]; NaN where none counts.

        A metric of the cases' order is of all of them, and NaN where all are of one class.
        """
        if self.metric in RANKED:
            area = mean_area(self.metric, self.probabilities_by_case, self.is_multilabel)
            return math.nan if area is None else area
        means = self.by_label if self.metric == "balanced_accuracy" else self.by_case
        return _mean(means.values())

    @property
    def compared(self) -> dict[str, float]:
        """Case -> what it counts beside another model: its value, of cases with a label in truth only.

        In another case the one model may have a false alarm and the other no value: a pair needs both.
        """
        return {case: value for case, value in self.by_case.items() if case not in self.empty}

    @property
    def num_cases(self) -> int:
        """Cases that count."""
        return len(self.by_case)

    @property
    def by_label(self) -> dict[Label, float]:
        """Label, or region -> mean over the cases in which it counts; of a class its recall."""
        return {label: _mean(cases.values()) for label, cases in self.labels_by_case.items() if cases}

    @property
    def label_cases(self) -> dict[Label, int]:
        """Label -> number of cases in which it counts."""
        return {label: len(cases) for label, cases in self.labels_by_case.items() if cases}

    @property
    def also(self) -> dict[str, float]:
        """A classification's accuracy, balanced accuracy and, where they are defined, AUROC and the study's metric."""
        if self.metric not in CLASSIFICATION_ONLY["metric"] or not self.by_case:
            return {}
        metrics = {"accuracy": _mean(self.by_case.values()), "balanced_accuracy": _mean(self.by_label.values())}
        for name in dict.fromkeys(("auroc", self.metric)):
            if name in RANKED:
                area = mean_area(name, self.probabilities_by_case, self.is_multilabel)
                if area is not None:
                    metrics[name] = area
        return metrics

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that leave the site; they name no case."""
        value = value_or_none(self)
        # Of cases of one class alone there is no order.
        counted = 0 if value is None else self.num_cases
        numbers: dict[str, Any] = {
            "value": value,
            "num_cases": counted,
            "num_excluded": self.num_excluded + self.num_cases - counted,
            "labels": _with_text_keys(self.by_label),
        }
        if self.empty:
            # The value alone does not show them: a stray voxel in such a case makes it count, as 0.
            numbers["num_empty"] = len(self.empty)
            numbers["num_false_positive"] = sum(self.empty.values())
            numbers["value_with_truth"] = mean_of_known(self.compared.values())
        if also := self.also:
            numbers |= {"also": also, "label_cases": _with_text_keys(self.label_cases)}
        if self.is_multilabel or self.metric in RANKED:
            metric = self.metric if self.metric in RANKED else "auroc"
            numbers["areas"] = _with_text_keys(find_areas(metric, self.probabilities_by_case, self.is_multilabel))
        if self.metric in CLASS_MEANS:
            numbers["mean_over"] = "areas" if self.metric in RANKED else "labels"
        return numbers

    @classmethod
    def of(
        cls,
        by_case: Mapping[str, float | None],
        labels_by_case: dict[Label, dict[str, float]] | None = None,
        metric: str = "dice",
        probabilities_by_case: dict[Label, dict[str, Probabilities]] | None = None,
        empty: Mapping[str, bool] | None = None,
        is_multilabel: bool = False,
    ) -> Score:
        """Build the score of cases from their values; None marks a case that does not count."""
        counted = {case: value for case, value in by_case.items() if value is not None}
        return cls(
            by_case=counted,
            num_excluded=len(by_case) - len(counted),
            labels_by_case=labels_by_case or {},
            metric=metric,
            probabilities_by_case=probabilities_by_case or {},
            empty=dict(empty or {}),
            is_multilabel=is_multilabel,
        )

    @classmethod
    def merged(cls, by_case: Mapping[str, Score]) -> Score:
        """Join the scores of single cases: case -> a score that knows this case, and maybe others."""
        return cls.of(
            by_case={case: score.by_case.get(case) for case, score in by_case.items()},
            labels_by_case=_join_tables({case: score.labels_by_case for case, score in by_case.items()}),
            metric=next((score.metric for score in by_case.values()), "dice"),
            probabilities_by_case=_join_tables({case: score.probabilities_by_case for case, score in by_case.items()}),
            empty={case: score.empty[case] for case, score in by_case.items() if case in score.empty},
            is_multilabel=any(score.is_multilabel for score in by_case.values()),
        )


def leave_out_ignored(predictions: Array, targets: Array) -> Array:
    """Return predictions without a label where nobody annotated the target: neither label nor background counts there.

    Args:
        predictions: Label maps, N slices (N, H, W) or whole volumes.
        targets: Label maps of the same shape, `IGNORED` where nobody annotated them.
    """
    if isinstance(targets, Volumes):
        pairs = zip(predictions, targets, strict=True)
        return Volumes(tuple(np.where(truth == IGNORED, np.uint8(IGNORED), predicted) for predicted, truth in pairs))
    return np.where(np.asarray(targets) == IGNORED, np.uint8(IGNORED), predictions)


def dice_by_case(
    predictions: Array,
    targets: Array,
    cases: Sequence[str],
    regions: Mapping[Label, Sequence[int]],
    has_background: bool = False,
    annotated: Sequence[int] | None = None,
) -> Score:
    """Return the mean over cases of the foreground Dice, ``2 |P & T| / (|P| + |T|)``, mean over a case's regions.

    A region is a single label, or the union of several. All slices of a case count as one volume. A region that is
    empty in truth and prediction does not count; a case without a region that counts is excluded.

    Args:
        predictions: Label maps, N slices (N, H, W) or whole volumes.
        targets: Label maps of the same shape.
        cases: The case of each slice, or volume.
        regions: The labels of each region that counts, without background.
        has_background: Also count label 0, and count a Dice of 1 where both are empty, as the authors' released
            code does; only for comparison with printed tables.
        annotated: The labels that the targets show, where not all: of another label nobody knows whether it is right,
            and it counts as background.
    """
    foreground = sorted(set(chain.from_iterable(regions.values())))
    scored: dict[Label, Sequence[int]] = {0: (0,), **regions} if has_background else dict(regions)
    by_case: dict[str, float | None] = {}
    empty: dict[str, bool] = {}
    regions_by_case: dict[Label, dict[str, float]] = {region: {} for region in scored}
    for case, rows in group_positions(cases).items():
        predicted = np.asarray(predictions[rows])
        truth = np.asarray(targets[rows])
        if annotated is not None:
            predicted = np.where(np.isin(predicted, (*annotated, IGNORED)), predicted, 0)
        values = []
        for region, labels in scored.items():
            value = _dice(mask_labels(predicted, labels), mask_labels(truth, labels))
            if value is None and has_background:
                value = 1.0
            if value is not None:
                values.append(value)
                regions_by_case[region][case] = value
        by_case[case] = mean_of_known(values)
        if foreground and not np.isin(truth, foreground).any():
            empty[case] = bool(np.isin(predicted, foreground).any())
    return Score.of(by_case, regions_by_case, "dice_with_background" if has_background else "dice", empty=empty)


def compare_overlaps(
    overlaps: NDArray[np.int64],
    regions: Mapping[Label, Sequence[int]],
    has_background: bool = False,
    annotated: Sequence[int] | None = None,
) -> NDArray[np.float64]:
    """Return the value of a case, `Score.by_case` of `dice_by_case`, from numbers of voxels.

    Args:
        overlaps: Voxels of the case by predicted and by true label, shape (..., labels, labels).
        regions: As for `dice_by_case`.
        has_background: As for `dice_by_case`.
        annotated: As for `dice_by_case`.

    Returns:
        Shape (...); NaN where nothing is scored.
    """
    table = overlaps.copy()
    if annotated is not None:
        for label in range(1, table.shape[-2]):
            if label not in annotated:
                table[..., 0, :] += table[..., label, :]
                table[..., label, :] = 0
    scored = list(regions.values())
    if has_background:
        scored.insert(0, (0,))
    without_voxels = 1.0 if has_background else np.nan
    values = []
    for labels in map(list, scored):
        predicted = table[..., labels, :]
        size = predicted.sum(axis=(-2, -1)) + table[..., :, labels].sum(axis=(-2, -1))
        hits = predicted[..., labels].sum(axis=(-2, -1))
        values.append(np.where(size > 0, 2 * hits / np.maximum(size, 1), without_voxels))
    counts = np.isfinite(values).sum(axis=0)
    # A region is without a value where it is neither there nor predicted.
    return np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan)


def mask_labels(label_map: NDArray[Any], labels: Sequence[int]) -> NDArray[np.bool_]:
    """Return where a label map has any of some labels, at least one."""
    mask: NDArray[np.bool_] = label_map == labels[0]
    for label in labels[1:]:
        mask = mask | (label_map == label)
    return mask


def accuracy_by_case(
    predictions: Array,
    targets: Array,
    cases: Sequence[str],
    metric: str = "accuracy",
    probabilities: NDArray[Any] | None = None,
) -> Score:
    """Return the mean over cases, or over classes, of the share of right classes.

    A case's examples count as one: their share of right classes, their mean probabilities.

    Args:
        predictions: Classes, shape (N,).
        targets: The true classes, shape (N,).
        cases: The case of each of the N examples.
        metric: ``accuracy``, the mean over cases, or ``balanced_accuracy``, the mean over the true classes that there
            are of their recall.
        probabilities: Shape (N, classes); without them there is no AUROC.
    """
    # Plain numbers: most cases have one example, for which NumPy's calls take longer than the sum.
    is_right = [bool(predicted == truth) for predicted, truth in zip(predictions, targets, strict=True)]

    def share_right(rows: Sequence[int]) -> float:
        return sum(is_right[row] for row in rows) / len(rows)

    by_case = {case: share_right(rows) for case, rows in group_positions(cases).items()}
    labels_by_case: dict[Label, dict[str, float]] = {}
    probabilities_by_case: dict[Label, dict[str, Probabilities]] = {}
    # Examples of one case may have several true classes.
    labelled = [(int(truth), case) for truth, case in zip(targets, cases, strict=True)]
    for (label, case), rows in group_positions(labelled).items():
        labels_by_case.setdefault(label, {})[case] = share_right(rows)
        if probabilities is not None:
            mean = probabilities[rows].mean(axis=0)
            probabilities_by_case.setdefault(label, {})[case] = tuple(mean.tolist())
    return Score.of(by_case, labels_by_case, metric, probabilities_by_case)


def value_or_none(score: Score) -> float | None:
    """Return a score's value; None where no case counts, or the metric is not defined for those that do."""
    value = score.value
    return None if math.isnan(value) else value


def mean_area(metric: str, probabilities_by_case: ByLabel[Probabilities], is_multilabel: bool = False) -> float | None:
    """Return the mean of `find_areas` over the classes that have one; None where none has."""
    return mean_of_known(find_areas(metric, probabilities_by_case, is_multilabel).values())


def find_areas(
    metric: str, probabilities_by_case: ByLabel[Probabilities], is_multilabel: bool = False
) -> dict[int, float]:
    """Return the area under a curve of each class against all others; none of a class that all have, or nobody.

    Args:
        metric: ``auroc``, under the ROC curve; or ``auprc``, under precision over recall, as the average precision.
        probabilities_by_case: True class, or set of findings -> case -> probability of each class.
        is_multilabel: Whether the cases have sets of findings.
    """
    labels: list[Label] = []
    rows: list[Probabilities] = []
    for label, cases in sorted(probabilities_by_case.items()):
        labels += [label] * len(cases)
        rows += cases.values()
    if not rows:
        return {}
    # Imported here because it takes a second, which no segmentation needs.
    import torch
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision

    measures: dict[str, Callable[..., torch.Tensor]] = {"auroc": binary_auroc, "auprc": binary_average_precision}
    count = len(rows[0])
    if is_multilabel:
        truth = unpack_findings(labels, count)
    else:
        truth = np.array(labels)[:, None] == np.arange(count)
    # Not float32, torch's own choice: it rounds sure scores to exactly 1, and equal scores are ties.
    probabilities = torch.tensor(rows, dtype=torch.float64)
    areas = {}
    for number in range(count):
        if 0 < truth[:, number].sum() < len(truth):
            area = float(measures[metric](probabilities[:, number], torch.from_numpy(truth[:, number]).long()))
            # torchmetrics sums in float32, and may end a hair above 1.
            areas[number] = min(area, 1.0)
    return areas


def pool_values(scores: Sequence[tuple[float, int]]) -> float | None:
    """Return the mean over all sites' cases from (value, number of cases) of each site."""
    total = sum(cases for _, cases in scores)
    if not total:
        return None
    # A site without a case may have NaN for a value, which times 0 is NaN.
    return sum(value * cases for value, cases in scores if cases) / total


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, or None."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return float(np.mean(known))


def group_positions(cases: Sequence[Key]) -> dict[Key, list[int]]:
    """Return the positions of each case's slices, cases in the order of their first."""
    members: dict[Key, list[int]] = {}
    for position, case in enumerate(cases):
        members.setdefault(case, []).append(position)
    return members


def average_by_unit(
    values: Mapping[str, float | NDArray[np.float64] | None], unit_of: Mapping[str, str]
) -> NDArray[np.float64]:
    """Return the mean over each unit's cases, shape (..., units), in the order of their first cases.

    Args:
        values: Case -> its value, or its values (...) of several models; a case that is missing or None does not count,
            and a unit without any other is NaN.
        unit_of: Case -> its unit.
    """
    by_unit: dict[str, list[Any]] = {}
    for case, unit in unit_of.items():
        of_unit = by_unit.setdefault(unit, [])
        value = values.get(case)
        if value is not None:
            of_unit.append(value)
    if not by_unit:
        return np.empty(0)
    means = [np.mean(of_unit, axis=0) if of_unit else np.nan for of_unit in by_unit.values()]
    # A unit without a value is one NaN, however many models the others have values of.
    return np.stack(np.broadcast_arrays(*means), axis=-1).astype(np.float64)


def _dice(prediction: NDArray[Any], target: NDArray[Any]) -> float | None:
    # Python's integers do not overflow, whatever type NumPy sums in.
    size = int(prediction.sum()) + int(target.sum())
    return 2 * int((prediction & target).sum()) / size if size else None


def _join_tables(tables: Mapping[str, ByLabel[Value]]) -> dict[Label, dict[str, Value]]:
    """Return label -> case -> value, each case from its own table, which may hold other cases too."""
    joined: dict[Label, dict[str, Value]] = {}
    for case, table in tables.items():
        for label, cases in table.items():
            of_label = joined.setdefault(label, {})
            if case in cases:
                of_label[case] = cases[case]
    return joined


def _with_text_keys(table: Mapping[Any, Value]) -> dict[str, Value]:
    # The keys of JSON are texts; the number of a label would come back as one anyway.
    return {str(label): value for label, value in table.items()}


def _mean(values: Iterable[float]) -> float:
    mean = mean_of_known(values)
    return math.nan if mean is None else mean
