"""The one table of a comparison, methods by sites, and the one list of notes below it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, starmap
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from silofl.federation.results import Results
from silofl.training.metrics import mean_of_known, pool_values
from silofl.training.site_score import Values
from silofl_desk.report.result_tables import has_moved_thresholds, mean_and_deviation, summarise_seeds
from silofl_desk.report.run_records import RowRuns, RunRecords
from silofl_desk.report.sentences import (
    DIFFERENT_CLASSES,
    POOLED_MEAN,
    SHARED_BATCHNORM,
    is_guessing,
    normalization_label,
    regions_text,
    shares_batchnorm,
    split_sentence,
)
from silofl_desk.report.super_model_page import SUPER, model_values
from silofl_desk.studies.comparisons.conditions import describe_groups, has_other_data
from silofl_hospital.report.metrics import metric_sentence
from silofl_hospital.report.tables import METRIC_NAMES, TextTable

# The method of this name needs the data of all sites pooled in one place.
CENTRALISED = "centralised"
POOLED_DATA = "(data pooled: simulation only)"
# No site's name has a space.
CLIENT_AVERAGE = "client average"
POOLED = "pooled mean"
# Methods are compared by these averages too, besides their metric: key -> name of the column.
AVERAGES_ALSO = {
    "accuracy": "accuracy (site average)",
    "balanced_accuracy": "balanced accuracy (site average)",
    "auroc": "AUROC (site average, where defined)",
}
# These columns are named here by their keys in a round's record.
DRIFT = {"drift": "drift of sites", "dissimilarity": "dissimilarity of updates"}
# A difference that the three decimals shown do not show is none.
SMALLEST = 0.0005
# So many letters of the columns' names fit a page's width.
MOST_LETTERS = 100
GUESSING = "no model is shown to be better than guessing"
AT_HALF = (
    "Values of methods are at the usual decision threshold of 0.5; local, federated and kept are at the hospitals' own."
)
DRIFT_NOTE = (
    "Drift: mean over sites and steps of the squared distance to the received model (HarmoFL, Eq. 9). Dissimilarity: "
    "mean squared length of the sites' updates, divided by the squared length of their weighted mean (1 = all agree, "
    "above 2 = strong). Both are means over the rounds and grow with the learning rate, the steps and the network: "
    "compare rows that share these; no accuracy follows from them."
)
MODELS_NOTE = (
    "Models of a method with a selector: global, one model for all sites; personal, each site's own model, which needs "
    "the site's name; super, where the selector looks at the images and chooses a model for each case; ensemble, all "
    "models averaged by the selector's scores."
)
POOLING = "these rows need the data of all sites pooled in one place, which only a simulation can do"
PRETRAINED = (
    "these rows use a pretrained model; where silofl pretrain made it, it has seen training data of all sites in one "
    "place, which only a simulation can do"
)
UNLIKE = "No value is marked as the best: the runs differ in metric, regions, split or test data."
ONE_SEED = "No value is marked as the best: with one seed a difference can be chance; give more --seeds."
MARKED = (
    "A value is bold or has a star if its lead over every other method is larger than both methods' standard deviation "
    "over seeds. Local training counts; rows that need pooled data, or may be guesses, do not."
)
SeedValues = Sequence[float]
Cells = Mapping[str, Mapping[str, list[float]]]


class Value(NamedTuple):
    """One number of a comparison.

    Attributes:
        method: What has it.
        column: Its site, or average.
        value: None where it is not known.
        model: Which of the method's models has it; empty where there is one alone.
    """

    method: str
    column: str
    value: float | None
    model: str = ""

    @property
    def row(self) -> str:
        """Name of its row."""
        words = [self.method, self.model]
        if self.method == CENTRALISED:
            words.append(POOLED_DATA)
        return " ".join(filter(None, words))


def pivot(values: Iterable[Value]) -> Cells:
    """Return row -> column -> the known values, in the order in which they come."""
    table: dict[str, dict[str, list[float]]] = {}
    columns: list[str] = []
    for item in values:
        if item.column not in columns:
            columns.append(item.column)
        cell = table.setdefault(item.row, {}).setdefault(item.column, [])
        if item.value is not None:
            cell.append(item.value)
    # Every row has all columns, in the order in which any row first had them.
    return {name: {column: row.get(column, []) for column in columns} for name, row in table.items()}


def make_values_table(cells: Cells, corner: str, best: Mapping[str, str] | None = None) -> TextTable:
    """Return the means of cells; those with many or long columns have these as their rows.

    Args:
        corner: Name of the rows.
        best: Column -> the row that is marked in it.
    """
    rows = list(cells)
    columns = list(next(iter(cells.values()), ()))
    best_cells = [(rows.index(row), columns.index(column)) for column, row in (best or {}).items()]
    header: tuple[str, ...] = (corner, *columns)
    lines = [(row, *starmap(_format_seeds, values.items())) for row, values in cells.items()]
    if sum(map(len, columns)) > MOST_LETTERS:
        # The names of the rows become the header of the turned table, and those of the columns its first column.
        header, *lines = zip(("site", *columns), *lines, strict=True)
        best_cells = [(column, row) for row, column in best_cells]
    # A table counts the column of names too.
    marked = frozenset((row, 1 + column) for row, column in best_cells)
    return TextTable(header, tuple(lines), best_cells=marked)


def _format_seeds(column: str, values: SeedValues) -> str:
    # Drifts are as small as their learning rates, so that they are shown by digits and not by decimals.
    forms = (".3g", ".2g") if column in DRIFT.values() else (".3f", ".3f")
    return mean_and_deviation(values, forms)


def list_values(rows: RowRuns) -> list[Value]:
    """Return the values of all runs: of each model at each site, and its averages over the sites."""
    sites = compared_sites(rows)
    values = []
    for method, runs in rows.items():
        # A row without a run has its line too.
        measured = [_measure_models(run, sites) for run in runs] or [{"": dict.fromkeys(sites)}]
        for model in dict.fromkeys(chain(*measured)):
            for of_run in measured:
                for column, value in of_run.get(model, {}).items():
                    values.append(Value(method, column, value, model))
    return values


def compared_sites(rows: RowRuns) -> list[str]:
    """Return all sites that have a result."""
    sites: set[str] = set()
    for run in chain(*rows.values()):
        sites |= run.results.sites.keys()
    return sorted(sites)


def _measure_models(run: RunRecords, sites: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Return the name of each model of a run, empty where it has one alone, with its columns; the tested one first."""
    results = run.results
    tested = _fill_columns(results, sites, results.values, results.pooled)
    for key, average in compute_further_averages(results, sites).items():
        tested[AVERAGES_ALSO[key]] = average
    for key, column in DRIFT.items():
        drift = mean_of_known(map(attrgetter(key), run.ledger))
        if drift is not None:
            tested[column] = drift
    if not results.super_model:
        return {"": tested}
    models = {SUPER: tested}
    for name, values in model_values(results).items():
        pooled = None
        # Weighed by cases, the sites' means are the mean over all cases, if there is one.
        if results.mean_of_sites(values.values()) is not None:
            weighed = [(value, results.tests[site].num_cases) for site, value in values.items() if value is not None]
            pooled = pool_values(weighed)
        models.setdefault(name, _fill_columns(results, sites, values, pooled))
    return models


