"""Compare runs, and methods with one run for each seed: the rows of their tables, and which of them lead."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from rich.console import Console

from silofl.core.gain import count_verdicts, holm
from silofl.federation.results import Results
from silofl.report.conditions import list_differences, results_by_row, rows_by_name
from silofl.report.run_records import RunRecords
from silofl.report.sentences import (
    BATCH_DEPENDENT,
    SHARED_BATCHNORM,
    describe_problems,
    regions_text,
    shares_batchnorm,
    shares_patients,
    split_sentence,
)
from silofl.report.tables import (
    HD95,
    METRIC_NAMES,
    MISSING,
    SURFACE,
    SURFACE_DICE,
    TextTable,
    describe_extra_metric,
    format_count,
    format_number,
    list_extra_metrics,
    list_extra_values,
    mean_and_deviation,
    print_lines,
    print_table,
    surface_texts,
)
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, Joined
from silofl.training.metrics import mean_of_known, pool_values
from silofl.training.site_score import Values

MOST_SITES_IN_A_ROW = 8
ONE_SEED = (
    "Each row is one run with one seed, so that no value is marked as the best: a difference can be chance, and only "
    "several seeds, as silofl compare runs them, tell."
)
POOLED_DATA = "data pooled: simulation only"
JOINING = ("run", "what joining gave", "alone", "federated", "kept", "below alone", "after Holm")
JOINING_NOTE = (
    "What joining gave: verdicts of all sites with a choice, and of all seeds. Alone, federated, kept: means over "
    "them of the test values of the model that each site trained by itself in the same rounds, with its own decision "
    "bias, of the federated one, and of what it chose on its validation data. Below alone: sites that lose, of those "
    "that keep another model than their own; chance alone gives one in 40. After Holm: those left at 5 % after Holm's "
    "correction over all rows."
)
# Averages by which methods are compared besides their metric: key -> name of the column.
AVERAGES_ALSO = {
    "accuracy": "accuracy (site average)",
    "balanced_accuracy": "balanced accuracy (site average)",
    "auroc": "AUROC (site average, where defined)",
    "everyone_balanced_accuracy": "balanced accuracy on all sites' test data",
}
SeedValues = tuple[float, ...]
Key = TypeVar("Key", bound=Hashable)
# How often, at most, chance alone leaves a site below its own model after the correction over all rows of a table.
FAMILY_LEVEL = 0.05
# A difference that the three decimals shown do not show is none.
SMALLEST = 0.0005


@dataclass(frozen=True)
class BelowLocal:
    """At how many sites the kept model is shown to be below the one that the site trained alone.

    Attributes:
        tests: Sites that keep another model than their own, of all seeds.
        before: Those of them that lose.
        after: Those left after Holm's correction.
    """

    tests: int
    before: int
    after: int


@dataclass(frozen=True)
class JoiningComparison:
    """What joining gave in each row of a comparison.

    Attributes:
        table: One line a row.
        losses: A sentence for each site that loses by joining or keeps a model near 0, with its run.
        note: What the columns are.
    """

    table: TextTable
    losses: Sequence[str]
    note: str = JOINING_NOTE


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
            run.recipe_value("stays_home") == "everything" and not run.recipe_value("sends_model_once") for run in runs
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
    """The values of one model of one run: at each site, over all cases, and its further averages."""

    sites: Values
    pooled: float | None
    further: Mapping[str, float] = field(default_factory=dict)


def compared_sites(results: Sequence[Results]) -> list[str]:
    """Return all sites of the runs."""
    return sorted({site for run in results for site in run.sites})


def are_comparable(results: Sequence[Results]) -> bool:
    """Return whether the runs measure the same: one metric, one way to split, the same number of test cases."""
    return not _differences(results)


def comparison_notes(results: Sequence[Results]) -> list[str]:
    """Return sentences on runs without a value at a site, and on what limits a comparison."""
    sites = compared_sites(results)
    lacking = {i: [site for site in sites if run.sites.get(site) is None] for i, run in enumerate(results, start=1)}
    notes = [_describe_missing_sites(i, without, sites) for i, without in lacking.items() if without or not sites]
    numbered = list(enumerate(results, start=1))
    notes += _name_runs([i for i, run in numbered if run.normalization == "batch_stateless"], BATCH_DEPENDENT)
    for unit in sorted({run.split_unit for run in results if shares_patients(run.split_unit)}):
        notes += _name_runs([i for i, run in numbered if run.split_unit == unit], f"split {split_sentence(unit)}")
    for regions in sorted({*map(regions_text, results)} - {""}):
        notes += _name_runs(
            [i for i, run in numbered if regions_text(run) == regions], f"scored are regions, {regions}"
        )
    normalised = [(i, run) for i, run in numbered if run.normalization == "batch"]
    shared = [i for i, run in normalised if shares_batchnorm(run)]
    if len(shared) < len(normalised):
        notes += _name_runs(shared, SHARED_BATCHNORM)
    for sentence in dict.fromkeys(run.batchnorm for run in results if run.batchnorm):
        notes += _name_runs([i for i, run in numbered if run.batchnorm == sentence], sentence)
    surface = [SURFACE] if any(run.tested.surface for run in results) else []
    return [*notes, *surface, *map(describe_extra_metric, list_extra_metrics(results)), ONE_SEED]


def comparison_table(results: Sequence[Results], names: Sequence[str] = ()) -> TextTable:
    """Return one row a run, in the given order; more than 8 sites are shown in `site_comparison_table` instead.

    Nothing is marked as the best: each row is one run with one seed.

    Args:
        results: Of the runs.
        names: The row of the table of methods that each run is of; empty where there is no such table.
    """
    sites = compared_sites(results) if len(compared_sites(results)) <= MOST_SITES_IN_A_ROW else []
    head = ("study", "algorithm", "preset", "normalization", "seed", "status", "best round")
    has_surface, extra = any(run.tested.surface for run in results), list_extra_metrics(results)
    first = [(str(i), *names[i - 1 : i]) for i in range(1, len(results) + 1)]
    rows = tuple((*cells, *_run_row(run, sites, has_surface, extra)) for cells, run in zip(first, results, strict=True))
    further = (*((HD95, SURFACE_DICE) if has_surface else ()), *extra.values())
    columns = ("run", *["row"] * bool(names), *head, "mean", "spread", "pooled", *further, *sites)
    return TextTable(columns, rows, num_text=7 + bool(names))


def site_comparison_table(results: Sequence[Results]) -> TextTable | None:
    """Return one row a site and one column a run; None where `comparison_table` has the sites."""
    sites = compared_sites(results)
    if len(sites) <= MOST_SITES_IN_A_ROW:
        return None
    names = (f"{i}: {run.algorithm or MISSING}" for i, run in enumerate(results, start=1))
    rows = tuple((site, *(format_number(run.sites.get(site)) for run in results)) for site in sites)
    return TextTable(("site", *names), rows)


def print_comparison(runs: Sequence[RunRecords], console: Console) -> None:
    """Print what joining gave and in what the runs differ, one row a run, and the notes on comparing them."""
    results, rows = [run.results for run in runs], rows_by_name(runs)
    print_joining(compare_joining(results_by_row(rows)), console)
    print_lines([*list_differences(rows), ""], console)
    table, by_site = comparison_table(results), site_comparison_table(results)
    print_table(table, console)
    if by_site:
        console.print()
        print_table(by_site, console)
    print_lines(comparison_notes(results), console)


def compare_joining(rows: Mapping[str, Sequence[Results]]) -> JoiningComparison | None:
    """Return what joining gave in each row over its seeds; None where no site of any run has made a choice.

    Args:
        rows: Name -> the results of its runs; local training and training on pooled data have no row.
    """
    below = count_below_local(rows)
    found = []
    for name, runs in rows.items():
        joined = [run.joining for run in runs if run.joining]
        if not joined:
            continue
        means = [mean_and_deviation(_average_tests(joined, model)) for model in (LOCAL, FEDERATED, CHOSEN)]
        verdicts = ", ".join(count_verdicts(one.verdict for sites in joined for one in sites.values()))
        of_row = below[name]
        found.append((name, verdicts, *means, f"{of_row.before} of {of_row.tests}", str(of_row.after)))
    return JoiningComparison(TextTable(JOINING, tuple(found), num_text=2), _list_losses(rows)) if found else None


def count_below_local(rows: Mapping[Key, Sequence[Results]]) -> dict[Key, BelowLocal]:
    """Return at how many sites of each row, all seeds together, the kept model is shown to be below the local one.

    Args:
        rows: Key -> the results of its runs; all rows together are the family of Holm's correction.
    """
    tested = {
        (key, seed, site): one
        for key, runs in rows.items()
        for seed, run in enumerate(runs)
        for site, one in (run.joining or {}).items()
        if one.p_below is not None
    }
    corrected = holm({test: one.p_below for test, one in tested.items()})
    tests = {key: [test for test in tested if test[0] == key] for key in rows}
    return {
        key: BelowLocal(
            len(of_row),
            sum(tested[test].verdict == "loses" for test in of_row),
            sum(corrected[test] < FAMILY_LEVEL for test in of_row),
        )
        for key, of_row in tests.items()
    }


def print_joining(joining: JoiningComparison | None, console: Console) -> None:
    """Print what joining gave in each row, and where a site loses by it; nothing without a choice."""
    if joining:
        print_table(joining.table, console)
        print_lines([*(f"BAD  {loss}" for loss in joining.losses), joining.note, ""], console)


def _list_losses(rows: Mapping[str, Sequence[Results]]) -> list[str]:
    return [
        f"{name}{f', seed {run.seed}' * (len(runs) > 1)}: {sentence}"
        for name, runs in rows.items()
        for run in runs
        if run.is_finished and run.joining
        for tone, sentence in describe_problems(run)
        if tone == "bad"
    ]


def _average_tests(joined: Sequence[Mapping[str, Joined]], model: str) -> list[float]:
    """Return the mean over the sites of each seed that knows one."""
    means = (mean_of_known(one.test.get(model) for one in sites.values()) for sites in joined)
    return [mean for mean in means if mean is not None]


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

    An average needs a value of every site; that of the AUROC is over the sites that have one.
    """
    by_site, found = results.by_site, {}
    for key in METRIC_NAMES:
        values = [by_site[site].also.get(key) for site in sites if site in by_site]
        known = [value for value in values if value is not None]
        # A site whose test cases are all of one class has no AUROC, however well it does.
        if known and key != results.metric and (key == "auroc" or len(known) == len(sites)):
            found[key] = float(np.mean(known))
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
    sites, keys = method_sites(methods), list_further_averages(methods)
    return [
        _make_row(name, tested, method, sites, keys)
        for method in methods
        for name, tested in _model_rows(method, sites)
    ]


