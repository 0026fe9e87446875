"""What results.json says of a super model whose selector chooses among models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from silofl.training.site_score import Counts, Values


@dataclass(frozen=True)
class SelectorResults:
    """What a super model's selector takes the sites' test data for.

    Attributes:
        outputs: What its outputs stand for, in order: names of sites, and ``global`` where it knows that model too.
        cases: Site -> output -> number of cases, whose slices speak together.
        slices: Site -> output -> number of slices, each alone.
    """

    outputs: tuple[str, ...]
    cases: Mapping[str, Counts]
    slices: Mapping[str, Counts]


@dataclass(frozen=True)
class ThresholdValue:
    """What another threshold would give.

    Attributes:
        threshold: The candidate, in [0, 1].
        value: Mean over sites of their test cases' mean.
    """

    threshold: float
    value: float


@dataclass(frozen=True)
class SuperResults:
    """What the result of a run with a selector says more.

    Attributes:
        models: With a selector: site -> model (``global``, names of sites, ``ensemble``, ``super``) -> its value on the
            site's test cases.
        choices: Site -> model -> test cases for which it is chosen.
        selector: What the selector takes the sites' test data for.
        threshold: The paper's gamma, in [0, 1]; null where the most probable model answers.
        threshold_without: Site -> why it had no say in the threshold.
        by_threshold: What each candidate of the threshold would give.
    """

    models: Mapping[str, Values]
    choices: Mapping[str, Counts]
    selector: SelectorResults
    threshold: float | None
    threshold_without: Mapping[str, str]
    by_threshold: tuple[ThresholdValue, ...]
