"""Methods side by side as the papers print them: methods by sites, averages, and who is the best where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from silofl.report.class_scores import AVERAGES_ALSO
from silofl.report.method_rows import CLIENT_AVERAGE, POOLED, Method, averages_beside, compared, rows_of
from silofl.report.ranking import Places, is_comparable, ranked, sites_won
from silofl.report.tables import MISSING, MOST_SITES_IN_A_ROW, TextTable

WON, WINNER = "sites won", "winner"


def methods_table(methods: Sequence[Method], num_seeds: int, is_ranked: bool = True) -> TextTable:
    """Return the table, the best and second-best of each column marked, with the winners and how much each won.

    With more than 8 sites, or with averages beside the metric, whose names are long, it is turned: one row a site, one
    column a method.

    Args:
        methods: In the order of the rows.
        num_seeds: Seeds that each method was to run with; a row without all of them is not compared.
        is_ranked: Whether values of different rows say the same thing; without that, nothing is marked or won.
    """
    rows, sites = rows_of(methods), compared(methods)
    beside = averages_beside(methods)
    averages = (CLIENT_AVERAGE, POOLED, *(AVERAGES_ALSO[key] for key in beside))
    table = TextTable(
        ("method", *sites, *averages), tuple((row.name, *map(mean_and_deviation, row.cells)) for row in rows)
    )
    places = ranked(rows, num_seeds) if is_ranked else []
    if any(best for best, _ in places):
        table = _with_winners(table, places, sites)
    is_turned = len(sites) > MOST_SITES_IN_A_ROW or beside
    return _turned(table, "site", len(table.columns) - 1 - len(sites)) if is_turned else table


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return ``mean ± standard deviation`` over seeds; the mean alone of one, ``-`` of none."""
    if not values:
        return MISSING
    text = f"{np.mean(values):.3f}"
    return f"{text} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else text


def methods_values(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Return the rows as plain values for programs."""
    rows, sites, beside = rows_of(methods), compared(methods), averages_beside(methods)
    num_seeds = max((method.num_seeds for method in methods), default=0)
    places = ranked(rows, num_seeds) if is_comparable(methods) else []
    return [
        {
            "name": row.name,
            "is_federated": row.method.is_federated,
            "needs_pooled_data": row.method.needs_pool,
            "sites": dict(zip(sites, map(_numbers, row.sites), strict=True)),
            "client_average": _numbers(row.client_average),
            "pooled": _numbers(row.averages[1]),
            "also": dict(zip(beside, map(_numbers, row.averages[2:]), strict=True)),
            "sites_won": sites_won(places, i, sites),
        }
        for i, row in enumerate(rows)
    ]


def markdown(table: TextTable, notes: Sequence[str]) -> str:
    """Return a table in Markdown, the best cells bold, the second-best underlined, with its notes as a list."""
    lines = [table.columns, ("---",) * len(table.columns)]
    for i, row in enumerate(table.rows):
        lines.append(tuple(_emphasised(cell, table, (i, j)) for j, cell in enumerate(row)))
    text = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    return f"{text}\n\n" + "".join(f"- {note}\n" for note in notes)


def _emphasised(cell: str, table: TextTable, place: tuple[int, int]) -> str:
    if place in table.best_cells:
        return f"**{cell}**"
    return f"<ins>{cell}</ins>" if place in table.second_cells else cell


def _with_winners(table: TextTable, places: Sequence[Places], sites: Sequence[str]) -> TextTable:
    """Return the table with a column of sites won, a row of winners, and both places marked."""
    names = [row[0] for row in table.rows]
    rows = [(*row, str(len(sites_won(places, i, sites)))) for i, row in enumerate(table.rows)]
    rows.append((WINNER, *(_winner([names[i] for i in best]) for best, _ in places), ""))
    best, second = (frozenset((i, j) for j, found in enumerate(places, 1) for i in found[rank]) for rank in (0, 1))
    return TextTable((*table.columns, WON), tuple(rows), num_summary=1, best_cells=best, second_cells=second)


def _winner(names: Sequence[str]) -> str:
    """Return the names of up to two, and the number of more."""
    return f"{len(names)} equal" if len(names) > 2 else ", ".join(names) or MISSING


def _turned(table: TextTable, corner: str, num_summary: int) -> TextTable:
    """Return the table with rows and columns exchanged; its last columns become rows that sum up the others."""
    (_, *names), *rows = zip(table.columns, *table.rows, strict=True)
    best, second = (frozenset((j - 1, i + 1) for i, j in cells) for cells in (table.best_cells, table.second_cells))
    return TextTable((corner, *names), tuple(rows), 1, num_summary, best_cells=best, second_cells=second)


def _numbers(values: Sequence[float]) -> dict[str, Any]:
    return {
        "mean": float(np.mean(values)) if values else None,
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "values": list(values),
    }
