"""Methods side by side as the papers print them: one row a method, one column a site, mean and deviation over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from silofl.report.comparison import compared_sites
from silofl.report.tables import MISSING, TextTable
from silofl.training.metrics import pooled

Results = Mapping[str, Any]
AVERAGES = ("client average", "pooled")
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


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: The method, and which of its models.
        cells: For each site, the client average and the pooled mean: the values of the seeds that have one.
        method: What the row belongs to.
    """

    name: str
    cells: tuple[tuple[float, ...], ...]
    method: Method


def compared(methods: Sequence[Method]) -> list[str]:
    """Return all sites of the methods' runs."""
    return compared_sites([run for method in methods for run in method.results.values()])


def rows_of(methods: Sequence[Method]) -> list[Row]:
    """Return all rows in the given order; a method with a selector has four, which come from the same runs."""
    sites = compared(methods)
    return [row for method in methods for row in _rows(method, sites)]


def methods_table(methods: Sequence[Method], num_seeds: int, is_comparable: bool = True) -> TextTable:
    """Return the table, with the best value of each column among the federated rows marked.

    Args:
        methods: In the order of the rows.
        num_seeds: Seeds that each method was to run with; a row without all of them is not compared.
        is_comparable: Whether values of different rows say the same thing.
    """
    rows = rows_of(methods)
    best = best_cells(rows, num_seeds) if is_comparable else frozenset()
    cells = tuple((row.name, *map(mean_and_deviation, row.cells)) for row in rows)
    marked = frozenset((i, j + 1) for i, j in best)
    return TextTable(("method", *compared(methods), *AVERAGES), cells, best_cells=marked)


def best_cells(rows: Sequence[Row], num_seeds: int) -> frozenset[tuple[int, int]]:
    """Return (row, column) of the best federated means; several where the three decimals shown are equal."""
    best: set[tuple[int, int]] = set()
    for column in range(len(rows[0].cells) if rows else 0):
        means = {
            i: round(float(np.mean(row.cells[column])), 3)
            for i, row in enumerate(rows)
            if row.method.is_federated and len(row.cells[column]) == num_seeds
        }
        if len(means) > 1:
            best |= {(i, column) for i, mean in means.items() if mean == max(means.values())}
    return frozenset(best)


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return ``mean ± standard deviation`` over seeds; the mean alone of one, ``-`` of none."""
    if not values:
        return MISSING
    text = f"{np.mean(values):.3f}"
    return f"{text} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else text


def methods_values(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Return the rows as plain values for programs."""
    sites = compared(methods)
    return [
        {
            "name": row.name,
            "is_federated": row.method.is_federated,
            "needs_pooled_data": row.method.needs_pool,
            "sites": dict(zip(sites, map(_numbers, row.cells), strict=False)),
            "client_average": _numbers(row.cells[-2]),
            "pooled": _numbers(row.cells[-1]),
        }
        for row in rows_of(methods)
    ]


def markdown(table: TextTable, notes: Sequence[str]) -> str:
    """Return a table in Markdown, the best cells bold, with its notes as a list."""
    lines = [table.columns, ("---",) * len(table.columns)]
    for i, row in enumerate(table.rows):
        lines.append(tuple(f"**{cell}**" if (i, j) in table.best_cells else cell for j, cell in enumerate(row)))
    text = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    return f"{text}\n\n" + "".join(f"- {note}\n" for note in notes)


def _rows(method: Method, sites: Sequence[str]) -> list[Row]:
    runs = list(method.results.values())
    if not any("models" in run for run in runs):
        name = f"{method.name} ({POOLED_DATA})" if method.needs_pool else method.name
        return [Row(name, _cells([(run.get("sites", {}), run.get("pooled")) for run in runs], sites), method)]
    values = {"super": [(run["sites"], run["pooled"]) for run in runs]}
    for model in ("ensemble", "global", "personal"):
        values[model] = [_of_model(run, model) for run in runs]
    return [Row(f"{method.name} {model}", _cells(found, sites), method) for model, found in values.items()]


def _of_model(results: Results, model: str) -> tuple[dict[str, float | None], float | None]:
    """Return the value of one model at each site, ``personal`` being each site's own, and over all cases together."""
    tables, cases = results["models"], results.get("cases", {})
    values = {site: table.get(site if model == "personal" else model) for site, table in tables.items()}
    return values, pooled([(value, cases.get(site, 0)) for site, value in values.items() if value is not None])


def _cells(
    runs: Sequence[tuple[Mapping[str, float | None], float | None]], sites: Sequence[str]
) -> tuple[tuple[float, ...], ...]:
    """Return the known values of each column; a mean counts only where every site has a value."""
    columns: list[list[float | None]] = [[] for _ in (*sites, *AVERAGES)]
    for values, together in runs:
        found = [values.get(site) for site in sites]
        is_whole = bool(found) and None not in found
        means = [float(np.mean(found)), together] if is_whole else [None, None]
        for column, value in zip(columns, [*found, *means], strict=True):
            column.append(value)
    return tuple(tuple(value for value in column if value is not None) for column in columns)


def _numbers(values: Sequence[float]) -> dict[str, Any]:
    return {
        "mean": float(np.mean(values)) if values else None,
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "values": list(values),
    }