def _fill_columns(
    results: Results, sites: Sequence[str], values: Values, pooled: float | None
) -> dict[str, float | None]:
    """Return the value of each site and both means, which count only where every site has a value."""
    columns = {site: values.get(site) for site in sites}
    if not columns or None in columns.values():
        return {**columns, CLIENT_AVERAGE: None, POOLED: None}
    return {**columns, CLIENT_AVERAGE: results.mean_of_sites(columns.values()), POOLED: pooled}


def compute_further_averages(results: Results, sites: Sequence[str]) -> dict[str, float]:
    """Return key of `AVERAGES_ALSO` -> average of a run over the sites, without those that it does not have.

    An average needs a test at every site, and a value; that of the AUROC is over the sites that have one.
    """
    measured = []
    for site in sites:
        also = results.tests[site].also if site in results.tests else None
        if not also:
            return {}
        measured.append(also)
    averages: dict[str, float] = {}
    for key in METRIC_NAMES:
        values = [also[key] for also in measured if also.get(key) is not None]
        # A site whose test cases are all of one class has no AUROC, however well it does.
        if key == results.metric or (key != "auroc" and len(values) < len(sites)):
            continue
        mean = results.mean_of_sites(values, key)
        if mean is not None:
            averages[key] = mean
    return averages


def are_comparable(runs: Sequence[RunRecords]) -> bool:
    """Return whether the runs measure the same on the same data: metric, regions, split and what each site has."""
    measured = {(run.results.metric, regions_text(run.results), run.results.split_unit) for run in runs}
    return len(measured) < 2 and not any(has_other_data(runs, site) for site in compared_sites({"": runs}))


