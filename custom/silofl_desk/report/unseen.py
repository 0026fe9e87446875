"""The record of a super model's test at a site that took no part in the training, ``unseen.json``."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from silofl.base.schema import declare_optional, read_file
from silofl.inference.evaluation import Evaluation
from silofl.inference.super_results import ThresholdTest
from silofl.training.site_score import Counts, Values


@dataclass(frozen=True, kw_only=True)
class UnseenTest:
    """The content of unseen.json: the super model at a site that took no part in the training.

    Attributes:
        digest: SHA-256 of the site's dataset.json and of all its files.
        rule: How the super model answers: ``only`` (one model), ``mean`` (of all sites' models), or with a selector
            ``choice`` (of one model for each case) or ``ensemble`` (of all models).
        evaluation: What `evaluate` finds there.
        models: Model -> its value alone; with a selector also that of their ``ensemble``.
        own: Site -> the value of its local model, and of the ``ensemble`` of these, for which each hospital would
            have to hand its own out; None where they trained none.
        choices: With a selector: model -> number of cases for which it is chosen.
        threshold: The paper's gamma; None where the most probable model answers.
        by_threshold: The result with each candidate of the threshold, from 0 on.
        assembled_from: The source of a super model that the run itself could not write.
    """

    # Of version 0.4.
    FORMER_KEYS: ClassVar = ("threshold_from", "num_seen")
    site: str
    digest: str
    rule: Literal["only", "mean", "choice", "ensemble"]
    evaluation: Evaluation
    models: Values
    own: Values | None = declare_optional()
    choices: Counts | None = declare_optional()
    threshold: float | None = declare_optional()
    by_threshold: tuple[ThresholdTest, ...] = declare_optional(())
    assembled_from: str | None = declare_optional()

    @property
    def metric(self) -> str:
        """Name of the values."""
        return self.evaluation.metric

    @property
    def value(self) -> float | None:
        """The super model's value; None where no case counts."""
        return self.evaluation.value.value

    @property
    def num_counted(self) -> int:
        """Cases that count."""
        return self.evaluation.num_cases - self.evaluation.num_excluded


def read_unseen(run: Path) -> UnseenTest | None:
    """Read the test on the site that was left out; None where there is none.

    Raises:
        ConfigError: The file is not what silofl wrote.
    """
    return read_file(UnseenTest, run / "unseen.json")
