"""The keys of results.json on a super model with a selector."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ThresholdValue:
    """The value of one candidate of the threshold.

    Attributes:
        threshold: The candidate.
        value: Mean over the sites' means; accuracy if the metric is balanced_accuracy.
    """

    threshold: float
    value: float


@dataclass(frozen=True)
class SuperResults:
    """The further keys of a run with a selector, beside what each site's test says of models and choices.

    Attributes:
        outputs: What the selector can choose, in order: sites, and ``global`` if it knows that model too.
        threshold: The paper's gamma; null if the most probable model answers.
        threshold_without: Site -> why it took no part in choosing the threshold.
        by_threshold: Each candidate of the threshold with its value.
    """

    outputs: tuple[str, ...]
    threshold: float | None
    threshold_without: Mapping[str, str]
    by_threshold: tuple[ThresholdValue, ...]
