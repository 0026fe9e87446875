"""The rows of a comparison of methods, each with all seeds: their values by site, their averages, and which lead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from silofl.federation.results import Results
from silofl.report.tables import METRIC_NAMES
from silofl.training.metrics import pool_values
from silofl.training.site_score import Values
from silofl_desk.report.super_model_page import SUPER, model_values
from silofl_desk.studies.comparison import compared_sites

POOLED_DATA = "data pooled: simulation only"
# Averages by which methods are compared besides their metric: key -> name of the column.
AVERAGES_ALSO = {
    "accuracy": "accuracy (site average)",
    "balanced_accuracy": "balanced accuracy (site average)",
    "auroc": "AUROC (site average, where defined)",
    "everyone_balanced_accuracy": "balanced accuracy on all sites' test data",
}
SeedValues = tuple[float, ...]
# A difference that the three decimals shown do not show is none.
SMALLEST = 0.0005


@dataclass(frozen=True)
class Method:
    """A method in a comparison: its runs with all seeds.

    Attributes:
        name: The job, or the algorithm that replaces the first job's.
        results: Seed -> the result of each run that has numbers.
        needs_pool: Whether the data of all sites had to be pooled in one place.
        unfinished: Seed -> why a run has no numbers.
        data: Seed -> the folder of the sites' data and the digest of each site's; of a run without it nobody knows.
    """

    name: str
    results: Mapping[int, Results]
    needs_pool: bool = False
    unfinished: Mapping[int, str] = field(default_factory=dict)
    data: Mapping[int, tuple[str | None, ...]] = field(default_factory=dict)

    @property
    def is_federated(self) -> bool:
        """Whether its sites learn from one another and keep their data."""
        runs = self.results.values()
        is_alone = any(
            run.recipe.get("stays_home") == "everything" and not run.recipe.get("sends_model_once") for run in runs
        )
        return not self.needs_pool and not is_alone

    @property
    def num_seeds(self) -> int:
        """Number of the seeds that were asked for."""
        return len(self.results) + len(self.unfinished)


@dataclass(frozen=True)
class Row:
    """One row of the table of methods: for each site and each average, the known values of all seeds.

    Attributes:
        name: The method, and which of its models.
        sites: One entry a site.
        averages: Client average, pooled mean, and those of `list_further_averages`.
    """

    name: str
    sites: tuple[SeedValues, ...]
    averages: tuple[SeedValues, ...]
    method: Method

    @property
    def cells(self) -> tuple[SeedValues, ...]:
        """All entries, in the order of the columns."""
        return self.sites + self.averages

    @property
    def client_average(self) -> SeedValues:
        """The mean over sites of each seed."""
        return self.averages[0]


@dataclass(frozen=True)
class _ModelValues:
    """The values of one model of one run: the run, at each site, over all cases, and its further averages."""

    run: Results
    sites: Values
    pooled: float | None
    further: Mapping[str, float] = field(default_factory=dict)


def method_sites(methods: Sequence[Method]) -> list[str]:
    """Return all sites of the methods' runs."""
    return compared_sites([run for method in methods for run in method.results.values()])


def list_further_averages(methods: Sequence[Method]) -> list[str]:
    """Return the keys of `AVERAGES_ALSO` that some run has."""
    sites = method_sites(methods)
    found = {
        key for method in methods for run in method.results.values() for key in compute_further_averages(run, sites)
    }
    return [key for key in AVERAGES_ALSO if key in found]


def compute_further_averages(results: Results, sites: Sequence[str]) -> dict[str, float]:
    """Return key of `AVERAGES_ALSO` -> average of a run over the sites, without those that it does not have.

    An average needs a test at every site, and a value; that of the AUROC is over the sites that have one.
    """
    tests, found = results.tests, {}
    tested = [tests[site].also for site in sites if site in tests and tests[site].also]
    for key in METRIC_NAMES if len(tested) == len(sites) else ():
        known = [also[key] for also in tested if also.get(key) is not None]
        # A site whose test cases are all of one class has no AUROC, however well it does.
        if key == results.metric or (key != "auroc" and len(known) < len(sites)):
            continue
        if (mean := results.mean_of_sites(known, key)) is not None:
            found[key] = mean
    if results.everyone is None or not results.everyone.by_site.keys() >= set(sites):
        return found
    return found | {"everyone_balanced_accuracy": results.everyone.balanced_accuracy}


def is_clearly_above(values: SeedValues, others: SeedValues) -> bool:
    """Return whether a mean over seeds is above another by more than the seeds' spread, and more than decimals hide.

    The spread is the larger of the two standard deviations over seeds. One seed has none, and leads nothing.
    """
    if len(values) < 2 or len(others) < 2:
        return False
    spread = max(np.std(one, ddof=1) for one in (values, others))
    return bool(np.mean(values) - np.mean(others) > max(spread, SMALLEST))


def find_leading_places(cells: Sequence[SeedValues]) -> list[int]:
    """Return the places of a column's highest mean and of all that it does not lead; alone there, it is the best.

    Args:
        cells: The seeds' values of each row; one with fewer than two values has no place.
    """
    known = {place: values for place, values in enumerate(cells) if len(values) > 1}
    if len(known) < 2:
        return []
    highest = max(known.values(), key=np.mean)
    return [place for place, values in known.items() if not is_clearly_above(highest, values)]


def make_method_rows(methods: Sequence[Method]) -> list[Row]:
    """Return all rows in the given order; a method with a selector has four, which come from the same runs."""
    sites, keys, rows = method_sites(methods), list_further_averages(methods), []
    for method in methods:
        runs = [_list_models(run, sites) for run in method.results.values()]
        for model in dict.fromkeys(chain(*runs)) or [""]:
            name = f"{method.name} {model}" if model else method.name
            name += f" ({POOLED_DATA})" * method.needs_pool
            rows.append(_make_row(name, [found[model] for found in runs if model in found], method, sites, keys))
    return rows


def _list_models(run: Results, sites: Sequence[str]) -> dict[str, _ModelValues]:
    """Return the name of each model of a run, empty where it has one alone, with its values; the tested one first."""
    tested = _ModelValues(run, run.values, run.pooled, compute_further_averages(run, sites))
    if not run.super_model:
        return {"": tested}
    found = {SUPER: tested}
    for name, values in model_values(run).items():
        # Weighed by cases, the sites' means are the mean over all cases, if there is one.
        known = [(value, run.tests[site].num_cases) for site, value in values.items() if value is not None]
        has_mean = run.mean_of_sites(values.values()) is not None
        found.setdefault(name, _ModelValues(run, values, pool_values(known) if has_mean else None))
    return found


def _make_row(
    name: str, tested: Sequence[_ModelValues], method: Method, sites: Sequence[str], keys: Sequence[str]
) -> Row:
    """Return the known values of each column; a mean counts only where every site has a value."""
    found = [list(map(one.sites.get, sites)) for one in tested]
    averages = [
        [
            *((one.run.mean_of_sites(values), one.pooled) if values and None not in values else (None, None)),
            *map(one.further.get, keys),
        ]
        for values, one in zip(found, tested, strict=True)
    ]
    # Two averages that every table has, and the further ones.
    return Row(name, _drop_unknown(found, len(sites)), _drop_unknown(averages, 2 + len(keys)), method)


def _drop_unknown(runs: Sequence[Sequence[float | None]], num_columns: int) -> tuple[SeedValues, ...]:
    """Return the values of each column that are not None, of a table with one row a run."""
    return tuple(tuple(run[i] for run in runs if run[i] is not None) for i in range(num_columns))
