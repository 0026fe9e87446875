"""Results as tables of text: one run by site, several runs side by side; for the terminal and the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from silofl.report.class_scores import everyone_sentence, scores_beside
from silofl.report.comparison import best_runs, compared_sites, comparison_notes
from silofl.report.sentences import normalization_label, shares_patients, split_sentence

MISSING = "-"
MOST_LABELS_BESIDE_THE_VALUE = 4
MOST_SITES_IN_A_ROW = 8


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Attributes:
        columns: Names of the columns.
        rows: One tuple of cells a row.
        num_text: Leading columns that hold words; the others hold numbers.
        num_summary: Last rows that sum up the others.
        best: Rows that are marked as the best.
        best_cells: (row, column) of the cells that are marked as the best.
        second_cells: (row, column) of the cells that are marked as the second-best.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text: int = 1
    num_summary: int = 0
    best: frozenset[int] = frozenset()
    best_cells: frozenset[tuple[int, int]] = frozenset()
    second_cells: frozenset[tuple[int, int]] = frozenset()


def number(value: float | None) -> str:
    """Return a value with three decimals, ``-`` where there is none."""
    return MISSING if value is None else f"{value:.3f}"


def count(value: int | None) -> str:
    """Return a whole number, ``-`` where there is none."""
    return MISSING if value is None else str(value)


def site_table(results: Mapping[str, Any]) -> TextTable:
    """Return one row a site, then the mean over sites, their spread and the mean over all cases together.

    Args:
        results: The content of a run's results.json.
    """
    columns = ("site", results.get("metric") or "value", "test cases", "excluded cases", "validation")
    rows = [*(_site_row(results, site) for site in results.get("sites", {})), *_summary_rows(results)]
    more = {name: [*_with_mean(values), "", ""] for name, values in _values_beside(results).items()}
    cells = zip(rows, zip(*more.values(), strict=True), strict=True) if more else ((row, ()) for row in rows)
    return TextTable((*columns, *more), tuple((*row, *others) for row, others in cells), num_summary=3)


def label_table(results: Mapping[str, Any]) -> TextTable | None:
    """Return one row a site, one column a label by name, and the mean over sites; None where `site_table` has them."""
    labels = dict(sorted(label_values(results).items()))
    if len(labels) <= MOST_LABELS_BESIDE_THE_VALUE:
        return None
    rows = zip((*results["sites"], "mean over sites"), *map(_with_mean, labels.values()), strict=True)
    return TextTable(("site", *labels), tuple(rows), num_summary=1)


def label_values(results: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return label -> value of each site, in the order of the result's sites; nothing of a single label."""
    found = results.get("by_label") or {}
    names = list(dict.fromkeys(name for values in found.values() for name in values))
    values = {name: [found.get(site, {}).get(name) for site in results["sites"]] for name in names}
    return values if len(names) > 1 else {}


def comparison_table(results: Sequence[Mapping[str, Any]]) -> TextTable:
    """Return one row a run, in the given order, with the best of the comparable means marked.

    More than 8 sites stand in `site_comparison_table`.

    Args:
        results: The contents of the runs' results.json.
    """
    sites = [] if _are_many(compared_sites(results)) else compared_sites(results)
    head = ("run", "study", "algorithm", "preset", "normalization", "seed", "status", "best round")
    rows = tuple(_run_row(i, run, sites) for i, run in enumerate(results, start=1))
    return TextTable((*head, "mean", "spread", "pooled", *sites), rows, num_text=7, best=best_runs(results))


def site_comparison_table(results: Sequence[Mapping[str, Any]]) -> TextTable | None:
    """Return one row a site and one column a run; None where `comparison_table` has the sites."""
    sites = compared_sites(results)
    if not _are_many(sites):
        return None
    names = (f"{i}: {run.get('algorithm') or MISSING}" for i, run in enumerate(results, start=1))
    rows = tuple((site, *(number(run.get("sites", {}).get(site)) for run in results)) for site in sites)
    return TextTable(("site", *names), rows)


def print_results(results: Mapping[str, Any], console: Console) -> None:
    """Print a run's status with its reasons, where its numbers come from, and the numbers."""
    lines = [f"{results['status']}  {_title(results)}"]
    lines += [f"  - {reason}" for reason in results.get("reasons", [])]
    if results.get("model"):
        lines.append(f"model: {results['model']}")
    lines.append(f"metric: {results.get('metric') or MISSING}")
    lines.append(f"normalization: {normalization_label(results.get('normalization'))}")
    if shares_patients(results.get("split_unit")):
        lines.append(f"split {split_sentence(results['split_unit'])}")
    print_lines(lines, console)
    if results.get("sites"):
        print_table(site_table(results), console)
    if results.get("everyone"):
        print_lines([everyone_sentence(results)], console)


