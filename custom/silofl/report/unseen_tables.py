"""The test on a site that never trained, as text: whose model was chosen, and what each choice comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from silofl.report.tables import TextTable, number, print_lines, print_table

MEAN_OF_SITES = "mean of all sites"
CLINIC = "what a clinic would get"
HINDSIGHT = "best in hindsight: chosen on the test data, shown and never used"


def print_unseen(result: Mapping[str, Any], console: Console) -> None:
    """Print the content of a run's unseen.json.

    Args:
        result: The content.
        console: Where it is shown.
    """
    print_lines(["", *unseen_notes(result)], console)
    print_table(unseen_table(result), console)
    if result.get("by_threshold"):
        print_lines(["", "by threshold (gamma): a site's model answers where its score is above it"], console)
        print_table(threshold_table(result), console)


def unseen_notes(result: Mapping[str, Any]) -> list[str]:
    """Return what the table is about: the site, its cases, and where the super model comes from."""
    excluded = result["num_cases"] - result["num_counted"]
    without = f" ({excluded} with empty truth and prediction excluded)" if excluded else ""
    notes = [f"unseen site {result['site']}: {result['num_cases']} cases{without}, none of them seen in training"]
    if result.get("assembled_from"):
        notes.append(f"the super model was put together from {result['assembled_from']}: only a simulation can do this")
    return [*notes, f"metric: {result['metric']}"]


def unseen_table(result: Mapping[str, Any]) -> TextTable:
    """Return one row for each way to answer, what a clinic would get first, then each model alone.

    Args:
        result: The content of unseen.json.
    """
    if result["rule"] != "selector":
        return TextTable(("answer", result["metric"]), tuple(_plain_rows(result)))
    names = list(result["models"])
    sites = [name for name in names if name not in ("global", "ensemble")]
    columns = ("answer", result["metric"], *(f"chosen: {name}" for name in ("global", *sites)))
    empty = ("",) * (len(sites) + 1)
    alone = [(_alone(name), number(result["models"][name]), *empty) for name in ("global", *sites, "ensemble")]
    return TextTable(columns, (*_super_rows(result, sites), *alone))


def threshold_table(result: Mapping[str, Any]) -> TextTable:
    """Return one row for each candidate of gamma: the value, and how many cases the global model answers."""
    rows = tuple(
        (f"{record['threshold']:g}", number(record["value"]), _share(record["choices"]["global"], result))
        for record in result["by_threshold"]
    )
    return TextTable(("gamma", result["metric"], "chosen: global"), rows, num_text=0)


def _super_rows(result: Mapping[str, Any], sites: list[str]) -> list[tuple[str, ...]]:
    def row(label: str, record: Mapping[str, Any]) -> tuple[str, ...]:
        choices = [_share(record["choices"].get(name, 0), result) for name in ("global", *sites)]
        return label, number(record["value"]), *choices

    if result["answer"] == "ensemble":
        return [row(f"super model, ensemble: {CLINIC}", result)]
    if result["threshold"] is None:
        return [row(f"super model, most probable model: {CLINIC}", result)]
    gamma = f"super model, gamma {result['threshold']:g} ({result['threshold_from']}): {CLINIC}"
    rows = [row(gamma, result), row("super model, gamma 0 (always a site's model)", result["by_threshold"][0])]
    best = result["best_in_hindsight"]
    return [*rows, row(f"super model, gamma {best['threshold']:g} ({HINDSIGHT})", best)] if best else rows


def _plain_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    name = "global model" if result["rule"] == "only" else MEAN_OF_SITES
    rows = [(f"{name}: {CLINIC}", number(result["value"]))]
    alone = result["models"] if result["rule"] == "mean" else {}
    return [*rows, *((_alone(site), number(value)) for site, value in alone.items())]


def _alone(name: str) -> str:
    return {"global": "global model alone", "ensemble": "ensemble of all models"}.get(name, f"model of {name} alone")


def _share(count: int, result: Mapping[str, Any]) -> str:
    total = result["num_cases"]
    return f"{count} ({count / total:.0%})" if total else str(count)
