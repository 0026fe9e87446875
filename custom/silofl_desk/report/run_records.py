"""Read all records in a run's folder, and list its settings, its data and all its numbers.

The numbers are one tidy table, ``results.csv``, one a row; those of each round are in ``metrics.csv``.
"""

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError
from silofl.base.schema import read_file
from silofl.base.settings import setting_text
from silofl.data.counts import FILE as DATA
from silofl.data.counts import DataCounts, SiteCounts
from silofl.data.manifest import PARTS
from silofl.federation.ledger import Round, find_best_round, read_ledger
from silofl.federation.results import UNFINISHED, Results, read_results
from silofl.federation.unscored import unscored_results
from silofl.inference.choice import ENSEMBLE
from silofl.inference.evaluations import FILE as EVALUATIONS
from silofl.inference.evaluations import Evaluations
from silofl.study import STORED, Study, load_study, plain_study
from silofl.study.sections import RANKED
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined
from silofl.training.site_score import SiteScore
from silofl_desk.report.unseen import UnseenTest, read_unseen
from silofl_hospital.report.tables import TextTable

# A simulation keeps a copy of its job here.
CONFIG = Path("job", "app", "config")
ROUNDING = 1e-5
COUNTED = {"cases": "cases", "patients": "patients", "examples": "images"}
UNKNOWN = "unknown"
UNTESTED = SiteScore(value=None, num_cases=0, num_excluded=0)


@dataclass(frozen=True)
class CasePictures:
    """A site's worst, median and best test case, and one that is the same for every model; one slice each.

    Attributes:
        images: Shape (n, C, H, W).
        normalized: ``images`` after amplitude normalisation, as the network sees them, the same shape.
        truths: Label maps, shape (n, H, W).
        predictions: Label maps, shape (n, H, W).
        values: The metric of each whole case, shape (n,).
        cases: Names of the cases, shape (n,).
        own: What the site's local model predicts, label maps as the predictions; None without one.
        local_values: Its metric of each whole case, shape (n,); NaN of a case that does not count.
        is_ranked: Whether a case is the worst, the median or the best, shape (n,); None where all are.
        scored: Numbers of the labels, or names of the regions, shape (m,); None in files of release 0.4.
        label_values: The metric of each whole case by them, shape (n, m); NaN where a label does not count.
    """

    images: NDArray[Any]
    normalized: NDArray[Any]
    truths: NDArray[Any]
    predictions: NDArray[Any]
    values: NDArray[Any]
    cases: NDArray[Any]
    own: NDArray[Any] | None = None
    local_values: NDArray[Any] | None = None
    is_ranked: NDArray[Any] | None = None
    scored: NDArray[Any] | None = None
    label_values: NDArray[Any] | None = None

    @property
    def ranked_places(self) -> list[int]:
        """Places of the worst, the median and the best case; a case that is two of them counts once."""
        places = list(range(len(self.cases)))
        if self.is_ranked is not None:
            places = np.flatnonzero(self.is_ranked).tolist()
        # A small site's worst case may be its median too.
        return [place for place in places if self.cases[place] not in self.cases[:place]]

    @property
    def is_normalized(self) -> bool:
        """Whether the network saw other images than the files hold, by more than the windows of volumes round."""
        return not np.allclose(self.images, self.normalized, rtol=ROUNDING, atol=ROUNDING)


@dataclass(frozen=True)
class RunRecords:
    """All records in a run's folder.

    Attributes:
        results: The result; without one, the study's facts with status ``UNFINISHED``.
        ledger: The finished rounds.
        labels: Number -> name; none where the folder holds no study.
        pictures: Site -> its pictures; the sites of a real federation keep theirs.
        unseen: The super model at a site that took no part in the training; None where it was not tested.
        evaluations: What hospitals say of a model in a run that trains none; None of any other.
        study: What it ran; None where the folder holds no study.yaml.
        data: Site -> the size of its data; nothing of a real federation, where only the sites know.
    """

    path: Path
    results: Results
    ledger: list[Round]
    labels: dict[int, str]
    pictures: dict[str, CasePictures]
    unseen: UnseenTest | None = None
    evaluations: Evaluations | None = None
    study: Study | None = None
    data: Mapping[str, SiteCounts] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """All sites that were asked or have a result."""
        sites = set(self.results.sites)
        for record in self.ledger:
            sites.update(record.asked)
        return sorted(sites)

    @property
    def metric(self) -> str:
        """The name of the values in figures."""
        return self.results.metric or "metric"

    @property
    def best_round(self) -> int | None:
        """The reported round, None where each site reports its own; without a result, the best on validation so far."""
        return self.results.best_round if self.results.model else find_best_round(self.ledger)

    @property
    def is_simulation(self) -> bool:
        """Whether the folder holds a simulation, which the command line can go on with."""
        return (self.path / "run.json").is_file()


