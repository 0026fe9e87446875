"""The table of methods by sites, as papers print it, with averages, winners and the notes that a reader needs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from silofl.federation.results import Results
from silofl_desk.report.result_tables import mean_and_deviation, summarise_seeds
from silofl_desk.report.sentences import POOLED_MEAN
from silofl_desk.studies.comparison import GUESSING, list_guessing, list_limits
from silofl_desk.studies.conditions import describe_groups
from silofl_desk.studies.method_rows import (
    AVERAGES_ALSO,
    CENTRALISED,
    Methods,
    Row,
    find_leading_places,
    is_clearly_above,
    list_further_averages,
    make_method_rows,
    method_sites,
)
from silofl_hospital.report.metrics import metric_sentence
from silofl_hospital.report.tables import MISSING, TextTable

MOST_SITES_IN_A_ROW = 8
WON, WINNER = "sites won", "winner"
CLIENT_AVERAGE, POOLED = "client average", "pooled"
POOLING = "these rows need the data of all sites pooled in one place, which only a simulation can do"
PRETRAINED = (
    "these rows use a pretrained model; where silofl pretrain made it, it has seen training data of all sites in one "
    "place, which only a simulation can do, and the .json next to its file says how much"
)


def methods_table(methods: Methods, num_seeds: int, is_ranked: bool = True) -> TextTable:
    """Return the table, with the best of each column, or all that are level with it, and the sites that a method won.

    With more than 8 sites, or with further averages, whose names are long, it has one row a site and one column a
    method.

    Args:
        methods: In the order of the rows.
        num_seeds: Seeds that were asked for; a row without all of them is not compared.
        is_ranked: Whether the rows can be compared; otherwise nothing is marked or won.
    """
    rows, sites = make_method_rows(methods), method_sites(methods)
    further = [AVERAGES_ALSO[key] for key in list_further_averages(methods)]
    averages = (CLIENT_AVERAGE, POOLED, *further)
    table = TextTable(
        ("method", *sites, *averages), tuple((row.name, *map(mean_and_deviation, row.cells)) for row in rows)
    )
    places = rank_columns(rows, num_seeds) if is_ranked else []
    if any(places):
        table = _add_winners(table, places, sites)
    # Twenty columns, or long names of averages, do not fit a page's width.
    is_turned = len(sites) > MOST_SITES_IN_A_ROW or further
    return _turn_table(table, "site", len(table.columns) - 1 - len(sites)) if is_turned else table


def runs_table(runs: Mapping[str, Results]) -> TextTable | None:
    """Return the table of single runs, in which nothing is marked; None where no run has a value.

    Args:
        runs: Name -> result.
    """
    methods = {name: [run] for name, run in runs.items() if {*run.values.values()} - {None}}
    return methods_table(methods, 1, is_ranked=False) if methods else None


def methods_values(methods: Methods, num_seeds: int, is_ranked: bool = True) -> list[dict[str, Any]]:
    """Return the rows as plain values for programs; arguments as `methods_table`."""
    rows, sites, keys = make_method_rows(methods), method_sites(methods), list_further_averages(methods)
    places = rank_columns(rows, num_seeds) if is_ranked else []
    return [
        {
            "name": row.name,
            "is_federated": row.is_federated,
            "needs_pooled_data": row.needs_pool,
            "sites": dict(zip(sites, map(_seed_numbers, row.sites), strict=True)),
            "client_average": _seed_numbers(row.client_average),
            "pooled": _seed_numbers(row.averages[1]),
            "also": dict(zip(keys, map(_seed_numbers, row.averages[2:]), strict=True)),
            "sites_won": sites_won(places, i, sites),
            "sites_level": sites_level(places, i, sites),
        }
        for i, row in enumerate(rows)
    ]


def methods_notes(methods: Methods, seeds: Sequence[int], is_ranked: bool = True) -> list[str]:
    """Return the notes under the table, one sentence each.

    Args:
        methods: In the order of the rows.
        seeds: Seeds that were asked for.
        is_ranked: As for `methods_table`.
    """
    further = list_further_averages(methods)
    by_seed = [(f"{name}, seed {run.seed}", run) for name, runs in methods.items() for run in runs]
    is_multilabel = any(run.has_findings for _, run in by_seed)
    named, counted = ", ".join(map(str, seeds)), "mean ± standard deviation over them"
    return [
        *_marking_notes(methods, is_ranked, seeds),
        f"Metric: {describe_groups(methods, lambda run: str(run.metric))}; client average: mean over sites; "
        f"pooled: {POOLED_MEAN}.",
        *(f"{AVERAGES_ALSO[key]}: {metric_sentence(key, is_multilabel)}" for key in further),
        f"One seed: {named}." if len(seeds) == 1 else f"Seeds {named}: {counted}.",
        *list_limits(methods, (CENTRALISED,)),
        f"Rounds: {describe_groups({name: [runs] for name, runs in methods.items() if runs}, _rounds_text)}.",
        *(f"{name}: {run.ended_early}." for name, run in by_seed if run.ended_early),
        *_pooling_notes(methods),
        *(_rows_ahead(make_method_rows(methods), len(seeds)) if is_ranked else []),
        *(f"{name}: INCOMPLETE: {reason}" for name, run in by_seed for reason in run.reasons),
    ]


def rank_columns(rows: Sequence[Row], num_seeds: int) -> list[list[int]]:
    """Return the rows at the front of each column: the best alone, or all that the seeds cannot tell from it.

    Local training counts as any other row; a row that needs pooled data, or lacks a seed in the column, does not. Where
    all rows at the front guess, none is there.

    Args:
        num_seeds: Seeds that were asked for.
    """
    columns = zip(*([(row, values) for values in row.cells] for row in rows), strict=True)
    fronts = (
        find_leading_places([() if row.needs_pool or len(values) != num_seeds else values for row, values in column])
        for column in columns
    )
    return [[] if all(rows[place].is_guessing for place in front) else front for front in fronts]


def sites_won(places: Sequence[Sequence[int]], row: int, sites: Sequence[str]) -> list[str]:
    """Return the sites at which a row is the best."""
    # The places go on with the averages, which are no sites.
    return [site for site, rows in zip(sites, places, strict=False) if list(rows) == [row]]


def sites_level(places: Sequence[Sequence[int]], row: int, sites: Sequence[str]) -> list[str]:
    """Return the sites at which a row is one of several that the seeds cannot tell from the best."""
    return [site for site, rows in zip(sites, places, strict=False) if row in rows and len(rows) > 1]


def _add_winners(table: TextTable, places: Sequence[Sequence[int]], sites: Sequence[str]) -> TextTable:
    """Return the table with a column of sites won, a row of winners, and the front of each column marked."""
    names = [row[0] for row in table.rows]
    rows = [(*row, str(len(sites_won(places, i, sites)))) for i, row in enumerate(table.rows)]
    winners = [f"none: {len(found)} level" if len(found) > 1 else "".join(names[i] for i in found) for found in places]
    rows.append((WINNER, *(winner or MISSING for winner in winners), ""))
    columns = list(enumerate(places, start=1))
    best = frozenset((found[0], column) for column, found in columns if len(found) == 1)
    level = frozenset((row, column) for column, found in columns for row in found if len(found) > 1)
    return TextTable((*table.columns, WON), tuple(rows), num_summary=1, best_cells=best, level_cells=level)


def _turn_table(table: TextTable, corner: str, num_summary: int) -> TextTable:
    """Exchange rows and columns; the last columns become rows that sum up the others."""
    (_, *names), *rows = zip(table.columns, *table.rows, strict=True)
    # The first column holds the rows' names and becomes the header, which has no row number.
    best, level = (frozenset((j - 1, i + 1) for i, j in cells) for cells in (table.best_cells, table.level_cells))
    return TextTable((corner, *names), tuple(rows), 1, num_summary, best_cells=best, level_cells=level)


def _seed_numbers(values: Sequence[float]) -> dict[str, Any]:
    mean, deviation = summarise_seeds(values)
    return {"mean": mean, "std": deviation, "values": list(values)}


def _marking_notes(methods: Methods, is_ranked: bool, seeds: Sequence[int]) -> list[str]:
    guessing = list_guessing(methods)
    if guessing and len(guessing) == sum(map(bool, methods.values())):
        return [f"No value is marked as the best: {GUESSING}."]
    if not is_ranked:
        return ["No value is marked as the best: the runs differ in metric, regions, split or test data."]
    if len(seeds) == 1:
        return ["No value is marked as the best: with one seed a difference can be chance; give more --seeds."]
    return [
        "A site's best value is bold or has a star if its lead over every other method is larger than both methods' "
        "standard deviation over seeds; its method wins the site. Otherwise nobody wins: the highest value and "
        "those that it does not lead so are level, underlined or with an equals sign. Local training counts, rows that "
        f"need pooled data do not.{' Rows that may be guesses win nothing.' * bool(guessing)}"
    ]


def _rounds_text(runs: Sequence[Results]) -> str:
    """Return the rounds of a row; its seeds differ only in when each site's own training ends."""
    results = runs[0]
    rounds = f"at most {results.rounds}" if any(run.ended_early for run in runs) else str(results.rounds)
    extra = results.recipe.get("extra_rounds")
    own = max((one.rounds for run in runs for one in (run.own_models or {}).values()), default=0)
    if own > (results.rounds or 0):
        return f"{rounds}, then each site alone to its end, up to round {own}"
    return f"{rounds} and {extra} extra" if extra else rounds


