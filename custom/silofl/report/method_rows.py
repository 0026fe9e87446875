"""The rows of a table of methods: the values of each model of a method at each site and on average, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from silofl.report.class_scores import AVERAGES_ALSO, averages_also
from silofl.report.comparison import compared_sites
from silofl.training.metrics import pooled

Results = Mapping[str, Any]
Values = tuple[float, ...]
CLIENT_AVERAGE, POOLED = "client average", "pooled"
POOLED_DATA = "data pooled: simulation only"


@dataclass(frozen=True)
class Method:
    """What is compared.

    Attributes:
        name: The job, or the algorithm that takes the place of the first job's.
        results: Seed -> the content of results.json of each run that has numbers.
        needs_pool: Whether the data of all sites had to be pooled in one place.
        unfinished: Seed -> why a run has no numbers.
    """

    name: str
    results: Mapping[int, Results]
    needs_pool: bool = False
    unfinished: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_federated(self) -> bool:
        """Whether its sites learn from one another and keep their data."""
        homes = {run.get("recipe", {}).get("stays_home") for run in self.results.values()}
        return not self.needs_pool and "everything" not in homes

    @property
    def num_seeds(self) -> int:
        """Seeds that it was to run with."""
        return len(self.results) + len(self.unfinished)


@dataclass(frozen=True)
class Row:
    """One row of the table: for each site and each average the values of the seeds that have one.

    Attributes:
        name: The method, and which of its models.
        sites: One entry a site.
        averages: Client average, pooled mean, and those of `averages_beside`.
        method: What the row belongs to.
    """

    name: str
    sites: tuple[Values, ...]
    averages: tuple[Values, ...]
    method: Method

    @property
    def cells(self) -> tuple[Values, ...]:
        """All entries, in the order of the columns."""
        return self.sites + self.averages

    @property
    def client_average(self) -> Values:
        """The mean over sites of each seed."""
        return self.averages[0]


@dataclass(frozen=True)
class _Tested:
    """One model of one run: its value at each site, over all cases together, and its averages beside the metric."""

    values: Mapping[str, float | None]
    together: float | None
    beside: Mapping[str, float] = field(default_factory=dict)


def compared(methods: Sequence[Method]) -> list[str]:
    """Return all sites of the methods' runs."""
    return compared_sites([run for method in methods for run in method.results.values()])


def averages_beside(methods: Sequence[Method]) -> list[str]:
    """Return the keys of `AVERAGES_ALSO` that some run has."""
    sites = compared(methods)
    found = {key for method in methods for run in method.results.values() for key in averages_also(run, sites)}
    return [key for key in AVERAGES_ALSO if key in found]


def rows_of(methods: Sequence[Method]) -> list[Row]:
    """Return all rows in the given order; a method with a selector has four, which come from the same runs."""
    sites, beside = compared(methods), averages_beside(methods)
    return [_row(name, tested, method, sites, beside) for method in methods for name, tested in _models(method, sites)]


def _models(method: Method, sites: Sequence[str]) -> list[tuple[str, list[_Tested]]]:
    """Return the name of each row of a method with what its runs tested."""
    runs = list(method.results.values())
    own = [_Tested(run.get("sites", {}), run.get("pooled"), averages_also(run, sites)) for run in runs]
    if not any("models" in run for run in runs):
        return [(f"{method.name} ({POOLED_DATA})" if method.needs_pool else method.name, own)]
    others = {model: [_of_model(run, model) for run in runs] for model in ("ensemble", "global", "personal")}
    return [(f"{method.name} {model}", tested) for model, tested in ({"super": own} | others).items()]


def _of_model(results: Results, model: str) -> _Tested:
    """Return the value of one model at each site, ``personal`` being each site's own, and over all cases together."""
    tables, cases = results["models"], results.get("cases", {})
    values = {site: table.get(site if model == "personal" else model) for site, table in tables.items()}
    known = [(value, cases.get(site, 0)) for site, value in values.items() if value is not None]
    return _Tested(values, pooled(known))


def _row(name: str, tested: Sequence[_Tested], method: Method, sites: Sequence[str], beside: Sequence[str]) -> Row:
    """Return the known values of each column; a mean counts only where every site has a value."""
    found = [[one.values.get(site) for site in sites] for one in tested]
    averages = [
        [*((float(np.mean(values)), one.together) if _is_whole(values) else (None, None)), *map(one.beside.get, beside)]
        for values, one in zip(found, tested, strict=True)
    ]
    return Row(name, _known(found, len(sites)), _known(averages, 2 + len(beside)), method)


def _is_whole(values: Sequence[float | None]) -> bool:
    return bool(values) and None not in values


def _known(runs: Sequence[Sequence[float | None]], num_columns: int) -> tuple[Values, ...]:
    """Return the values that are not None of each column of a table with one row a run."""
    return tuple(tuple(run[i] for run in runs if run[i] is not None) for i in range(num_columns))
