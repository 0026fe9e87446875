"""The tables of a run with FedSM's selector: what each model is worth, what the selector says, which model answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from silofl.report.comparison import are_comparable, compared_sites
from silofl.report.ranking import best_and_second
from silofl.report.tables import TextTable, count, number

Results = Mapping[str, Any]
Values = dict[str, float | None]
GLOBAL, PERSONAL, SUPER, ENSEMBLE = "global", "personal", "super", "ensemble"
MODELS = (GLOBAL, PERSONAL, SUPER, ENSEMBLE)


@dataclass(frozen=True)
class CountTable:
    """How often the selector took a site's images, or cases, for whose.

    Attributes:
        columns: What the selector's outputs stand for.
        rows: True site -> {output: count}.
        right: True site, and ``all sites`` -> how many of how many it got right; empty where the site is not asked for.
    """

    columns: list[str]
    rows: dict[str, dict[str, int]]
    right: dict[str, str]

    def share(self, site: str, output: str) -> float:
        """Return which part of a site's row a cell is."""
        return self.rows[site].get(output, 0) / max(1, sum(self.rows[site].values()))


def has_models(results: Results) -> bool:
    """Return whether a result tells its global, personalised and super model apart."""
    return bool(results.get("models"))


def model_values(results: Results) -> dict[str, Values]:
    """Return global, personal, super, ensemble -> site -> mean test value at the site."""
    of_site = {site: results["models"].get(site) or {} for site in results["sites"]}
    return {
        name: {site: values.get(site if name == PERSONAL else name) for site, values in of_site.items()}
        for name in MODELS
    }


def model_table(results: Results) -> TextTable:
    """Return one row a site with the test value of each model, and their means; the best of a row is marked."""
    values = model_values(results)
    table = [[values[name][site] for name in MODELS] for site in results["sites"]]
    table.append([mean_value(values[name]) for name in MODELS])
    names = (*results["sites"], _over(values[SUPER]))
    rows = tuple((name, *map(number, row)) for name, row in zip(names, table, strict=True))
    best = frozenset((i, j + 1) for i, row in enumerate(table) for j in best_and_second(row)[0])
    return TextTable(("site", *MODELS), rows, num_summary=1, best_cells=best)


def selector_counts(results: Results, unit: str) -> CountTable | None:
    """Return what the selector took each site's test images for; None where the result does not say.

    Args:
        results: The content of a run's results.json.
        unit: ``slices``, each on its own, or ``cases``, whose slices speak together.
    """
    selector = results.get("selector") or {}
    counted = selector.get(unit) or {}
    if not any(sum(counts.values()) for counts in counted.values()):
        return None
    outputs = list(selector["outputs"])
    sites = sorted(counted, key=lambda site: (outputs.index(site) if site in outputs else len(outputs), site))
    rows = {site: dict(counted[site]) for site in sites}
    return CountTable(outputs, rows, {} if GLOBAL in outputs else _right(rows))


def choice_table(results: Results) -> TextTable | None:
    """Return in how many test cases of each site which model was chosen; None where the result does not say."""
    choices = results.get("choices")
    if not choices:
        return None
    names = {name for counts in choices.values() for name in counts}
    models = [GLOBAL, *sorted({*names, *choices} - {GLOBAL})]
    rows = [(site, [counts.get(name, 0) for name in models]) for site, counts in sorted(choices.items())]
    rows.append(("all sites", [sum(row[i] for _, row in rows) for i in range(len(models))]))
    cells = tuple((name, *map(str, row), str(sum(row))) for name, row in rows)
    return TextTable(("test cases of", *models, "cases"), cells, num_summary=1)


