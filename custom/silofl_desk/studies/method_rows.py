"""The rows of a comparison of methods, each with all seeds: their values by site, their averages, and which lead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

import numpy as np

from silofl.federation.results import Results
from silofl.training.metrics import pool_values
from silofl.training.site_score import Values
from silofl_desk.report.super_model_page import SUPER, model_values
from silofl_desk.studies.comparison import compared_sites, list_guessing
from silofl_hospital.report.tables import METRIC_NAMES

POOLED_DATA = "data pooled: simulation only"
# Averages by which methods are compared besides their metric: key -> name of the column.
AVERAGES_ALSO = {
    "accuracy": "accuracy (site average)",
    "balanced_accuracy": "balanced accuracy (site average)",
    "auroc": "AUROC (site average, where defined)",
}
SeedValues = tuple[float, ...]
Cells = list[float | None]
# Name -> the result of each run that has numbers, one a seed.
Methods = Mapping[str, Sequence[Results]]
# Name of the method whose runs need the data of all sites pooled in one place.
CENTRALISED = "centralised"
# A difference that the three decimals shown do not show is none.
SMALLEST = 0.0005


@dataclass(frozen=True)
class Row:
    """One row of the table of methods: for each site and each average, the known values of all seeds.

    Attributes:
        name: The method, and which of its models.
        sites: One entry a site.
        averages: Client average, pooled mean, and those of `list_further_averages`.
        needs_pool: Whether the data of all sites had to be pooled in one place.
        is_federated: Whether the sites learn from one another and keep their data.
        is_guessing: Whether none of its models is shown to be better than guessing.
    """

    name: str
    sites: tuple[SeedValues, ...]
    averages: tuple[SeedValues, ...]
    needs_pool: bool
    is_federated: bool
    is_guessing: bool

    @property
    def cells(self) -> tuple[SeedValues, ...]:
        """All entries, in the order of the columns."""
        return self.sites + self.averages

    @property
    def client_average(self) -> SeedValues:
        """The mean over sites of each seed."""
        return self.averages[0]


def method_sites(methods: Methods) -> list[str]:
    """Return all sites of the methods' runs."""
    return compared_sites([*chain.from_iterable(methods.values())])


def list_further_averages(methods: Methods) -> list[str]:
    """Return the keys of `AVERAGES_ALSO` that some run has."""
    sites = method_sites(methods)
    found = {key for run in chain.from_iterable(methods.values()) for key in compute_further_averages(run, sites)}
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
    return found


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


def make_method_rows(methods: Methods) -> list[Row]:
    """Return all rows in the given order; a method with a selector has four, which come from the same runs."""
    sites, keys, rows = method_sites(methods), list_further_averages(methods), []
    guessing = list_guessing(methods)
    for method, runs in methods.items():
        needs_pool = method == CENTRALISED
        is_alone = any(run.recipe.get("stays_home") == "everything" for run in runs)
        models = [_list_models(run, sites, keys) for run in runs]
        for model in dict.fromkeys(chain(*models)) or [""]:
            name = " ".join(filter(None, (method, model, f"({POOLED_DATA})" * needs_pool)))
            found = [values[model] for values in models if model in values]
            # Two averages that every table has, and the further ones; of each column what is known.
            cells = [tuple(one[i] for one in found if one[i] is not None) for i in range(len(sites) + 2 + len(keys))]
            averages = tuple(cells[len(sites) :])
            kind = needs_pool, not needs_pool and not is_alone, method in guessing
            rows.append(Row(name, tuple(cells[: len(sites)]), averages, *kind))
    return rows


def _list_models(run: Results, sites: Sequence[str], keys: Sequence[str]) -> dict[str, Cells]:
    """Return the name of each model of a run, empty where it has one alone, with its values; the tested one first."""

    def fill(values: Values, pooled: float | None, further: Mapping[str, float] = MappingProxyType({})) -> Cells:
        """Return the value of each column; a mean counts only where every site has a value."""
        found = [values.get(site) for site in sites]
        means = (run.mean_of_sites(found), pooled) if found and None not in found else (None, None)
        return [*found, *means, *map(further.get, keys)]

    tested = fill(run.values, run.pooled, compute_further_averages(run, sites))
    if not run.super_model:
        return {"": tested}
    models = {SUPER: tested}
    for name, values in model_values(run).items():
        # Weighed by cases, the sites' means are the mean over all cases, if there is one.
        known = [(value, run.tests[site].num_cases) for site, value in values.items() if value is not None]
        has_mean = run.mean_of_sites(values.values()) is not None
        models.setdefault(name, fill(values, pool_values(known) if has_mean else None))
    return models
