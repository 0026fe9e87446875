"""The best and the second-best of a table, by the three decimals that it shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from silofl.report.comparison import are_comparable
from silofl.report.method_rows import Method, Row

Places = tuple[list[int], list[int]]


def best_and_second(values: Sequence[float | None]) -> Places:
    """Return the places of the highest and of the second-highest value, several where they are equal as shown.

    None of them is the best of just one, and none the second-best of two: that is the last.
    """
    known = {place: round(value, 3) for place, value in enumerate(values) if value is not None}
    if len(known) < 2:
        return [], []
    ranked = sorted(set(known.values()), reverse=True)
    best, second = ([place for place, value in known.items() if [value] == ranked[i : i + 1]] for i in (0, 1))
    return best, second if len(known) > 2 else []


def is_comparable(methods: Sequence[Method]) -> bool:
    """Return whether the runs on data that stayed at their sites measure the same thing on the same test cases."""
    runs = [run for method in methods if not method.needs_pool for run in method.results.values()]
    return are_comparable([run for run in runs if None not in run.get("sites", {}).values()])


def ranked(rows: Sequence[Row], num_seeds: int) -> list[Places]:
    """Return the best and second-best rows of each column.

    Local training counts as any other row; a row that needs pooled data, or lacks a seed in the column, does not.

    Args:
        rows: Of one table.
        num_seeds: Seeds that each method was to run with.
    """
    return [best_and_second([_mean(row, column, num_seeds) for row in rows]) for column in range(_width(rows))]


def sites_won(places: Sequence[Places], row: int, sites: Sequence[str]) -> list[str]:
    """Return the sites at which a row is the best, those that it shares included."""
    return [site for site, (best, _) in zip(sites, places, strict=False) if row in best]


def _width(rows: Sequence[Row]) -> int:
    return len(rows[0].cells) if rows else 0


def _mean(row: Row, column: int, num_seeds: int) -> float | None:
    values = row.cells[column]
    return None if row.method.needs_pool or len(values) != num_seeds else float(np.mean(values))
