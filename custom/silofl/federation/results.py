"""The record in a run's results.json.

A test score passes eight files on its way to the page: `training.metrics` computes it, a part's site half in
`parts` sends it, `training.site_score` has the fields that leave the site, `federation.outcome` makes one result of
all sites' scores, this file has its schema, `silofl_desk.report.run_records` reads it, `report.tables` puts it into a
cell, and `report.page` the cell on the page. Files between them pass it on unread;
`silofl_desk.report.sentences` alone reads it besides, for the page's first lines. On the page of a comparison the cell
is of `silofl_desk.studies.comparison`.

``python -m silofl.federation.results`` prints the schema as ``docs/results.md`` holds it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from silofl.errors import ConfigError, quote_value
from silofl.inference.super_results import SuperResults
from silofl.schema import declare_group, declare_optional, format_key_lists, read_file
from silofl.study.sections import CLASS_MEANS, RANKED
from silofl.training.joined import AT_ZERO, CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined, OwnModel
from silofl.training.metrics import mean_of_known
from silofl.training.site_score import (
    CallingScore,
    Counts,
    ExtraScore,
    MaybeCounts,
    SiteScore,
    SurfaceScore,
    Values,
    WithheldNumbers,
    mean_of_scores,
)
from silofl.training.spent import Privacy

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "results.json"
# Below a run's folder, a job that NVFlare has downloaded, and a workspace of NVFlare's simulator.
PLACES = (".", "workspace/silofl", "server/simulate_job/silofl")
Status = Literal["COMPLETE", "INCOMPLETE", "FAILED", "UNFINISHED"]
UNFINISHED: Status = "UNFINISHED"
# A key that no choice by an older rule has.
NEWER_KEY = "own_rounds"
OLDER_CHOICE = "an older version chose by another rule; run the study again"
FINISHED = ("COMPLETE", "INCOMPLETE")
# Null where a run has failed before its study was read.
OF_THE_STUDY = ("algorithm", "preset", "seed", "rounds", "metric", "normalization", "split_unit", "version")


@dataclass(frozen=True)
class Tested:
    """The keys of a run that reached the test of its model.

    Attributes:
        cases: Site -> test cases that count.
        patients: Site -> patients of these cases; null if one is unknown.
        excluded_cases: Site -> test cases left out: truth and prediction are both empty.
        by_label: Site -> label or region -> its mean value; the recall of a class.
        validation: Site -> validation score of the reported model, or of the site's own model in a super model.
        empty_cases: Segmentation: site -> test cases without any label in truth.
        false_positive_cases: Site -> empty cases in which a label is predicted; they count as 0.
        with_truth: Site -> mean over its other cases, if it has empty ones.
        surface: Segmentation: site -> surface distances of its test.
        extra_metrics: Segmentation: site -> a package's metric -> its test score.
        withheld: Site -> the withheld numbers of its test, labels by name; a wholly withheld test has no cases.
    """

    cases: Counts
    excluded_cases: Counts
    by_label: Mapping[str, Mapping[str, float]]
    validation: Mapping[str, SiteScore]
    empty_cases: Counts | None = declare_optional()
    false_positive_cases: Counts | None = declare_optional()
    with_truth: Values | None = declare_optional()
    surface: Mapping[str, SurfaceScore] | None = declare_optional()
    extra_metrics: Mapping[str, Mapping[str, ExtraScore]] | None = declare_optional()
    patients: MaybeCounts | None = declare_optional()
    withheld: Mapping[str, WithheldNumbers] | None = declare_optional()


@dataclass(frozen=True)
class ClassResults:
    """The further keys of a classification.

    Attributes:
        also: Classification: site -> accuracy, balanced_accuracy and, if defined, auroc.
        label_cases: Classification: site -> class -> its test cases; a finding's absence is a class too.
        areas: Multilabel: site -> finding -> area under its ROC curve (metric auprc: precision over recall).
        callings: Site -> temperature and thresholds of the model that it tested; keys are labels' names.
        class_areas: Not multilabel, if the metric is an area: site -> class -> area under its curve.
    """

    also: Mapping[str, Mapping[str, float]]
    label_cases: Mapping[str, Counts]
    areas: Mapping[str, Mapping[str, float]] | None = declare_optional()
    callings: Mapping[str, CallingScore] | None = declare_optional()
    class_areas: Mapping[str, Mapping[str, float]] | None = declare_optional()

    @property
    def by_site(self) -> Mapping[str, Mapping[str, float]]:
        """Site -> class, or finding -> area under its curve."""
        return self.areas or self.class_areas or {}


@dataclass(frozen=True)
class Everyone:
    """The sites' models on the test data of all sites, which only a simulation can measure.

    Attributes:
        accuracy: Mean over the models.
        balanced_accuracy: Mean over the models.
        by_site: Site -> accuracy, balanced_accuracy and auroc of its model.
        num_cases: Test cases of all sites.
    """

    accuracy: float
    balanced_accuracy: float
    by_site: Mapping[str, Mapping[str, float]]
    num_cases: int


@dataclass(frozen=True)
class SiteResult:
    """One site's part of a result; None or empty where it did not test the model.

    Attributes:
        value: The study's metric, mean over the site's test cases.
        num_cases: Test cases that count.
        num_patients: Patients of these cases; None where nobody knows one of them.
        num_excluded: Test cases left out.
        validation: The metric on validation data.
        labels: Label's name -> value of this label alone.
        also: A classification's other metrics.
        models: Model -> its value, of a run with several models.
        areas: Class, or finding -> area under its curve; where the metric is none, of findings alone.
        alone: Test value of the site's own model; it and all below only where the site chose a model.
        federated: Test value of the federated model with the decision threshold that the site's validation favours.
        kept: Test value of the one of both that the site keeps.
        difference: Mean paired difference over the test units, federated minus alone.
        interval: ``low`` and ``high``, the ends of its 95 % interval.
        verdict: What the site's test says of the kept model.
    """

    value: float | None
    num_cases: int | None
    num_patients: int | None
    num_excluded: int | None
    validation: float | None
    labels: Mapping[str, float]
    also: Mapping[str, float]
    models: Values
    areas: Mapping[str, float] = field(default_factory=dict)
    alone: float | None = None
    federated: float | None = None
    kept: float | None = None
    difference: float | None = None
    interval: Mapping[str, float | None] = field(default_factory=dict)
    verdict: str | None = None


NOTHING_TESTED = Tested({}, {}, {}, {})


@dataclass(frozen=True)
class Results:
    """The content of results.json, or the known part of it while a run has none yet.

    Attributes:
        study: The study's name.
        algorithm: The algorithm's name; null, like all facts of the study, if a run failed before its study was read.
        preset: Named choice of the algorithm's settings.
        recipe: Settings of the algorithm, each under its key of study.yaml.
        seed: The study's seed.
        rounds: Rounds of the study without extra ones.
        metric: The metric of all values, as in study.yaml.
        labels: Label's number -> its name.
        regions: Region -> its labels' numbers, if regions are scored instead of labels.
        normalization: Kind of the network's normalisation layers.
        split_unit: What training, validation and test data of a site must not share.
        version: Version of silofl that wrote the file.
        status: How the run ended; UNFINISHED is in no file.
        reasons: Why it is not COMPLETE, one sentence each.
        best_round: The reported round, from 1; null if a mean of rounds, or each site's own round, is reported.
        model: What is reported, and how it was chosen.
        sites: Site -> the metric, mean over its test cases; null without a test.
        mean: Mean over the sites with a value; null for means over classes if the sites' classes differ.
        spread: Standard deviation of the sites' values (divisor: their number).
        pooled: The metric over all test cases of all sites; means over classes class by class, weighted by each site's
            cases of the class.
        run: The run's id.
        was_stopped: Whether a FAILED run was aborted or killed from outside.
        tested: The further keys of a run that reached its test.
        classes: The further keys of a classification.
        super_model: The further keys of a run whose super model chooses.
        everyone: Simulated classification: the sites' models on all sites' test data.
        joining: Site -> the model that it kept, compared with its own.
        unchosen: Site -> why it chose no model.
        own_models: Local training: site -> the round of its own model that it reports.
        ended_early: Why federation.patience ended the run early.
        batchnorm: Sites whose filter removed BatchNorm, and what followed.
        privacy: What differential privacy has spent.
        left: Site that left for good -> the last round with an update of it.
        digest: SHA-256 of the study's settings, as site check and estimate print it.
    """

    study: str
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
    sites: Values
    mean: float | None
    spread: float | None
    pooled: float | None
    run: str | None = declare_optional()
    was_stopped: bool = declare_optional(False)
    tested: Tested = declare_group(NOTHING_TESTED)
    classes: ClassResults | None = declare_group(None)
    super_model: SuperResults | None = declare_group(None)
    everyone: Everyone | None = declare_optional()
    joining: Mapping[str, Joined] | None = declare_optional()
    unchosen: Mapping[str, str] | None = declare_optional()
    own_models: Mapping[str, OwnModel] | None = declare_optional()
    left: Mapping[str, int] | None = declare_optional()
    digest: str | None = declare_optional()
    ended_early: str | None = declare_optional()
    regions: Mapping[str, tuple[int, ...]] | None = declare_optional()
    privacy: Privacy | None = declare_optional()
    batchnorm: str | None = declare_optional()

    def __post_init__(self) -> None:
        """Refuse the result of a finished run without its test or its study, and a choice of no site of the run."""
        for key in ("run", *OF_THE_STUDY) if self.is_finished else ():
            if getattr(self, key) is None:
                raise ConfigError(f"{key} must be given with status {self.status}; it is missing")
        for site in sorted({*(self.joining or {})} - {*self.sites}):
            raise ConfigError(f"joining must be of sites of the run, not of {quote_value(site)}")
        for site in sorted(self.unchosen or {}):
            if site not in self.sites:
                raise ConfigError(f"unchosen must be of sites of the run, not of {quote_value(site)}")
            if site in (self.joining or {}):
                raise ConfigError(f"unchosen must be of sites without a choice, not of {quote_value(site)}")

    @property
    def is_finished(self) -> bool:
        """Whether the run has its numbers; a FAILED one can be resumed."""
        return self.status in FINISHED

    @property
    def is_evaluation(self) -> bool:
        """Whether a finished model was tested, and nothing trained."""
        return self.rounds == 0

    @property
    def has_findings(self) -> bool:
        """Whether the study's cases have any number of findings, each with an area of its own."""
        return self.classes is not None and self.classes.areas is not None

    @property
    def callings(self) -> Mapping[str, CallingScore]:
        """Site -> how its classes are called; empty of a segmentation."""
        return (self.classes and self.classes.callings) or {}

    @property
    def validation_mean(self) -> float | None:
        """The mean over sites of the validation of the reported model, by `mean_of_scores`."""
        return mean_of_scores(self.tested.validation.values())

    def mean_of_sites(self, values: Iterable[float | None], metric: str | None = None) -> float | None:
        """Return the mean over sites of a metric, or the study's; None of means over classes that differ by site."""
        known, cases = metric or self.metric, (self.classes.label_cases if self.classes else {}).values()
        classes = {frozenset(label for label, count in one.items() if count) for one in cases}
        # A site of one class has no area.
        differ = len({one for one in classes if known not in RANKED or len(one) > 1}) > 1
        return None if known in CLASS_MEANS and differ else mean_of_known(values)

    @property
    def joining_means(self) -> dict[str, float | None]:
        """Model -> mean of the test values over the sites that chose; empty without a choice."""
        sites = (self.joining or {}).values()
        names = (LOCAL, AT_ZERO, SHIFTED, FEDERATED, CHOSEN) if sites else ()
        return {name: self.mean_of_sites(one.tested(name) for one in sites) for name in names}

    @property
    def by_site(self) -> dict[str, SiteResult]:
        """Site -> its part of the result."""
        return {site: self._site_result(site) for site in self.sites}

    @property
    def has_global_model(self) -> bool:
        """Whether a super model's tests are of a global model too, as far as there are any tests."""
        tested = self.super_model.models.values() if self.super_model else ()
        return not tested or any("global" in values for values in tested)

    def to_frame(self) -> "DataFrame":
        """Return `by_site` as a table of pandas: a row per site, a column per number, as ``value`` or ``labels.organ``.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError(
                "pandas must be installed for to_frame, which it is not; install it, or take by_site, which has the "
                "same numbers"
            ) from None
        rows = [asdict(one) for one in self.by_site.values()]
        return pandas.json_normalize(rows).set_axis(list(self.by_site), axis="index")

    def recipe_value(self, key: str) -> object:
        """Return a value of the recipe; None where it has no such key."""
        return self.recipe.get(key)

    @property
    def questions(self) -> Mapping[str, str]:
        """The recipe's questions with its answers as sentences; nothing of a run whose recipe is not known."""
        return self.recipe.get("questions", {})

    def _site_result(self, site: str) -> SiteResult:
        tested = self.tested
        validation, joined = tested.validation.get(site), (self.joining or {}).get(site)
        return SiteResult(
            value=self.sites[site],
            num_cases=tested.cases.get(site),
            num_patients=(tested.patients or {}).get(site),
            num_excluded=tested.excluded_cases.get(site),
            validation=None if validation is None else validation.value,
            labels=tested.by_label.get(site, {}),
            also=self.classes.also.get(site, {}) if self.classes else {},
            models=self.super_model.models.get(site, {}) if self.super_model else {},
            areas=self.classes.by_site.get(site, {}) if self.classes else {},
            **(joined.summary if joined else {}),
        )


