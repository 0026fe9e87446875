"""Read all records in a run's folder, and list its settings and its data."""

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from silofl.data.counts import FILE as DATA
from silofl.data.counts import DataCounts, SiteCounts
from silofl.data.manifest import PARTS
from silofl.errors import ConfigError
from silofl.federation.ledger import Round, find_best_round, read_ledger
from silofl.federation.outcome import unscored_results
from silofl.federation.results import UNFINISHED, Results, read_results
from silofl.files import read_json
from silofl.inference.directory import plain_study
from silofl.inference.evaluations import FILE as EVALUATIONS
from silofl.inference.evaluations import Evaluations
from silofl.inference.unseen import UnseenTest, read_unseen
from silofl.report.tables import TextTable
from silofl.schema import declare_optional, read_file, read_list, read_record
from silofl.settings import setting_text
from silofl.study import STORED, Study, load_study

COMPARISONS = "comparisons.json"
# Of a simulation's copy of its job.
CONFIG = Path("job", "app", "config")
T = TypeVar("T", "CasePictures", "SelectorFeatures")
ROUNDING = 1e-5
COUNTED = {"cases": "cases", "patients": "patients", "examples": "images"}
UNKNOWN = "unknown"


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
        kept: What the model predicts that the site keeps, label maps as the predictions; None without a choice.
        kept_values: Its metric of each whole case, shape (n,); NaN of a case that does not count.
        is_ranked: Whether a case is the worst, the median or the best, shape (n,); None where all are.
    """

    images: NDArray
    normalized: NDArray
    truths: NDArray
    predictions: NDArray
    values: NDArray
    cases: NDArray
    kept: NDArray | None = None
    kept_values: NDArray | None = None
    is_ranked: NDArray | None = None

    @property
    def ranked_places(self) -> list[int]:
        """Places of the worst, the median and the best case; a case that is two of them counts once."""
        places = range(len(self.cases)) if self.is_ranked is None else np.flatnonzero(self.is_ranked).tolist()
        return [i for i in places if self.cases[i] not in self.cases[:i]]

    @property
    def is_normalized(self) -> bool:
        """Whether the network saw other images than the files hold, by more than the windows of volumes round."""
        return not np.allclose(self.images, self.normalized, rtol=ROUNDING, atol=ROUNDING)


@dataclass(frozen=True)
class SelectorFeatures:
    """The output of FedSM's selector for a site's validation and test images.

    Attributes:
        features: The inputs of its last layer, shape (n, F).
        scores: Its probabilities, shape (n, outputs).
        outputs: The names of the outputs: sites, and ``global`` where it knows the global model too.
    """

    features: NDArray
    scores: NDArray
    outputs: NDArray


@dataclass(frozen=True)
class SiteWeights:
    """AdaFed's weights and distances between sites, as computed before one round.

    Attributes:
        round: The finished rounds before it.
        source: The statistics by which sites are compared: ``pretrained`` or ``running``.
        layers: ``all`` BatchNorm layers, or the ``last`` layer.
        self_weight: The paper's lambda.
        sites: In the order of rows and columns.
        distances: Shape (K, K), None where a site shares no statistics.
        weights: Shape (K, K): how much the site of a row listens to that of a column; rows sum to 1.
        without: Site -> why it shares no statistics.
    """

    round: int
    source: str
    layers: str
    self_weight: float
    sites: tuple[str, ...]
    distances: tuple[tuple[float | None, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    without: Mapping[str, str]

    def __post_init__(self) -> None:
        for name in ("distances", "weights"):
            sizes = [len(row) for row in getattr(self, name)]
            if sizes != [len(self.sites)] * len(self.sites):
                raise ConfigError(f"{name} must have {len(self.sites)} rows and columns, not rows of {sizes}")

    def weight(self, listener: str, heard: str) -> float:
        """Return how much a site listens to another; 0 for one that had not joined yet."""
        return self.weights[self.sites.index(listener)][self.sites.index(heard)] if heard in self.sites else 0.0


@dataclass(frozen=True)
class Changes:
    """The part of run.json that a report shows.

    Attributes:
        changes: The changes of the command line to the study, by dotted key.
    """

    changes: Mapping[str, Any] | None = declare_optional()


@dataclass(frozen=True)
class Comparisons:
    """The content of comparisons.json.

    Attributes:
        pages: Pages that compare the run with others, by their paths from its folder.
    """

    pages: tuple[str, ...]


@dataclass(frozen=True)
class RunRecords:
    """All records in a run's folder.

    Attributes:
        results: The result; without one, the study's facts with status ``UNFINISHED``.
        ledger: The finished rounds.
        labels: Number -> name; the pictures' numbers where the folder holds no study.
        pictures: Site -> its pictures; the sites of a real federation keep theirs.
        features: Site -> the selector's output for its images; the sites of a real federation keep theirs.
        unseen: The super model at a site that took no part in the training; None where it was not tested.
        evaluations: What hospitals say of a model in a run that trains none; None of any other.
        site_weights: AdaFed's weights between sites, each time that they were computed.
        changes: The changes of the command line to a simulation's study, by dotted key.
        study: What it ran; None where the folder holds no study.yaml.
        data: Site -> the size of its data; nothing of a real federation, where only the sites know.
        comparisons: Pages that compare it with other runs, by their paths from its folder.
    """

    path: Path
    results: Results
    ledger: list[Round]
    labels: dict[int, str]
    pictures: dict[str, CasePictures]
    features: dict[str, SelectorFeatures] = field(default_factory=dict)
    unseen: UnseenTest | None = None
    evaluations: Evaluations | None = None
    site_weights: list[SiteWeights] = field(default_factory=list)
    changes: Mapping[str, Any] = field(default_factory=dict)
    study: Study | None = None
    data: Mapping[str, SiteCounts] = field(default_factory=dict)
    comparisons: Sequence[str] = ()

    @property
    def sites(self) -> list[str]:
        """All sites that were asked or have a result."""
        return sorted({*self.results.sites, *(site for record in self.ledger for site in record.asked)})

    @property
    def method(self) -> str:
        """What a table of this run alone calls it."""
        return self.results.algorithm or self.path.name

    @property
    def metric(self) -> str:
        """The name of the values in figures."""
        return self.results.metric or "metric"

    @property
    def best_round(self) -> int | None:
        """The reported round, None of a mean of rounds; without a result, the best on validation so far."""
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
    found, ledger = read_results(path), read_ledger(path)
    if found is None and ledger is None and not (path / "run.json").is_file():
        raise ConfigError(
            f"{path} must be the folder of a run; it holds no results.json, ledger.json or run.json: name the folder "
            "given to --out, or that of a download"
        )
    study, data = _read_study(path), read_file(DataCounts, path / DATA)
    results = found or unscored_results(study or path.name, UNFINISHED)
    pictures = _read_site_files(path, results, "pictures.npz", CasePictures)
    return RunRecords(
        path=path,
        results=results,
        ledger=ledger or [],
        labels=study.labels if study else _number_labels(pictures),
        pictures=pictures,
        features=_read_site_files(path, results, "selector.npz", SelectorFeatures),
        unseen=read_unseen(path),
        evaluations=read_file(Evaluations, path / EVALUATIONS),
        site_weights=read_list(SiteWeights, path / "weights.json") or [],
        changes=_read_changes_file(path / "run.json"),
        study=study,
        data=data.sites if data else {},
        comparisons=read_comparisons(path),
    )


def read_comparisons(run: Path) -> tuple[str, ...]:
    """Return the pages that compare a run with others, by their paths from its folder."""
    listed = read_file(Comparisons, run / COMPARISONS)
    return listed.pages if listed else ()


def _read_study(run: Path) -> Study | None:
    # Of a simulation, and of a real federation's run.
    files = (run / CONFIG / "study.yaml", run / "model" / "study.yaml")
    return next((load_study(file, STORED) for file in files if file.is_file()), None)


def _read_changes_file(path: Path) -> Mapping[str, Any]:
    values = read_json(path, absent={})
    return read_record(Changes, {key: values[key] for key in ("changes",) if key in values}, str(path)).changes or {}


def _read_site_files(path: Path, results: Results, name: str, kind: type[T]) -> dict[str, T]:
    """Read the files of one name that the sites of a simulation keep."""
    run = results.run
    files = {site: path / "sites" / site / run / name for site in sorted(results.sites)} if run else {}
    return {site: _read_arrays(file, site, kind) for site, file in files.items() if file.is_file()}


def _read_arrays(path: Path, site: str, kind: type[T]) -> T:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            # Those with a default are not in every file.
            wanted = [part.name for part in fields(kind) if part.name in arrays or part.default is MISSING]
            return kind(**{name: arrays[name] for name in wanted})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise ConfigError(
            f"{path.stem} of site {site!r} must be a readable {path.name}, not {path}; "
            "remove it for a report without it"
        ) from None


def _number_labels(pictures: dict[str, CasePictures]) -> dict[int, str]:
    numbers = {int(number) for shown in pictures.values() for number in np.unique(shown.truths)}
    return {number: f"label {number}" for number in sorted(numbers - {0})}


# Name of a row -> its runs, one for each seed.
RowRuns = Mapping[str, Sequence[RunRecords]]


def all_settings(run: RunRecords) -> dict[str, str]:
    """Return dotted key -> value of all that the run's study decides; of a run without its study what is known."""
    known = (flat_settings(plain_study(run.study)) if run.study else {}) | _known_settings(run.results)
    sections = list(dict.fromkeys(key.partition(".")[0] for key in known))
    return dict(sorted(known.items(), key=lambda item: sections.index(item[0].partition(".")[0])))