def read_run(path: Path) -> RunRecords:
    """Read a run's folder, finished or not.

    Raises:
        ConfigError: The folder is no run, or one of its files is broken.
    """
    stored = read_results(path)
    ledger = read_ledger(path)
    if stored is None and ledger is None and not (path / "run.json").is_file():
        raise ConfigError(
            f"{path} has no results.json, ledger.json or run.json; name the folder given to --out, or that of a "
            "download"
        )
    # A simulation has the first, the run of a real federation the second.
    files = (path / CONFIG / "study.yaml", path / "model" / "study.yaml")
    study = next((load_study(file, STORED) for file in files if file.is_file()), None)
    data = read_file(DataCounts, path / DATA)
    results = stored or unscored_results(study or path.name, UNFINISHED)
    pictures = _read_pictures(path, results)
    return RunRecords(
        path=path,
        results=results,
        ledger=ledger or [],
        labels=study.labels if study else {},
        pictures=pictures,
        unseen=read_unseen(path),
        evaluations=read_file(Evaluations, path / EVALUATIONS),
        study=study,
        data=data.sites if data else {},
    )


def _read_pictures(path: Path, results: Results) -> dict[str, CasePictures]:
    """Read the pictures that the sites of a simulation keep."""
    pictures: dict[str, CasePictures] = {}
    if results.run is None:
        return pictures
    for site in sorted(results.sites):
        file = path / "sites" / site / results.run / "pictures.npz"
        if not file.is_file():
            continue
        try:
            with np.load(file, allow_pickle=False) as arrays:
                # Parts with a default are not in every file.
                wanted = [part.name for part in fields(CasePictures) if part.name in arrays or part.default is MISSING]
                values = {name: arrays[name] for name in wanted}
                # Release 0.4 wrote this name.
                if "own_values" in arrays:
                    values["local_values"] = arrays["own_values"]
                pictures[site] = CasePictures(**values)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            raise ConfigError(
                f"{file}, the pictures of site {site!r}, cannot be read; remove it for a report without it"
            ) from None
    return pictures


# Name of a row -> its runs, one for each seed.
RowRuns = Mapping[str, Sequence[RunRecords]]


# What a class of another package does without.
OF_OWN_NETWORKS = ("model.name", "model.features", "model.dropout")


def all_settings(run: RunRecords) -> dict[str, str]:
    """Return dotted key -> value of all that the run's study decides; of a run without its study what is known."""
    # The study goes first and the result last, which knows what the algorithm's defaults became.
    settings = _repeated_settings(run.results)
    if run.study:
        settings = flat_settings(plain_study(run.study)) | settings
    if "model.network" in settings:
        settings = {key: value for key, value in settings.items() if key not in OF_OWN_NETWORKS}
    # The sections stay in the study's order; what a result adds stands with its section.
    sections: dict[str, dict[str, str]] = {}
    for key, value in settings.items():
        sections.setdefault(key.partition(".")[0], {})[key] = value
    return dict(chain.from_iterable(section.items() for section in sections.values()))


def data_table(run: RunRecords) -> TextTable | None:
    """Return one row a site: cases, patients and 2D images of each part; None of a run without any site."""
    head = [f"{part}: {name}" for part, name in product(PARTS, COUNTED.values())]
    # A simulation knows its data before it has asked a site for anything.
    sites = run.sites or sorted(run.data)
    rows = tuple((site, *map(describe_count, count_data(run, site).values())) for site in sites)
    return TextTable(("site", *head), rows) if rows else None


def list_data_warnings(runs: Iterable[RunRecords]) -> list[str]:
    """Return what should be looked at of the sites' data, as ``site: sentence``; simulations alone know it."""
    # Runs of several seeds have the same data, and their warnings are said once.
    warnings: dict[str, None] = {}
    for run in runs:
        for site, counts in run.data.items():
            warnings |= dict.fromkeys(f"{site}: {text}" for text in counts.warnings)
    return list(warnings)


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return dotted key -> text of the values of a study; its labels, regions and transforms are one value each."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        # Their keys are numbers and names of the study's own; one by one they would read as settings of SiloFL.
        if isinstance(value, Mapping) and key not in ("labels", "regions"):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = setting_text(value)
    return flat


def _repeated_settings(results: Results) -> dict[str, str]:
    """Return the settings that a result repeats, its algorithm's defaults among them."""
    answers = {key: value for key, value in results.recipe.items() if key not in ("questions", "cautions", "constants")}
    settings = {
        "rounds": results.rounds,
        "seed": results.seed,
        "metric": results.metric,
        "data": {"split_unit": results.split_unit},
        "model": {"normalization": results.normalization},
        "algorithm": {"name": results.algorithm, "preset": results.preset, **answers},
    }
    settings["algorithm"] |= results.recipe.get("constants", {})
    return {key: text for key, text in flat_settings(settings).items() if text != "null"}


