"""Scores of a model at a site: Dice by case as the papers' tables need it, and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    value: float
    num_cases: int
    num_excluded: int
    by_case: dict[str, float]


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
    by_case: dict[str, float] = {}
    excluded = 0
    for case, member in members_of(cases).items():
        values = [_dice(predictions[member] == label, targets[member] == label) for label in labels]
        if has_background:
            values = [1.0 if value is None else value for value in values]
        counted = [value for value in values if value is not None]
        if counted:
            by_case[case] = float(np.mean(counted))
        else:
            excluded += 1
    return _score(by_case, excluded)


def accuracy_by_case(predictions: NDArray, targets: NDArray, cases: Sequence[str]) -> Score:
    """Return the mean over cases of the share of right classes; predictions and targets have shape (N,)."""
    is_right = np.array([p == t for p, t in zip(predictions, targets, strict=True)])
    return _score({case: float(np.mean(is_right[member])) for case, member in members_of(cases).items()}, 0)


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


def _score(by_case: dict[str, float], excluded: int) -> Score:
    value = float(np.mean(list(by_case.values()))) if by_case else float("nan")
    return Score(value, len(by_case), excluded, by_case)