def is_clearly_above(values: SeedValues, compared: SeedValues) -> bool:
    """Return whether a mean over seeds is above another by more than the seeds' spread, and more than decimals hide.

    The spread is the larger of the two standard deviations over seeds. One seed has none, and leads nothing.
    """
    if len(values) < 2 or len(compared) < 2:
        return False
    spread = max(float(np.std(values, ddof=1)), float(np.std(compared, ddof=1)), SMALLEST)
    return bool(np.mean(values) - np.mean(compared) > spread)


def find_best(column: Mapping[str, SeedValues]) -> str | None:
    """Return the row that leads every other with several seeds; None where none does, or it is alone."""
    compared = {row: values for row, values in column.items() if len(values) > 1}
    if len(compared) < 2:
        return None
    highest = max(compared, key=lambda row: float(np.mean(compared[row])))
    for row, values in compared.items():
        if row != highest and not is_clearly_above(compared[highest], values):
            return None
    return highest


def methods_table(rows: RowRuns) -> TextTable:
    """Return the table of a comparison, with the best value of each column marked where there is one.

    Local training counts as any other row; one that needs pooled data, or has fewer runs than another, does not, and
    where one that may guess is at the front, nobody leads.
    """
    values = list_values(rows)
    return make_values_table(pivot(values), "method", _find_leaders(rows, values))


def _find_leaders(rows: RowRuns, values: Sequence[Value]) -> dict[str, str]:
    if not _are_alike(rows):
        return {}
    num_seeds = max(map(len, rows.values()), default=0)
    guessing = list_guessing(rows)
    methods = {item.row: item.method for item in values}
    # A row that lacks a seed is not compared.
    complete: dict[str, dict[str, SeedValues]] = {}
    for row, cells in pivot(values).items():
        for column, seed_values in cells.items():
            if methods[row] != CENTRALISED and len(seed_values) == num_seeds:
                complete.setdefault(column, {})[row] = seed_values
    leaders = {}
    for column, compared in complete.items():
        best = find_best(compared)
        if best and methods[best] not in guessing and column not in DRIFT.values():
            leaders[column] = best
    return leaders


def list_trained_rows(rows: RowRuns) -> RowRuns:
    """Return the rows with runs of hospitals that keep their data."""
    return {name: runs for name, runs in rows.items() if runs and name != CENTRALISED}


def _are_alike(rows: RowRuns) -> bool:
    return are_comparable([*chain(*list_trained_rows(rows).values())])


def methods_values(rows: RowRuns) -> list[dict[str, Any]]:
    """Return the table's rows as plain values for programs."""
    sites = compared_sites(rows)
    lines = []
    for name, cells in pivot(list_values(rows)).items():
        # What is no site and no mean of the metric is left for "also".
        numbers = {column: _seed_numbers(values) for column, values in cells.items()}
        lines.append(
            {
                "name": name,
                "sites": {site: numbers.pop(site) for site in sites},
                "client_average": numbers.pop(CLIENT_AVERAGE, _seed_numbers(())),
                "pooled": numbers.pop(POOLED, _seed_numbers(())),
                "also": numbers,
            }
        )
    return lines


def _seed_numbers(values: SeedValues) -> dict[str, Any]:
    mean, deviation = summarise_seeds(values)
    return {"mean": mean, "std": deviation, "values": list(values)}


def list_guessing(rows: RowRuns) -> list[str]:
    """Return the rows of whose runs none has a model that is shown to be better than guessing."""
    return [name for name, runs in rows.items() if runs and all(is_guessing(run.results) for run in runs)]


