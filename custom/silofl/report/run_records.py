"""Read all records in a run's folder: result, ledger, label names, weights, pictures and features."""

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from silofl.data.counts import FILE as DATA
from silofl.data.counts import DataCounts, SiteCounts
from silofl.errors import ConfigError
from silofl.federation.ledger import Round, find_best_round, read_ledger
from silofl.federation.outcome import unscored_results
from silofl.federation.results import UNFINISHED, Results, read_results
from silofl.files import read_json
from silofl.inference.unseen import UnseenTest, read_unseen
from silofl.schema import declare_optional, read_file, read_list, read_record
from silofl.study import Study, load_study

COMPARISONS = "comparisons.json"
# Of a simulation's copy of its job.
CONFIG = Path("job", "app", "config")
T = TypeVar("T", "Pictures", "SelectorFeatures")
ROUNDING = 1e-5


@dataclass(frozen=True)
class Pictures:
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
    pictures: dict[str, Pictures]
    features: dict[str, SelectorFeatures] = field(default_factory=dict)
    unseen: UnseenTest | None = None
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
    def metric(self) -> str:
        """The name of the values in figures."""
        return self.results.metric or "metric"

    @property
    def best_round(self) -> int | None:
        """The reported round; without a result, the first of the best on validation so far."""
        if self.results.best_round:
            return self.results.best_round
        best = find_best_round(self.ledger)
        return best and best.round

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
    pictures = _read_site_files(path, results, "pictures.npz", Pictures)
    return RunRecords(
        path=path,
        results=results,
        ledger=ledger or [],
        labels=study.labels if study else _number_labels(pictures),
        pictures=pictures,
        features=_read_site_files(path, results, "selector.npz", SelectorFeatures),
        unseen=read_unseen(path),
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


def pretrained_digest(run: RunRecords) -> str | None:
    """Return how the SHA-256 of a simulation's pretrained model begins; None where it needs none or has it no more."""
    if run.study is None or not run.study.recipe.needs_pretrained:
        return None
    file = run.path / CONFIG / run.study.model.pretrained
    return hashlib.sha256(file.read_bytes()).hexdigest()[:8] if file.is_file() else None


def run_names(runs: Sequence[RunRecords]) -> dict[str, RunRecords]:
    """Return name -> run: its row in the table, its algorithm, and preset, seed and what was set where runs differ."""
    differs = {key: len({getattr(run.results, key) for run in runs}) > 1 for key in ("preset", "seed")}
    named = ("name", "seed", "algorithm.name", "algorithm.preset")
    keys = dict.fromkeys(key for run in runs for key in run.changes if key not in named)
    set_apart = [key for key in keys if len({json.dumps(run.changes.get(key)) for run in runs}) > 1]
    names = {}
    for i, run in enumerate(runs, start=1):
        words = [f"{i}: {run.results.algorithm or run.path.name}"]
        words += [str(run.results.preset)] * differs["preset"] + [f"seed {run.results.seed}"] * differs["seed"]
        # A whole section has no place in a name.
        found = {key: run.changes[key] for key in set_apart if isinstance(run.changes.get(key), str | int | float)}
        words += [f"{key.rpartition('.')[2]}={value}" for key, value in found.items()]
        names[" ".join(words)] = run
    return names


def _read_study(run: Path) -> Study | None:
    # Of a simulation, and of a real federation's run.
    files = (run / CONFIG / "study.yaml", run / "model" / "study.yaml")
    return next((load_study(file) for file in files if file.is_file()), None)


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


def _number_labels(pictures: dict[str, Pictures]) -> dict[int, str]:
    numbers = {int(number) for shown in pictures.values() for number in np.unique(shown.truths)}
    return {number: f"label {number}" for number in sorted(numbers - {0})}