def _describe_missing_sites(number: int, without: Sequence[str], sites: Sequence[str]) -> str:
    where = ", ".join(without) if len(without) <= 4 else f"{len(without)} of {len(sites)} sites"
    return f"Run {number} has no value at {where or 'any site'}: its mean says nothing beside the others."


def _name_runs(rows: Sequence[int], sentence: str) -> list[str]:
    """Return a sentence that begins with the rows that it is about; nothing without any."""
    return [f"Run{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}: {sentence}."] if rows else []


def _differences(results: Sequence[Results]) -> list[str]:
    """Return the differences between runs for which their means cannot be compared."""
    differences = []
    if len({run.metric for run in results}) > 1:
        differences.append("metric")
    if len({regions_text(run) for run in results}) > 1:
        differences.append("the regions that are scored")
    if len({run.split_unit for run in results}) > 1:
        differences.append("how patients are split")
    if len({_test_cases(run) for run in results}) > 1:
        differences.append("the number of test cases")
    return differences


def _test_cases(results: Results) -> tuple[tuple[str, int], ...]:
    """Return the number of test cases of each site, counted and excluded ones."""
    tested = results.tested
    return tuple((site, tested.cases[site] + tested.excluded_cases.get(site, 0)) for site in sorted(tested.cases))


def _run_row(results: Results, sites: Sequence[str], has_surface: bool, extra: Iterable[str]) -> tuple[str, ...]:
    names = (results.study, results.algorithm, results.preset, results.normalization, results.seed, results.status)
    words = (MISSING if name is None else str(name) for name in names)
    means = map(format_number, (results.mean, results.spread, results.pooled))
    surface = [texts[-1] for texts in surface_texts(results)] if has_surface else ()
    return (
        *words,
        format_count(results.best_round),
        *means,
        *surface,
        *(format_number(mean_of_known(list_extra_values(results, name))) for name in extra),
        *map(format_number, map(results.sites.get, sites)),
    )