def _pooling_notes(methods: Methods) -> list[str]:
    """Name the methods that used data of other sites, by pooling or in a pretrained model."""
    notes = [f"{CENTRALISED}: {POOLING}."] if CENTRALISED in methods else []
    uses = {name: any(run.recipe.get("needs_pretrained") for run in runs) for name, runs in methods.items()}
    pretrained = ", ".join(name for name, is_so in uses.items() if is_so)
    notes += [f"{pretrained}: {PRETRAINED}."] if pretrained else []
    return notes


def _rows_ahead(rows: Sequence[Row], num_seeds: int) -> list[str]:
    """Name the rows without a federation whose client average is above, or level with, that of each federated row."""
    complete = [row for row in rows if len(row.client_average) == num_seeds and not row.is_guessing]
    means = {row.name: float(np.mean(row.client_average)) for row in complete}
    highest = max((row for row in complete if row.is_federated), key=lambda row: means[row.name], default=None)
    if highest is None:
        return []
    return [
        _ahead_sentence(row, highest, means)
        for row in complete
        if not row.is_federated and round(means[row.name], 3) > round(means[highest.name], 3)
    ]


def _ahead_sentence(row: Row, federated: Row, means: Mapping[str, float]) -> str:
    own, highest = means[row.name], means[federated.name]
    numbers = f"{row.name} has {own:.3f}, the highest federated row, {federated.name}, {highest:.3f}"
    what = "Training on pooled data" if row.needs_pool else "Local training"
    if len(row.client_average) == 1:
        return f"{what} is ahead on average, with one seed: {numbers}."
    if is_clearly_above(row.client_average, federated.client_average):
        return f"{what} wins on average: {numbers}."
    return f"{what} is level with the federation on average, within the seeds' spread: {numbers}."
