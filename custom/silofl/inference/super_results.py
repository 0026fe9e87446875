"""What results.json holds of a super model with a selector."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from silofl.base.schema import declare_optional
from silofl.training.site_score import Counts


@dataclass(frozen=True)
class ThresholdTest:
    """One candidate of the threshold.

    Attributes:
        threshold: The candidate.
        value: Mean over the cases of a left-out site, accuracy if the metric is balanced_accuracy.
        choices: Model -> cases for which it is chosen.
    """

    threshold: float
    value: float | None
    choices: Counts | None = declare_optional()


@dataclass(frozen=True)
class SuperResults:
    """What a selector adds.

    Attributes:
        outputs: What the selector can choose, in order: sites, and ``global``.
        threshold: The paper's gamma; null if the most probable model answers.
        threshold_without: Site -> why it took no part in choosing the threshold.
    """

    FORMER_KEYS: ClassVar = ("by_threshold",)
    outputs: tuple[str, ...]
    threshold: float | None
    threshold_without: Mapping[str, str]