def _model_rows(method: Method, sites: Sequence[str]) -> list[tuple[str, list[_ModelValues]]]:
    """Return the name of each row of a method with the values of its runs."""
    runs = list(method.results.values())
    own = [_ModelValues(run.sites, run.pooled, compute_further_averages(run, sites)) for run in runs]
    if not any(run.super_model for run in runs):
        return [(f"{method.name} ({POOLED_DATA})" if method.needs_pool else method.name, own)]
    names = ("ensemble", *(("global",) if any(run.has_global_model for run in runs) else ()), "personal")
    others = {model: [_model_values(run, model) for run in runs] for model in names}
    return [(f"{method.name} {model}", values) for model, values in ({"super": own} | others).items()]


def _model_values(results: Results, model: str) -> _ModelValues:
    """Return the value of one model at each site and over all cases; ``personal`` is each site's model at that site."""
    sites = {site: own for site, own in results.by_site.items() if own.models}
    values = {site: own.models.get(site if model == "personal" else model) for site, own in sites.items()}
    # Weighed by cases, the sites' means are the mean over all cases.
    known = [(value, sites[site].num_cases or 0) for site, value in values.items() if value is not None]
    return _ModelValues(values, pool_values(known))


def _make_row(
    name: str, tested: Sequence[_ModelValues], method: Method, sites: Sequence[str], keys: Sequence[str]
) -> Row:
    """Return the known values of each column; a mean counts only where every site has a value."""
    found = [list(map(one.sites.get, sites)) for one in tested]
    averages = [
        [
            *((mean_of_known(values), one.pooled) if values and None not in values else (None, None)),
            *map(one.further.get, keys),
        ]
        for values, one in zip(found, tested, strict=True)
    ]
    # Two averages that every table has, and the further ones.
    return Row(name, _drop_unknown(found, len(sites)), _drop_unknown(averages, 2 + len(keys)), method)


def _drop_unknown(runs: Sequence[Sequence[float | None]], num_columns: int) -> tuple[SeedValues, ...]:
    """Return the values of each column that are not None, of a table with one row a run."""
    return tuple(tuple(run[i] for run in runs if run[i] is not None) for i in range(num_columns))
