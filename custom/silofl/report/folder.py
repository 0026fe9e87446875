"""A run's folder as the report reads it: result, ledger, label names, weights, the sites' pictures and features."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from silofl.errors import ConfigError
from silofl.federation.ledger import Round
from silofl.study import Study, load_study

J = TypeVar("J", dict, list)
T = TypeVar("T", "Pictures", "SelectorFeatures")
UNFINISHED = "UNFINISHED"


@dataclass(frozen=True)
class Pictures:
    """A site's worst, median and best test case, one slice each.

    Attributes:
        images: Shape (n, C, H, W).
        normalized: What the network sees: ``images`` after amplitude normalisation, the same shape.
        truths: Label maps, shape (n, H, W).
        predictions: Label maps, shape (n, H, W).
        values: The metric of each whole case, shape (n,).
        cases: Names of the cases, shape (n,).
    """

    images: NDArray
    normalized: NDArray
    truths: NDArray
    predictions: NDArray
    values: NDArray
    cases: NDArray

    @property
    def is_normalized(self) -> bool:
        """Whether the network saw other images than the files hold."""
        return not np.array_equal(self.images, self.normalized)


@dataclass(frozen=True)
class SelectorFeatures:
    """What FedSM's selector makes of a site's validation and test images.

    Attributes:
        features: What its last layer sees, shape (n, F).
        scores: Its probabilities, shape (n, outputs).
        outputs: What the outputs stand for: names of sites, and ``global`` where it knows the global model too.
    """

    features: NDArray
    scores: NDArray
    outputs: NDArray


@dataclass(frozen=True)
class SiteWeights:
    """Who listens to whom in AdaFed, as it was computed once.

    Attributes:
        round: The finished rounds before it.
        source: What sites are compared by: ``pretrained`` or ``running`` statistics.
        layers: ``all`` BatchNorm layers, or the ``last`` layer.
        self_weight: The paper's lambda.
        sites: In the order of rows and columns.
        distances: Shape (K, K), NaN where a site shares no statistics.
        weights: Shape (K, K): how much the site of a row listens to that of a column; rows sum to 1.
        without: Site -> why it shares no statistics.
    """

    round: int
    source: str
    layers: str
    self_weight: float
    sites: list[str]
    distances: NDArray
    weights: NDArray
    without: dict[str, str]

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> SiteWeights:
        """Return one record of weights.json.

        Raises:
            KeyError: A key is missing.
            TypeError: A value is of another kind.
            ValueError: A matrix is not of the sites' size.
        """
        values = {part.name: record[part.name] for part in fields(cls)}
        size = len(values["sites"])
        for name in ("distances", "weights"):
            values[name] = np.array(values[name], dtype=np.float64)
            if values[name].shape != (size, size):
                raise ValueError(f"{name} must have shape {(size, size)}, not {values[name].shape}")
        return cls(**values)

    def weight(self, listener: str, heard: str) -> float:
        """Return how much a site listens to another; 0 to one that did not exist yet."""
        return float(self.weights[self.sites.index(listener), self.sites.index(heard)]) if heard in self.sites else 0.0


@dataclass(frozen=True)
class RunRecords:
    """All that a run's folder says of the run.

    Attributes:
        path: The folder.
        results: The result; without one, what the study says, with status ``UNFINISHED``.
        ledger: The finished rounds.
        labels: Number -> name; the pictures' numbers where the folder holds no study.
        pictures: Site -> its pictures; the sites of a real federation keep theirs.
        features: Site -> what the selector makes of its images, of a run with a selector; kept as the pictures are.
        unseen: The super model at a site that took no part in the training; None where it was not tested.
        site_weights: Each computation of who listens to whom, of a run of AdaFed.
        changes: What the command line changed in the job's study, by dotted key; of a simulation.
    """

    path: Path
    results: dict[str, Any]
    ledger: list[Round]
    labels: dict[int, str]
    pictures: dict[str, Pictures]
    features: dict[str, SelectorFeatures] = field(default_factory=dict)
    unseen: dict[str, Any] | None = None
    site_weights: list[SiteWeights] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """All sites that were asked or have a result."""
        return sorted({*self.results["sites"], *(site for record in self.ledger for site in record.asked)})

    @property
    def best_round(self) -> int | None:
        """The reported round; without a result, the first of the best on validation so far."""
        ranked = [record for record in self.ledger if record.rank is not None]
        best = max(ranked, key=lambda record: record.rank or (0, 0.0)).round if ranked else None
        return self.results.get("best_round") or best

    @property
    def can_resume_here(self) -> bool:
        """Whether the folder holds a simulation, which the command line can go on with."""
        return (self.path / "run.json").is_file()


def read_run(path: Path) -> RunRecords:
    """Read a run's folder, finished or not.

    Raises:
        ConfigError: The folder is no run, or one of its files is broken.
    """
    found, rounds = _read_json(path / "results.json", dict), _read_json(path / "ledger.json", list)
    if found is None and rounds is None and not (path / "run.json").is_file():
        raise ConfigError(f"{path} must be the folder of a run; it holds no results.json, ledger.json or run.json")
    study = _study(path)
    results = found or (study.description() if study else {"study": path.name}) | {"status": UNFINISHED}
    results = {"status": "UNKNOWN", "sites": {}, "reasons": []} | results
    pictures = _of_sites(path, results, "pictures.npz", Pictures)
    features = _of_sites(path, results, "selector.npz", SelectorFeatures)
    labels = study.labels if study else _numbered_labels(pictures)
    unseen = _read_json(path / "unseen.json", dict)
    ledger, weights = _ledger(path, rounds or []), _site_weights(path)
    changes = (_read_json(path / "run.json", dict) or {}).get("changes", {})
    return RunRecords(path, results, ledger, labels, pictures, features, unseen, weights, changes)


def _read_json(path: Path, kind: type[J]) -> J | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise ConfigError(f"{path} must be readable by this account; permission was denied: grant it") from None
    except ValueError:
        raise ConfigError(f"{path} must be JSON; it is broken: restore it, or resume the run") from None
    if not isinstance(value, kind):
        raise ConfigError(f"{path} must hold a JSON {kind.__name__}, not {type(value).__name__}; restore it")
    return value


def _ledger(path: Path, rounds: list[dict[str, Any]]) -> list[Round]:
    try:
        return [Round.from_dict(record) for record in rounds]
    except (KeyError, TypeError):
        raise ConfigError(
            f"{path / 'ledger.json'} must hold rounds with all their keys; it does not: "
            "read it with the version of silofl that wrote it"
        ) from None


def _site_weights(path: Path) -> list[SiteWeights]:
    records = _read_json(path / "weights.json", list) or []
    try:
        return [SiteWeights.from_dict(record) for record in records]
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{path / 'weights.json'} must hold sites with their weights and distances; it does not: "
            "remove it for a report without it"
        ) from None


def _study(path: Path) -> Study | None:
    file = path / "job" / "app" / "config" / "study.yaml"
    return load_study(file) if file.is_file() else None


def _of_sites(path: Path, results: dict[str, Any], name: str, kind: type[T]) -> dict[str, T]:
    """Return what the sites of a simulation keep in a file of the given name."""
    run = results.get("run")
    files = {site: path / "sites" / site / run / name for site in sorted(results["sites"])} if run else {}
    return {site: _read_arrays(file, site, kind) for site, file in files.items() if file.is_file()}


def _read_arrays(path: Path, site: str, kind: type[T]) -> T:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return kind(**{part.name: arrays[part.name] for part in fields(kind)})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise ConfigError(
            f"{path.stem} of site {site!r} must be a readable {path.name}, not {path}; "
            "remove it for a report without it"
        ) from None


def _numbered_labels(pictures: dict[str, Pictures]) -> dict[int, str]:
    numbers = {int(number) for shown in pictures.values() for number in np.unique(shown.truths)}
    return {number: f"label {number}" for number in sorted(numbers - {0})}
