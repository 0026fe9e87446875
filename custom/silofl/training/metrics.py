"""Scores of a model at a site: Dice by case as the papers' tables need it, and accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Score:
    """A site's mean over its cases.

    Attributes:
        value: Mean over the counted cases, in [0, 1]; NaN where no case counts.
        num_cases: Cases that count.
        num_excluded: Cases left out because truth and prediction are both empty.
        by_case: Case -> its own value, the counted cases only.
        labels_by_case: Label -> case -> the value of this label in it, where it counts; empty for classes.
    """

    value: float
    num_cases: int
    num_excluded: int
    by_case: dict[str, float]
    labels_by_case: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def by_label(self) -> dict[int, float]:
        """Label -> mean over the cases in which it counts."""
        return {label: float(np.mean(list(cases.values()))) for label, cases in self.labels_by_case.items() if cases}

    @classmethod
    def of(
        cls, by_case: Mapping[str, float | None], labels_by_case: Mapping[int, dict[str, float]] | None = None
    ) -> Score:
        """Return the score of cases by their values; None marks a case that does not count."""
        counted = {case: value for case, value in by_case.items() if value is not None}
        value = float(np.mean(list(counted.values()))) if counted else float("nan")
        return cls(value, len(counted), len(by_case) - len(counted), counted, dict(labels_by_case or {}))

    @classmethod
    def merged(cls, by_case: Mapping[str, Score]) -> Score:
        """Return the score of several cases from the score of each alone."""
        labels: dict[int, dict[str, float]] = {}
        for score in by_case.values():
            for label, cases in score.labels_by_case.items():
                labels.setdefault(label, {}).update(cases)
        return cls.of({case: score.by_case.get(case) for case, score in by_case.items()}, labels)


def dice_by_case(
    predictions: NDArray, targets: NDArray, cases: Sequence[str], labels: Sequence[int], has_background: bool = False
) -> Score:
    """Return the mean over cases of the foreground Dice, ``2 |P & T| / (|P| + |T|)``, mean over a case's labels.

    All slices of a case count as one volume. A label that is empty in truth and prediction does not count; a case
    without a label that counts is excluded.

    Args:
        predictions: Label maps, shape (N, H, W).
        targets: Label maps of the same shape.
        cases: The case of each of the N slices.
        labels: The labels that count, without background.
        has_background: Also count label 0, and count a Dice of 1 where both are empty, as the authors' released
            code does; only for comparison with printed tables.
    """
    labels = [0, *labels] if has_background else list(labels)
    by_case: dict[str, float | None] = {}
    labels_by_case: dict[int, dict[str, float]] = {label: {} for label in labels}
    for case, member in members_of(cases).items():
        found = {label: _dice(predictions[member] == label, targets[member] == label) for label in labels}
        if has_background:
            found = {label: 1.0 if value is None else value for label, value in found.items()}
        counted = {label: value for label, value in found.items() if value is not None}
        by_case[case] = float(np.mean(list(counted.values()))) if counted else None
        for label, value in counted.items():
            labels_by_case[label][case] = value
    return Score.of(by_case, labels_by_case)


def accuracy_by_case(predictions: NDArray, targets: NDArray, cases: Sequence[str]) -> Score:
    """Return the mean over cases of the share of right classes; predictions and targets have shape (N,)."""
    is_right = np.array([p == t for p, t in zip(predictions, targets, strict=True)])
    return Score.of({case: float(np.mean(is_right[member])) for case, member in members_of(cases).items()})


def pooled(scores: Sequence[tuple[float, int]]) -> float | None:
    """Return the mean over all sites' cases together from (value, number of cases) of each site."""
    counted = [(value, cases) for value, cases in scores if cases]
    total = sum(cases for _, cases in counted)
    return sum(value * cases for value, cases in counted) / total if total else None


def members_of(cases: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of each case's slices, cases in the order of their first."""
    members: dict[str, list[int]] = {}
    for position, case in enumerate(cases):
        members.setdefault(case, []).append(position)
    return members


def _dice(prediction: NDArray, target: NDArray) -> float | None:
    size = int(prediction.sum()) + int(target.sum())
    return 2 * int((prediction & target).sum()) / size if size else None