def count_data(run: RunRecords, site: str) -> dict[tuple[str, str], int | None]:
    """Return (part, unit) -> count; where a run has no data.json, what sites told of themselves."""
    counts: dict[tuple[str, str], int | None] = dict.fromkeys(product(PARTS, COUNTED))
    if site in run.data:
        for part, unit in counts:
            counts[part, unit] = getattr(getattr(run.data[site], part), unit)
        return counts
    test = run.results.sites.get(site)
    # A score that is withheld has no true number of cases.
    if test is not None and not test.is_withheld:
        counts["test", "cases"] = test.num_cases + test.num_excluded
    validation = run.results.validation.get(site)
    if validation is not None:
        counts["validation", "cases"] = validation.num_cases + validation.num_excluded
    # A later round goes before an earlier one.
    for record in run.ledger:
        if site in record.examples:
            counts["training", "examples"] = record.examples[site]
    return counts


def describe_count(count: int | None) -> str:
    """Return a number of cases, patients or images, or that nobody knows it."""
    return UNKNOWN if count is None else str(count)


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One number of a result.

    Attributes:
        method: Name of the row of the comparison that the run belongs to; of a single run its algorithm.
        run: The run's id.
        algorithm: The algorithm's name.
        seed: Of the study.
        site: Whose data the number is of.
        model: ``federated`` is the model that the run tests, ``federated_calibrated`` the same with a decision
            threshold of the site, ``local`` the one that the site trained by itself, and ``kept`` what it chose. A
            super model also has ``global``, ``ensemble``, ``super`` and its sites' names.
        part: ``validation``, ``test``, or ``unseen``: all data of a site that took no part in the training.
        metric: The study's metric; another one of a classification, of the surfaces or of a package; or ``gain``, the
            mean paired difference of federated and local over the test units, while the values are means over cases.
        label: Name of the label that the number is of; empty where it is of all labels.
        value: The number; empty where the site has none.
        low: Lower end of a gain's 95 % interval.
        high: Its upper end.
        cases: Cases that count in the number, where they are known: of the model that the run tests.
        verdict: What the gain says.
    """

    method: str
    run: str | None
    algorithm: str | None
    seed: int | None
    site: str
    model: str = FEDERATED
    part: str = "test"
    metric: str
    label: str = ""
    value: float | None
    low: float | None = None
    high: float | None = None
    cases: int | None = None
    verdict: str = ""


def list_result_rows(rows: RowRuns) -> list[ResultRow]:
    """Return the numbers of several runs; a run without numbers has none."""
    listed: list[ResultRow] = []
    for method, runs in rows.items():
        for run in runs:
            listed += _list_run_rows(method, run)
    return listed


def _list_run_rows(method: str, run: RunRecords) -> Iterator[ResultRow]:
    results = run.results
    # Each site starts from what all numbers of the run have in common.
    row = partial(ResultRow, method=method, run=results.run, algorithm=results.algorithm, seed=results.seed)
    # A class has its recall, whatever the metric.
    of_label = "recall" if results.has_classes else str(results.metric)
    of_area = results.metric if results.metric in RANKED else "auroc"
    for site, score in results.sites.items():
        test = score or UNTESTED
        cases = None if score is None or test.is_withheld else test.num_cases
        of_site = partial(row, site=site, metric=str(results.metric))
        yield of_site(value=test.value, cases=cases)
        for name, value in (test.labels or {}).items():
            yield of_site(metric=of_label, label=name, value=value)
        for name, value in (test.areas or {}).items():
            yield of_site(metric=of_area, label=name, value=value)
        for name, value in (test.also or {}).items():
            if name != results.metric:
                yield of_site(metric=name, value=value, cases=cases)
        for model, value_of_model in (test.models or {}).items():
            yield of_site(model=model, value=value_of_model)
        if joined := (results.joining or {}).get(site):
            yield from _joined_rows(joined, of_site)
        if surface := test.surface:
            yield of_site(metric=f"hd95_{surface.unit}", value=surface.hd95, cases=surface.num_cases)
            yield of_site(metric="surface_dice", value=surface.surface_dice, cases=surface.num_cases)
        for name, extra in (test.extra_metrics or {}).items():
            yield of_site(metric=name, value=extra.value, cases=extra.num_cases)
        validation = results.validation.get(site)
        if validation is not None and validation.value is not None:
            yield of_site(part="validation", value=validation.value, cases=validation.num_cases)
    if run.unseen:
        yield from _unseen_rows(run.unseen, row)


def _joined_rows(joined: Joined, row: partial[ResultRow]) -> Iterator[ResultRow]:
    for model, name in ((LOCAL, "local"), (SHIFTED, SHIFTED), (CHOSEN, "kept")):
        yield row(model=name, value=joined.tested(model))
    # The gain is paired by test unit, so it need not be the difference of the two values.
    yield row(
        model=SHIFTED,
        metric="gain",
        value=joined.difference,
        low=joined.low,
        high=joined.high,
        verdict=joined.verdict,
    )


def _unseen_rows(unseen: UnseenTest, row: partial[ResultRow]) -> Iterator[ResultRow]:
    at_site = partial(row, site=unseen.site, part="unseen", metric=unseen.metric)
    yield at_site(value=unseen.value, cases=unseen.num_counted)
    for model, value in unseen.models.items():
        yield at_site(model=model, value=value)
    for site, value in (unseen.own or {}).items():
        yield at_site(model="local models' mean" if site == ENSEMBLE else f"local model of {site}", value=value)