def data_table(run: RunRecords) -> TextTable | None:
    """Return one row a site: cases, patients and 2D images of each part; None of a run without any site."""
    head = (f"{part}: {name}" for part in PARTS for name in COUNTED.values())
    # A simulation knows its data before it has asked a site for anything.
    sites = run.sites or sorted(run.data)
    rows = tuple((site, *map(describe_count, count_data(run, site).values())) for site in sites)
    return TextTable(("site", *head), rows) if rows else None


def data_doubts(runs: Iterable[RunRecords]) -> list[str]:
    """Return what should be looked at of the sites' data, as ``site: sentence``; simulations alone know it."""
    return list(dict.fromkeys(f"{site}: {text}" for run in runs for site in run.data for text in run.data[site].doubts))


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


def _known_settings(results: Results) -> dict[str, str]:
    """Return the settings that a result repeats, its algorithm's defaults among them."""
    answers = {key: value for key, value in results.recipe.items() if key not in ("questions", "cautions", "constants")}
    known = {
        "rounds": results.rounds,
        "seed": results.seed,
        "metric": results.metric,
        "data": {"split_unit": results.split_unit},
        "model": {"normalization": results.normalization},
        "algorithm": {"name": results.algorithm, "preset": results.preset, **answers},
    }
    known["algorithm"] |= results.recipe.get("constants", {})
    return {key: text for key, text in flat_settings(known).items() if text != "null"}


def count_data(run: RunRecords, site: str) -> dict[tuple[str, str], int | None]:
    """Return (part, unit) -> count; where a run has no data.json, what sites told of themselves."""
    if site in run.data:
        parts = {part: getattr(run.data[site], part) for part in PARTS}
        return {(part, unit): getattr(counts, unit) for part, counts in parts.items() for unit in COUNTED}
    counts = dict.fromkeys((part, unit) for part in PARTS for unit in COUNTED)
    tested, validated = run.results.tested, run.results.tested.validation.get(site)
    if site in tested.cases:
        counts["test", "cases"] = tested.cases[site] + tested.excluded_cases.get(site, 0)
    if validated is not None:
        counts["validation", "cases"] = validated.num_cases + validated.num_excluded
    examples = [record.examples[site] for record in run.ledger if site in record.examples]
    return counts | {("training", "examples"): examples[-1] if examples else None}


def describe_count(count: int | None) -> str:
    """Return a number of cases, patients or images, or that nobody knows it."""
    return UNKNOWN if count is None else str(count)