def print_comparison(results: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print runs side by side, one row a run, and what must be known to compare them."""
    table, by_site = comparison_table(results), site_comparison_table(results)
    print_table(table, console)
    if by_site:
        console.print()
        print_table(by_site, console)
    print_lines(["* best mean"] * bool(table.best) + comparison_notes(results), console)


def _values_beside(results: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return what stands beside a run's values: other scores of a classification, and labels where they are few."""
    if not results.get("sites"):
        return {}
    labels, metric = label_values(results), results.get("metric") or "value"
    is_few = len(labels) <= MOST_LABELS_BESIDE_THE_VALUE
    return scores_beside(results) | ({f"{metric} of {name}": labels[name] for name in labels} if is_few else {})


def _with_mean(values: Sequence[float | None]) -> list[str]:
    """Return values and their mean over those that are known."""
    known = [value for value in values if value is not None]
    return [*map(number, values), number(float(np.mean(known)) if known else None)]


def _are_many(sites: Sequence[str]) -> bool:
    return len(sites) > MOST_SITES_IN_A_ROW


def _site_row(results: Mapping[str, Any], site: str) -> tuple[str, ...]:
    validation = (results.get("validation", {}).get(site) or {}).get("value")
    cases, excluded = results.get("cases", {}).get(site), results.get("excluded_cases", {}).get(site)
    return site, number(results["sites"][site]), count(cases), count(excluded), number(validation)


def _summary_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    sites = results.get("sites", {})
    tested = sum(value is not None for value in sites.values())
    of = "sites" if tested == len(sites) else f"{tested} of {len(sites)} sites"
    scores = [score["value"] for score in results.get("validation", {}).values() if score["value"] is not None]
    cases, excluded = (str(sum(results.get(key, {}).values())) for key in ("cases", "excluded_cases"))
    return [
        (f"mean over {of}", number(results.get("mean")), "", "", number(float(np.mean(scores)) if scores else None)),
        (f"spread over {of} (std)", number(results.get("spread")), "", "", ""),
        ("pooled over all cases", number(results.get("pooled")), cases, excluded, ""),
    ]


def _run_row(row: int, results: Mapping[str, Any], sites: Sequence[str]) -> tuple[str, ...]:
    names = (results.get(key) for key in ("study", "algorithm", "preset", "normalization", "seed", "status"))
    words = (str(row), *(MISSING if name is None else str(name) for name in names))
    values = [results.get(key) for key in ("mean", "spread", "pooled")]
    values += [results.get("sites", {}).get(site) for site in sites]
    return (*words, count(results.get("best_round")), *map(number, values))


def _title(results: Mapping[str, Any]) -> str:
    parts = [f"{results.get('study')}: {results.get('algorithm')}", f"preset {results.get('preset')}"]
    return ", ".join([*parts, f"seed {results.get('seed')}", f"{results.get('rounds')} rounds"])


def print_lines(lines: Sequence[str], console: Console) -> None:
    """Print lines as they are, without markup and uncut."""
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def print_table(table: TextTable, console: Console) -> None:
    """Print a table at its full width, because a cropped number reads as another number."""
    rich = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for i, name in enumerate(table.columns):
        rich.add_column(Text(name), justify="left" if i < table.num_text else "right", no_wrap=True)
    for i, row in enumerate(table.rows):
        if table.num_summary and i == len(table.rows) - table.num_summary:
            rich.add_section()
        marked = [_marked(cell, _mark(table, i, j)) for j, cell in enumerate(row)]
        rich.add_row(*marked, style="bold" if i in table.best else None)
    rich.width = Measurement.get(console, console.options.update(width=10_000), rich).maximum
    console.print(rich, soft_wrap=True)


def _mark(table: TextTable, row: int, column: int) -> str:
    """Return the sign of a cell's place, which a terminal without bold letters shows too."""
    if (row, column) in table.best_cells or (row in table.best and table.columns[column] == "mean"):
        return "*"
    return "+" if (row, column) in table.second_cells else ""


def _marked(cell: str, mark: str) -> Text:
    return Text(f"{cell} {mark}".rstrip(), style={"*": "bold", "+": "underline"}.get(mark, ""))