def read_results(folder: Path) -> Results | None:
    """Return the result in a run's folder; None where there is none yet.

    Raises:
        ConfigError: The file cannot be read, or is not what silofl wrote.
    """
    return read_file(Results, folder / FILE, _set_older_choices_aside)


def find_results(folder: Path) -> Results:
    """Return the result of a run.

    Args:
        folder: The run's folder, or what ``get_result`` of NVFlare's runs and ``nvflare job download`` name.

    Raises:
        ConfigError: There is none, or it is not what silofl wrote.
    """
    found = (read_results(folder / place) for place in PLACES)
    result = next((one for one in found if one is not None), None)
    if result is None:
        raise ConfigError(f"{folder} must hold the {FILE} of a run; it holds none: name the folder of a run")
    return result


def _set_older_choices_aside(values: Any) -> Any:  # noqa: ANN401
    """Return plain values without choices of older rules, whose own model learnt in the study's rounds alone."""
    found = values.get("joining") if isinstance(values, Mapping) else None
    joining = found if isinstance(found, Mapping) else {}
    tables = {site: one for site, one in joining.items() if isinstance(one, Mapping)}
    older = {site for site, one in tables.items() if NEWER_KEY not in one}
    if not older:
        return values
    rest = {site: one for site, one in joining.items() if site not in older}
    unchosen = dict(values.get("unchosen") or {}) | dict.fromkeys(sorted(older), OLDER_CHOICE)
    return dict(values) | {"joining": rest or None, "unchosen": unchosen}


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