def threshold_table(by_threshold: Sequence[Values], gamma: float | None, metric: str) -> TextTable | None:
    """Return the value of the super model by threshold, with a word at the one that was used; None without any.

    No value is marked as the best: these are test cases, on which no threshold may be chosen.

    Args:
        by_threshold: ``threshold`` and ``value`` of each candidate.
        gamma: The threshold that was used.
        metric: The value's name.
    """
    rows = [row for row in by_threshold if {"threshold", "value"} <= row.keys()]
    if not rows:
        return None
    names = tuple(f"{row['threshold']:g}{' (used)' if row['threshold'] == gamma else ''}" for row in rows)
    cells = (f"{metric} of the test cases", *(number(row["value"]) for row in rows))
    return TextTable(("threshold gamma", *names), (cells,))


def alone_table(unseen: Mapping[str, Any], metric: str) -> TextTable | None:
    """Return the super model's value at a left-out site beside that of each of its models; None where they are unknown.

    Args:
        unseen: ``value`` of the super model, ``models``: name -> value of each model alone.
        metric: The value's name.
    """
    models = unseen.get("models") or {}
    if not models:
        return None
    values = [unseen.get("value"), *models.values()]
    best = frozenset((0, i + 1) for i in best_and_second(values)[0])
    return TextTable(("model", SUPER, *models), ((metric, *map(number, values)),), best_cells=best)


def models_of_runs(results: Sequence[Results], names: Sequence[str]) -> TextTable | None:
    """Return one row for each model of each run, one column a site; None where no run has more than one model.

    Args:
        results: The contents of the runs' results.json.
        names: The runs' names.
    """
    if not any(has_models(run) for run in results):
        return None
    sites = compared_sites(results)
    found = [(name, model, v) for name, run in zip(names, results, strict=True) for model, v in _models_of(run).items()]
    table = [[values.get(site) for site in sites] for *_, values in found]
    table = [[*row, None if None in row else float(np.mean(row))] for row in table]
    rows = tuple((name, model, *map(number, row)) for (name, model, _), row in zip(found, table, strict=True))
    best: frozenset[tuple[int, int]] = frozenset()
    if are_comparable([run for run in results if _models_of(run)]):
        columns = enumerate(zip(*table, strict=True), start=2)
        best = frozenset((i, column) for column, values in columns for i in best_and_second(values)[0])
    return TextTable(("run", "model", *sites, "mean"), rows, num_text=2, best_cells=best)


def mean_value(values: Values) -> float | None:
    """Return the mean over the sites that have a value."""
    known = [value for value in values.values() if value is not None]
    return float(np.mean(known)) if known else None


def choices_in_words(choices: Mapping[str, int]) -> str:
    """Return how many cases each model answered; nothing where that is not known."""
    ranked = sorted(((name, cases) for name, cases in choices.items() if cases), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count(cases)}" for name, cases in ranked)


def _models_of(results: Results) -> dict[str, Values]:
    """Return description -> site -> value of the models of one run; nothing of a run without any value."""
    if has_models(results):
        return model_values(results)
    if not any(value is not None for value in results.get("sites", {}).values()):
        return {}
    return {_single_model(results.get("recipe") or {}): dict(results["sites"])}


def _single_model(recipe: Mapping[str, Any]) -> str:
    """Return what the one model is that each site of a run without selector has."""
    homes = {"everything": "local: each site alone", "batchnorm": "global but for BatchNorm", "nothing": GLOBAL}
    homes["head"] = "global but for the head"
    is_personal = recipe.get("stays_home") != "everything" and recipe.get("mixing") in ("softpull", "adafed")
    return PERSONAL if is_personal else homes.get(str(recipe.get("stays_home")), "the run's model")


def _right(rows: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    totals = {site: (counts.get(site, 0), sum(counts.values())) for site, counts in rows.items()}
    right, of = (sum(total[i] for total in totals.values()) for i in (0, 1))
    return {site: f"{r} of {n}" for site, (r, n) in totals.items()} | {"all sites": f"{right} of {of}"}


def _over(values: Values) -> str:
    tested = sum(value is not None for value in values.values())
    return "mean over sites" if tested == len(values) else f"mean over {tested} of {len(values)} sites"
