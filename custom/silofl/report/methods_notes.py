"""What must be known to read a table of methods: split, normalisation, rounds, choice of round, pooled data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from silofl.report.class_scores import AVERAGES_ALSO
from silofl.report.method_rows import Method, Row, averages_beside, rows_of
from silofl.report.ranking import is_comparable
from silofl.report.sentences import (
    EVERYONE,
    SHARED_BATCHNORM,
    SHARES_BATCHNORM,
    metric_sentence,
    normalization_label,
    split_sentence,
)

Results = Mapping[str, Any]
POOLING = "these rows need the data of all sites pooled in one place, which only a simulation can do"
PRETRAINED = (
    "these rows use a pretrained model; where silofl pretrain made it, it has seen training data of all sites in one "
    "place, which only a simulation can do, and the .json beside its file says how much"
)
NO_POOLING = "none of these rows needs data to be pooled"
_DEFINITIONS = {
    **{key: metric_sentence(key) for key in ("accuracy", "balanced_accuracy", "auroc")},
    "everyone_balanced_accuracy": EVERYONE,
}


def notes_of(methods: Sequence[Method], seeds: Sequence[int]) -> list[str]:
    """Return what stands under the table, one plain sentence a line.

    Args:
        methods: In the order of the rows.
        seeds: Seeds that each method was to run with.
    """
    rows = rows_of(methods)
    return [
        *_marking(methods),
        f"Metric: {_said(methods, lambda run: str(run.get('metric')))}; client average: mean over sites; pooled: mean "
        "over all cases.",
        *_beside(methods),
        _seeds(seeds),
        f"Split: {_said(methods, lambda run: split_sentence(run.get('split_unit')))}.",
        f"Normalization: {_said(methods, lambda run: normalization_label(run.get('normalization')))}.",
        f"Rounds: {_said(methods, _rounds)}.",
        *_reported_rounds(methods),
        *_thresholds(methods),
        *_pooling(methods),
        *_shared_batchnorm(methods),
        *_weights(methods),
        *_ahead(rows, len(seeds)),
        *_shortcomings(methods),
    ]


def _marking(methods: Sequence[Method]) -> list[str]:
    if not is_comparable(methods):
        return ["No value is marked as the best: the runs differ in metric, split or test cases."]
    return [
        "Of each site and average, the best value is bold, or has a star; the second-best of three or more is "
        "underlined, or has a plus. Local training counts, rows that need pooled data do not. Values that are equal in "
        "the three decimals shown share a place, and each of them wins the site."
    ]


def _beside(methods: Sequence[Method]) -> list[str]:
    """Return what the averages beside the metric are."""
    return [f"{AVERAGES_ALSO[key]}: {_DEFINITIONS[key]}" for key in averages_beside(methods)]


def _seeds(seeds: Sequence[int]) -> str:
    named = ", ".join(map(str, seeds))
    if len(seeds) == 1:
        return f"One seed, {named}: a small difference can be chance; repeat it with other seeds."
    return f"Seeds {named}: mean ± standard deviation over them."


def _said(methods: Sequence[Method], of: Callable[[Results], str]) -> str:
    """Return what all runs have in common, or each variant with the methods that it holds for."""
    groups: dict[str, list[str]] = {}
    for method in methods:
        for text in dict.fromkeys(of(run) for run in method.results.values()):
            groups.setdefault(text, []).append(method.name)
    if len(groups) < 2:
        return next(iter(groups), "-")
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in groups.items())


def _reported_rounds(methods: Sequence[Method]) -> list[str]:
    """Return the round that each method reports; methods that report the same in all seeds share a sentence."""
    groups: dict[str, list[str]] = {}
    for method in methods:
        models = {str(run.get("model")) for run in method.results.values()}
        if models:
            text = models.pop() if len(models) == 1 else _by_seed(method, lambda run: str(run.get("model")))
            groups.setdefault(text, []).append(method.name)
    return [f"Reported round of {', '.join(names)}: {text}." for text, names in groups.items()]


def _by_seed(method: Method, of: Callable[[Results], str]) -> str:
    return "; ".join(f"{of(run)} (seed {seed})" for seed, run in method.results.items())


def _rounds(results: Results) -> str:
    extra = results.get("recipe", {}).get("extra_rounds", 0)
    return f"{results.get('rounds')} and {extra} extra" if extra else str(results.get("rounds"))


def _thresholds(methods: Sequence[Method]) -> list[str]:
    known = [m for m in methods if any(run.get("threshold") is not None for run in m.results.values())]
    return [f"Threshold gamma of {m.name} super: {_by_seed(m, lambda run: str(run.get('threshold')))}." for m in known]


def _pooling(methods: Sequence[Method]) -> list[str]:
    """Return which rows saw data beyond their own site: all sites' pooled, or those of a pretrained model."""
    names = ", ".join(method.name for method in methods if method.needs_pool)
    pretrained = ", ".join(m.name for m in methods if any(map(_is_pretrained, m.results.values())))
    notes = [f"{names}: {POOLING}."] if names else []
    notes += [f"{pretrained}: {PRETRAINED}."] if pretrained else []
    return notes or [f"{NO_POOLING.capitalize()}."]


def _is_pretrained(results: Results) -> bool:
    """Return whether a run used a pretrained model, to compare sites by or to start from."""
    recipe = results.get("recipe", {})
    compares = recipe.get("mixing") == "adafed" and recipe.get("statistics") == "pretrained"
    return compares or bool(recipe.get("start_from_pretrained"))


def _shared_batchnorm(methods: Sequence[Method]) -> list[str]:
    """Return a sentence where some methods share BatchNorm and others keep it at home."""
    homes = {
        m.name: run.get("recipe", {}).get("stays_home")
        for m in methods
        for run in m.results.values()
        if run.get("normalization") == "batch" and not m.needs_pool
    }
    shared = [name for name, home in homes.items() if home in SHARES_BATCHNORM]
    return [f"{', '.join(shared)}: {SHARED_BATCHNORM}."] if 0 < len(shared) < len(homes) else []


def _weights(methods: Sequence[Method]) -> list[str]:
    """Return how a model beside the super model is pooled where cases were excluded."""
    names = [m.name for m in methods if any("models" in run and _num_excluded(run) for run in m.results.values())]
    return [f"{name}: pooled means of its other models count the super model's cases." for name in names]


def _num_excluded(results: Results) -> int:
    return sum(results.get("excluded_cases", {}).values())


def _ahead(rows: Sequence[Row], num_seeds: int) -> list[str]:
    """Return which rows without a federation no federated row reaches in the client average."""
    whole = [row for row in rows if len(row.client_average) == num_seeds]
    means = {row.name: round(float(np.mean(row.client_average)), 3) for row in whole}
    best = max((row.name for row in whole if row.method.is_federated), key=means.__getitem__, default=None)
    ahead = [row for row in whole if best and not row.method.is_federated and means[row.name] > means[best]]
    return [
        f"No federated row reaches {row.name} in the client average."
        if row.method.needs_pool
        else f"Local training wins on average: {row.name} has {means[row.name]:.3f}, the best federated row, {best}, "
        f"{means[best]:.3f}."
        for row in ahead
    ]


def _shortcomings(methods: Sequence[Method]) -> list[str]:
    notes = []
    for method in methods:
        notes += [f"{method.name}, seed {seed}: no numbers: {why}" for seed, why in method.unfinished.items()]
        for seed, run in method.results.items():
            notes += [f"{method.name}, seed {seed}: INCOMPLETE: {reason}" for reason in run.get("reasons", [])]
    return notes
