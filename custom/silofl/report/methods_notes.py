"""What must be known to read a table of methods: split, normalisation, rounds, choice of round, pooled data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from silofl.report.comparison import are_comparable
from silofl.report.methods import Method, Row, rows_of
from silofl.report.sentences import SHARED_BATCHNORM, SHARED_PATIENTS, normalization_label

Results = Mapping[str, Any]
POOLING = "these rows need the data of all sites pooled in one place, which only a simulation can do"
NO_POOLING = "none of these rows needs data to be pooled"


def is_comparable(methods: Sequence[Method]) -> bool:
    """Return whether the federated runs measure the same thing on the same test cases."""
    runs = [run for method in methods if method.is_federated for run in method.results.values()]
    return are_comparable([run for run in runs if None not in run.get("sites", {}).values()])


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
        _seeds(seeds),
        f"Split: {_said(methods, _split)}.",
        f"Normalization: {_said(methods, lambda run: normalization_label(run.get('normalization')))}.",
        f"Rounds: {_said(methods, _rounds)}.",
        *(
            f"Reported round of {m.name}: {_by_seed(m, lambda run: str(run.get('model')))}."
            for m in methods
            if m.results
        ),
        *_thresholds(methods),
        _pooling(methods),
        *_shared_batchnorm(methods),
        *_weights(methods),
        *_ahead(rows, len(seeds)),
        *_shortcomings(methods),
    ]


def _marking(methods: Sequence[Method]) -> list[str]:
    if not is_comparable(methods):
        return ["No value is marked as the best: the runs differ in metric, split or test cases."]
    return ["Bold, or with a star: the best value of the column among the federated rows."]


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


def _by_seed(method: Method, of: Callable[[Results], str]) -> str:
    return "; ".join(f"{of(run)} (seed {seed})" for seed, run in method.results.items())


def _split(results: Results) -> str:
    return f"by slices, {SHARED_PATIENTS}" if results.get("split_unit") == "slices" else "by patient"


def _rounds(results: Results) -> str:
    extra = results.get("recipe", {}).get("extra_rounds", 0)
    return f"{results.get('rounds')} and {extra} extra" if extra else str(results.get("rounds"))


def _thresholds(methods: Sequence[Method]) -> list[str]:
    known = [m for m in methods if any(run.get("threshold") is not None for run in m.results.values())]
    return [f"Threshold gamma of {m.name} super: {_by_seed(m, lambda run: str(run.get('threshold')))}." for m in known]


def _pooling(methods: Sequence[Method]) -> str:
    names = ", ".join(method.name for method in methods if method.needs_pool)
    return f"{names}: {POOLING}." if names else f"{NO_POOLING.capitalize()}."


def _shared_batchnorm(methods: Sequence[Method]) -> list[str]:
    """Return a sentence where some methods share BatchNorm and others keep it at home."""
    homes = {
        m.name: run.get("recipe", {}).get("stays_home")
        for m in methods
        for run in m.results.values()
        if run.get("normalization") == "batch" and not m.needs_pool
    }
    shared = [name for name, home in homes.items() if home == "nothing"]
    return [f"{', '.join(shared)}: {SHARED_BATCHNORM}."] if 0 < len(shared) < len(homes) else []


def _weights(methods: Sequence[Method]) -> list[str]:
    """Return how a model beside the super model is pooled where cases were excluded."""
    names = [m.name for m in methods if any("models" in run and _num_excluded(run) for run in m.results.values())]
    return [f"{name}: pooled means of its other models count the super model's cases." for name in names]


def _num_excluded(results: Results) -> int:
    return sum(results.get("excluded_cases", {}).values())


def _ahead(rows: Sequence[Row], num_seeds: int) -> list[str]:
    """Return which rows without a federation no federated row reaches in the client average."""
    means = {
        i: round(float(np.mean(row.cells[-2])), 3) for i, row in enumerate(rows) if len(row.cells[-2]) == num_seeds
    }
    federated = [mean for i, mean in means.items() if rows[i].method.is_federated]
    ahead = [i for i, mean in means.items() if federated and not rows[i].method.is_federated and mean > max(federated)]
    return [f"No federated row reaches {rows[i].name} in the client average." for i in ahead]


def _shortcomings(methods: Sequence[Method]) -> list[str]:
    notes = []
    for method in methods:
        notes += [f"{method.name}, seed {seed}: no numbers: {why}" for seed, why in method.unfinished.items()]
        for seed, run in method.results.items():
            notes += [f"{method.name}, seed {seed}: INCOMPLETE: {reason}" for reason in run.get("reasons", [])]
    return notes