def list_notes(rows: RowRuns) -> list[str]:
    """Return the notes on a comparison: what its numbers are, and what limits them, one sentence each."""
    results = {name: [run.results for run in runs] for name, runs in rows.items() if runs}
    runs = list(chain(*results.values()))
    if not runs:
        return []
    trained = {name: of_row for name, of_row in results.items() if name != CENTRALISED}
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    columns = {item.column for item in list_values(rows)}

    def rows_where(holds: Callable[[Results], bool], among: Mapping[str, Sequence[Results]] = results) -> str:
        return ", ".join(name for name, of_row in among.items() if any(map(holds, of_row)))

    guessing = ", ".join(list_guessing(rows))
    without_mean = rows_where(lambda run: run.mean is None and run.pooled is not None)
    sharing = rows_where(shares_batchnorm, trained)
    pretrained = rows_where(lambda run: bool(run.recipe.get("needs_pretrained")))
    is_multilabel = any(run.has_findings for run in runs)
    metrics = [(metric, metric) for metric in sorted({run.metric for run in runs if run.metric})]
    metrics += [(key, column) for key, column in AVERAGES_ALSO.items() if column in columns]
    named = ", ".join(map(str, seeds))
    notes = [
        (
            True,
            f"Metric: {describe_groups(results, lambda run: str(run.metric))}; {CLIENT_AVERAGE}: mean over sites; "
            f"{POOLED}: {POOLED_MEAN}. Both are missing if a site is missing.",
        ),
        *((True, f"{name}: {metric_sentence(metric, is_multilabel)}") for metric, name in metrics),
        (len(seeds) > 1, f"Seeds {named}: mean ± standard deviation over them."),
        (len(seeds) == 1, f"One seed: {named}."),
        (bool(guessing), f"{guessing}: {GUESSING}."),
        (True, f"Split: {describe_groups(results, lambda run: split_sentence(run.split_unit))}."),
        (True, f"Normalization: {describe_groups(results, lambda run: normalization_label(run.normalization))}."),
        (
            any(run.regions for run in runs),
            f"Regions: {describe_groups(results, lambda run: regions_text(run) or 'each label')}.",
        ),
        (bool(without_mean), f"{without_mean}: {DIFFERENT_CLASSES}."),
        # Where all rows share BatchNorm, the note says nothing of one against another.
        (bool(sharing) and sharing != ", ".join(trained), f"{sharing}: {SHARED_BATCHNORM}."),
        (any(map(has_moved_thresholds, runs)), AT_HALF),
        # A row is described as one value: its seeds differ only in when each site's own training ends.
        (True, f"Rounds: {describe_groups({name: [of_row] for name, of_row in results.items()}, _describe_rounds)}."),
        (CENTRALISED in results, f"{CENTRALISED}: {POOLING}."),
        (bool(pretrained), f"{pretrained}: {PRETRAINED}."),
        (any(run.super_model for run in runs), MODELS_NOTE),
        (not columns.isdisjoint(DRIFT.values()), DRIFT_NOTE),
        (True, _marking_note(rows)),
    ]
    sentences = [sentence for holds, sentence in notes if holds]
    for name, of_row in results.items():
        for run in of_row:
            state = f"{name}, seed {run.seed}: {run.status}"
            if run.ended_early:
                sentences.append(f"{state}: {run.ended_early}.")
            sentences += [f"{state}: {reason}" for reason in run.reasons]
    return sentences


def _marking_note(rows: RowRuns) -> str:
    if not _are_alike(rows):
        return UNLIKE
    return MARKED if max(map(len, rows.values())) > 1 else ONE_SEED


def _describe_rounds(runs: Sequence[Results]) -> str:
    rounds = runs[0].rounds
    extra = runs[0].recipe.get("extra_rounds")
    last_local = 0
    for run in runs:
        for model in (run.local_models or {}).values():
            last_local = max(last_local, model.rounds)
    if last_local > (rounds or 0):
        return f"{rounds}, then each site alone to its end, up to round {last_local}"
    return f"{rounds} and {extra} extra" if extra else str(rounds)
