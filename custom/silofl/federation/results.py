"""The record in a run's results.json.

``python -m silofl.federation.results`` prints the schema as ``docs/results.md`` holds it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from silofl.base.errors import ConfigError
from silofl.base.schema import declare_optional, format_key_lists, read_file
from silofl.core.presets import refuse_removed
from silofl.inference.super_results import SuperResults
from silofl.study.former_keys import rename_former_recipe
from silofl.study.sections import CLASS_MEANS, RANKED
from silofl.training.joined import AT_ZERO, CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined, ReportedLocalModel
from silofl.training.metrics import mean_of_known
from silofl.training.privacy_budget import Privacy
from silofl.training.site_score import OperatingPointScore, SiteScore, mean_of_scores

FILE = "results.json"
# Below a run's folder, a job that NVFlare has downloaded, and a workspace of NVFlare's simulator.
PLACES = (".", "workspace/silofl", "server/simulate_job/silofl")
Status = Literal["COMPLETE", "INCOMPLETE", "FAILED", "UNFINISHED"]
UNFINISHED: Status = "UNFINISHED"
FINISHED = ("COMPLETE", "INCOMPLETE")
# Null where a run has failed before its study was read.
OF_THE_STUDY = ("task", "algorithm", "preset", "seed", "rounds", "metric", "normalization", "split_unit", "version")


@dataclass(frozen=True)
class Results:
    """The content of results.json, or the known part of it while a run has none yet.

    Attributes:
        study: The study's name.
        task: segmentation, classification or multilabel.
        algorithm: The algorithm's name; null if a run failed before its study was read.
        preset: Named choice of the algorithm's settings.
        recipe: Settings of the algorithm, each under its key of study.yaml.
        seed: The study's seed.
        rounds: Rounds of the study without extra ones.
        metric: The metric of all values, as in study.yaml.
        labels: Label's number -> its name.
        regions: Region -> its labels' numbers, if regions are scored.
        normalization: Kind of the network's normalisation layers.
        split_unit: What training, validation and test data of a site must not share.
        version: Version of silofl that wrote the file.
        status: How the run ended; UNFINISHED is in no file.
        reasons: Why it is not COMPLETE.
        best_round: The reported round, from 1; null if each site reports its own.
        model: What is reported, and how it was chosen.
        sites: Site -> its test; null without one.
        mean: Mean over the sites with a value; null for means over classes if the sites' classes differ.
        pooled: The metric over all test cases of all sites; means over classes class by class, weighted by each site's
            cases of the class.
        validation: Site -> validation score of the reported model, or of the site's own model in a super model.
        run: The run's id.
        was_stopped: Whether a FAILED run was killed from outside.
        super_model: If a super model chooses.
        joining: Site -> its choice.
        local_models: Local training: site -> the round of its own model that it reports.
        ended_early: Why federation.patience ended training early.
        privacy: What differential privacy has spent.
    """

    # Release 0.4 wrote the key on the left.
    RENAMED_KEYS: ClassVar = {"own_models": "local_models"}
    # Keys of its results that are not read any more.
    FORMER_KEYS: ClassVar = ("spread", "everyone", "unchosen", "left", "digest", "batchnorm", "cautions")
    study: str
    task: str | None
    algorithm: str | None
    preset: str | None
    recipe: Mapping[str, Any]
    seed: int | None
    rounds: int | None
    metric: str | None
    labels: Mapping[str, str]
    normalization: str | None
    split_unit: str | None
    version: str | None
    status: Status
    reasons: tuple[str, ...]
    best_round: int | None
    model: str | None
    sites: Mapping[str, SiteScore | None]
    mean: float | None
    pooled: float | None
    validation: Mapping[str, SiteScore]
    run: str | None = declare_optional()
    was_stopped: bool = declare_optional(False)
    super_model: SuperResults | None = declare_optional()
    joining: Mapping[str, Joined] | None = declare_optional()
    local_models: Mapping[str, ReportedLocalModel] | None = declare_optional()
    ended_early: str | None = declare_optional()
    regions: Mapping[str, tuple[int, ...]] | None = declare_optional()
    privacy: Privacy | None = declare_optional()

    def __post_init__(self) -> None:
        """Refuse the result of a finished run without its run or its study."""
        refuse_removed(self.algorithm)
        object.__setattr__(self, "recipe", rename_former_recipe(self.recipe))
        for key in ("run", *OF_THE_STUDY):
            if self.is_finished and getattr(self, key) is None:
                raise ConfigError(f"{key} is missing with status {self.status}")

    @property
    def is_finished(self) -> bool:
        """Whether the run has its numbers; a FAILED one can be resumed."""
        return self.status in FINISHED

    @property
    def is_evaluation(self) -> bool:
        """Whether a finished model was tested, and nothing trained."""
        return self.rounds == 0

    @property
    def values(self) -> dict[str, float | None]:
        """Site -> the metric, mean over its test cases; None without a test."""
        return {site: score.value if score else None for site, score in self.sites.items()}

    @property
    def spread(self) -> float | None:
        """Standard deviation of the sites' values (divisor: their number); None where they have no mean."""
        if self.mean is None:
            return None
        return float(np.std([value for value in self.values.values() if value is not None]))

    @property
    def tests(self) -> dict[str, SiteScore]:
        """Site -> its test, of the sites that have one."""
        return {site: score for site, score in self.sites.items() if score is not None}

    @property
    def has_findings(self) -> bool:
        """Whether the study's cases have any number of findings, each with an area of its own."""
        return self.task == "multilabel"

    @property
    def has_classes(self) -> bool:
        """Whether classes, or findings, were answered in a test."""
        return self.task in ("classification", "multilabel") and bool(self.sites)

    @property
    def has_areas(self) -> bool:
        """Whether tests have an area under a curve for each class, or finding."""
        return bool(self.tests) and (self.has_findings or self.metric in RANKED)

    @property
    def operating_points_by_site(self) -> Mapping[str, OperatingPointScore]:
        """Site -> how its classes are called; empty of a segmentation."""
        return {site: score.operating_point for site, score in self.tests.items() if score.operating_point}

    @property
    def validation_mean(self) -> float | None:
        """The mean over sites of the validation of the reported model, by `mean_of_scores`."""
        return mean_of_scores(self.validation.values())

    def mean_of_sites(self, values: Iterable[float | None], metric: str | None = None) -> float | None:
        """Return the mean over sites of a metric, or the study's; None of means over classes that differ by site."""
        metric = metric or self.metric
        classes = set()
        for score in self.tests.values():
            labels = frozenset(label for label, count in (score.label_cases or {}).items() if count)
            # A site that withholds classes has a mean over the others as the study's metric alone.
            is_counted = metric == self.metric or not score.withheld
            # A site of one class has no area.
            if is_counted and (metric not in RANKED or len(labels) > 1):
                classes.add(labels)
        return None if metric in CLASS_MEANS and len(classes) > 1 else mean_of_known(values)

    @property
    def joining_means(self) -> dict[str, float | None]:
        """Model -> mean of the test values over the sites that chose; empty without a choice."""
        means = {}
        if self.joining:
            for name in (LOCAL, AT_ZERO, SHIFTED, FEDERATED, CHOSEN):
                means[name] = self.mean_of_sites(choice.tested(name) for choice in self.joining.values())
        return means


def read_results(folder: Path) -> Results | None:
    """Return the result in a run's folder; None where there is none yet.

    Raises:
        ConfigError: The file cannot be read, or is not what silofl wrote.
    """
    return read_file(Results, folder / FILE)


def find_results(folder: Path) -> Results:
    """Return the result of a run.

    Args:
        folder: The run's folder, or what ``get_result`` of NVFlare's runs and ``nvflare job download`` name.

    Raises:
        ConfigError: There is none, or it is not what silofl wrote.
    """
    for place in PLACES:
        results = read_results(folder / place)
        if results is not None:
            return results
    raise ConfigError(f"{folder} has no {FILE}; name the folder of a run")


PAGE = """# results.json

Every run ends with this file in its folder, whatever happened. A key with ? may be absent. `a -> b` is a table of `b`
by `a`. Values of metrics lie in [0, 1].

<!-- Generated: PYTHONPATH=custom python -m silofl.federation.results > docs/results.md -->

{lists}"""


def schema_page() -> str:
    """Return ``docs/results.md``."""
    return PAGE.format(lists=format_key_lists(Results))


if __name__ == "__main__":
    print(schema_page(), end="")
