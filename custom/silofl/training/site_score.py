"""A site's score of a model on one part of its data: numbers over all its cases, and no case's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from silofl.schema import optional, plain, read

Counts = Mapping[str, int]
Values = Mapping[str, float | None]


@dataclass(frozen=True)
class SelectorCounts:
    """The outputs that FedSM's selector gives a site's test data to.

    Attributes:
        cases: Output of the selector -> number of cases, each by the mean over its slices.
        slices: Output of the selector -> number of slices, each alone.
    """

    cases: Counts
    slices: Counts


@dataclass(frozen=True, kw_only=True)
class SiteScore:
    """One site's score on its validation or test data.

    Attributes:
        value: The study's metric, mean over the cases that count, in [0, 1]; null where none counts.
        num_cases: Cases that count.
        num_excluded: Cases left out because truth and prediction are both empty.
        labels: Label's number -> mean value of this label alone; of a class its recall.
        also: Of a classification: accuracy, balanced_accuracy and, where it is defined, auroc.
        label_cases: Of a classification: label's number -> number of cases in which it counts.
        models: Where there are several models: name of a model -> its value on the same cases.
        selector_accuracy: Share of the validation slices that FedSM's selector takes for this site's.
    """

    value: float | None
    num_cases: int
    num_excluded: int
    labels: Mapping[str, float] | None = optional()
    also: Mapping[str, float] | None = optional()
    label_cases: Counts | None = optional()
    models: Values | None = optional()
    selector_accuracy: float | None = optional()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return plain(self)

    @classmethod
    def from_dict(cls, values: object, where: str) -> Self:
        """Return the score that `as_dict` described; the errors of `silofl.schema.read`."""
        return read(cls, values, where)


@dataclass(frozen=True, kw_only=True)
class SuperScore(SiteScore):
    """One site's test of a super model: its value, its models' values, and its selector's choices.

    Attributes:
        models: Name of a model, ``ensemble`` or ``super`` -> its value on the same cases.
        choices: Model -> number of cases for which it is chosen.
        selector: The outputs that the selector gives cases and slices to.
        by_threshold: For each candidate of the threshold the sum of the cases' values and their number.
    """

    models: Values
    choices: Counts
    selector: SelectorCounts
    by_threshold: tuple[tuple[float, int], ...]
