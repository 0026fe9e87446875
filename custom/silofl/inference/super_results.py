"""The keys of results.json on a super model with a selector."""

from collections.abc import Mapping
from dataclasses import dataclass

from silofl.training.site_score import Counts, Values


@dataclass(frozen=True)
class SelectorResults:
    """Which site the selector chose for the sites' test data.

    Attributes:
        outputs: What the selector can choose, in order: sites, and ``global`` if it knows that model too.
        cases: Site -> choice -> number of cases, each by the mean over its slices.
        slices: Site -> choice -> number of slices.
    """

    outputs: tuple[str, ...]
    cases: Mapping[str, Counts]
    slices: Mapping[str, Counts]


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
    """The further keys of a run with a selector.

    Attributes:
        models: Site -> model (``global``, a site, ``ensemble``, ``super``) -> its value on the site's test cases.
        choices: Site -> model -> test cases for which it is chosen.
        selector: What the selector chose for the test data.
        threshold: The paper's gamma; null if the most probable model answers.
        threshold_without: Site -> why it took no part in choosing the threshold.
        by_threshold: Each candidate of the threshold with its value.
    """

    models: Mapping[str, Values]
    choices: Mapping[str, Counts]
    selector: SelectorResults
    threshold: float | None
    threshold_without: Mapping[str, str]
    by_threshold: tuple[ThresholdValue, ...]
