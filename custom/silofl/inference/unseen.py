"""The record of a super model's test at a site that took no part in the training, ``unseen.json``."""

from dataclasses import dataclass
from pathlib import Path

from silofl.base.errors import ConfigError, quote_value
from silofl.base.schema import declare_group, declare_optional, read_file
from silofl.inference.choice import ENSEMBLE
from silofl.inference.evaluation import Evaluation
from silofl.models.roles import GLOBAL
from silofl.training.site_score import Counts, Values


@dataclass(frozen=True)
class ThresholdTest:
    """The result of the super model at a left-out site with one threshold.

    Attributes:
        threshold: The paper's gamma; None where the most probable model answers.
        value: Mean over the cases that count; None where none counts.
        num_counted: Cases that count.
        choices: Model -> number of cases for which it is chosen.
    """

    threshold: float | None
    value: float | None
    num_counted: int
    choices: Counts


@dataclass(frozen=True)
class SelectorTest:
    """The further results of a super model with a selector at a left-out site.

    Attributes:
        answer: ``choice`` of one model for each case, or ``ensemble`` of all.
        threshold: The paper's gamma; None where the most probable model answers.
        threshold_from: Where the threshold comes from; None without one.
        choices: Model -> number of cases for which it is chosen.
        by_threshold: The result with each candidate of the threshold.
        best_in_hindsight: The best of them; None without a case that counts.
    """

    answer: str
    threshold: float | None
    threshold_from: str | None
    choices: Counts
    by_threshold: tuple[ThresholdTest, ...]
    best_in_hindsight: ThresholdTest | None


@dataclass(frozen=True)
class OwnModelsTest:
    """The hospitals' own models at a left-out site, on the cases that the super model answers.

    Attributes:
        value: Of the mean of their answers, for which each hospital would have to hand its own model out.
        num_counted: Cases that count for it.
        models: Site -> the value of its own model.
    """

    value: float | None
    num_counted: int
    models: Values


@dataclass(frozen=True)
class UnseenTest:
    """The content of unseen.json: the super model at a site that took no part in the training.

    Attributes:
        fingerprint: Of the super model.
        metric: Name of the values.
        rule: How the super model answers: ``only`` (one model), ``selector``, or ``mean`` (of all sites' models).
        num_cases: The site's cases that it answers.
        value: The super model's value, as `evaluate` has it; None where no case counts.
        num_counted: Cases that count.
        models: Model -> its value alone.
        selector: Further results of a super model with a selector.
        assembled_from: The source of a super model that the run itself could not write.
        evaluation: All that `evaluate` finds there.
        own: The hospitals' own models there; None where they trained none, or it is a test of an older version.
        num_seen: How many of its cases show an image that a site learnt from; None where no site's record says so.
        digest: SHA-256 of the site's dataset.json and of all its files; null in a test of an older version.
    """

    site: str
    fingerprint: str
    metric: str
    rule: str
    num_cases: int
    value: float | None
    num_counted: int
    models: Values
    selector: SelectorTest | None = declare_group(None)
    assembled_from: str | None = declare_optional()
    evaluation: Evaluation | None = declare_optional()
    digest: str | None = declare_optional()
    own: OwnModelsTest | None = declare_optional()
    num_seen: int | None = declare_optional()

    @property
    def choosing(self) -> SelectorTest | None:
        """The selector's results where it chooses a model for each case; None where all answer, or without one."""
        return self.selector if self.selector and self.selector.answer == "choice" else None

    def __post_init__(self) -> None:
        """Refuse a super model with a selector without the values and the thresholds that its tables show."""
        if self.selector is None:
            return
        for name in (ENSEMBLE, *([] if self.selector.threshold is None else [GLOBAL])):
            if name not in self.models:
                raise ConfigError(
                    f"models must hold {name!r} with a selector, not only {quote_value(list(self.models))}"
                )
        best, rows = self.selector.best_in_hindsight, self.selector.by_threshold
        if self.selector.threshold is not None and not rows:
            raise ConfigError("by_threshold must be given with a threshold; it is empty")
        for test in (*rows, *([best] if best else [])):
            if test.threshold is None or GLOBAL not in test.choices:
                raise ConfigError(f"each row of by_threshold must have a threshold and how often {GLOBAL!r} answers")


def read_unseen(run: Path) -> UnseenTest | None:
    """Read the test on the site that was left out; None where there is none.

    Raises:
        ConfigError: The file is not what silofl wrote.
    """
    return read_file(UnseenTest, run / "unseen.json")
