"""The keys of results.json on a super model with a selector."""

from collections.abc import Mapping
from dataclasses import dataclass

from silofl.training.site_score import Counts, Values


@dataclass(frozen=True)
class SelectorResults:
    """The outputs that a super model's selector gives the sites' test data to.

    Attributes:
        outputs: Its outputs in order: names of sites, and ``global`` where it knows that model too.
        cases: Site -> output -> number of cases, each by the mean over its slices.
        slices: Site -> output -> number of slices, each alone.
    """

    outputs: tuple[str, ...]
    cases: Mapping[str, Counts]
    slices: Mapping[str, Counts]


@dataclass(frozen=True)
class ThresholdValue:
    """The value of one candidate of the threshold.

    Attributes:
        threshold: The candidate, in [0, 1].
        value: Mean over sites of their test cases' mean; of balanced_accuracy it is the accuracy.
    """

    threshold: float
    value: float


@dataclass(frozen=True)
class SuperResults:
    """The further keys of a run with a selector.

    Attributes:
        models: With a selector: site -> model (``global``, names of sites, ``ensemble``, ``super``) -> its value on the
            site's test cases.
        choices: Site -> model -> test cases for which it is chosen.
        selector: The outputs that the selector gives the sites' test data to.
        threshold: The paper's gamma, in [0, 1]; null where the most probable model answers.
        threshold_without: Site -> why it took no part in choosing the threshold.
        by_threshold: The value of each candidate of the threshold.
    """

    models: Mapping[str, Values]
    choices: Mapping[str, Counts]
    selector: SelectorResults
    threshold: float | None
    threshold_without: Mapping[str, str]
    by_threshold: tuple[ThresholdValue, ...]
