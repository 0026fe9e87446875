"""What may be compared: which of several runs has the best mean, and what a reader of the comparison must know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from silofl.report.sentences import BATCH_DEPENDENT, SHARED_BATCHNORM, SHARES_BATCHNORM, shares_patients, split_sentence

Results = Mapping[str, Any]


def compared_sites(results: Sequence[Results]) -> list[str]:
    """Return all sites of the runs."""
    return sorted({site for run in results for site in run.get("sites", {})})


def best_runs(results: Sequence[Results]) -> frozenset[int]:
    """Return the places of the runs with the best mean; several where the three decimals shown are equal.

    Only runs with a value at every site count, and none is the best where these differ in metric, split or test
    cases, or where there is only one.
    """
    full = _with_all_sites(results)
    if len(full) < 2 or _differences([results[i] for i in full]):
        return frozenset()
    best = max(round(results[i]["mean"], 3) for i in full)
    return frozenset(i for i in full if round(results[i]["mean"], 3) == best)


def are_comparable(results: Sequence[Results]) -> bool:
    """Return whether the values of these runs say the same thing: one metric, one way to split, the same test cases."""
    return not _differences(results)


def comparison_notes(results: Sequence[Results]) -> list[str]:
    """Return why runs are left out of the choice of the best, why there is no choice, and the runs' caveats."""
    full, sites = _with_all_sites(results), compared_sites(results)
    notes = [_left_out(i, results[i], sites) for i in range(len(results)) if i not in full]
    differences = _differences([results[i] for i in full])
    if len(full) < 2:
        notes.append("No mean is marked as the best: fewer than two runs have a value at every site.")
    elif differences:
        notes.append(f"No mean is marked as the best: the runs differ in {' and '.join(differences)}.")
    elif len(best_runs(results)) > 1:
        notes.append("The marked runs tie in the three decimals shown.")
    notes += _caveat(results, "normalization", "batch_stateless", BATCH_DEPENDENT)
    for unit in sorted({run["split_unit"] for run in results if shares_patients(run.get("split_unit"))}):
        notes += _caveat(results, "split_unit", unit, f"split {split_sentence(unit)}")
    notes += _shared_batchnorm(results)
    return [*notes, "Each row is one run with one seed; a small difference can be chance: repeat it with other seeds."]


def _with_all_sites(results: Sequence[Results]) -> list[int]:
    sites = compared_sites(results)
    return [i for i, run in enumerate(results) if sites and not _without_value(run, sites)]


def _without_value(results: Results, sites: Sequence[str]) -> list[str]:
    return [site for site in sites if results.get("sites", {}).get(site) is None]


def _left_out(place: int, results: Results, sites: Sequence[str]) -> str:
    without = _without_value(results, sites)
    where = ", ".join(without) if len(without) <= 4 else f"{len(without)} of {len(sites)} sites"
    return f"Run {place + 1} is left out of the choice of the best: it has no value at {where or 'any site'}."


def _caveat(results: Sequence[Results], key: str, value: str, sentence: str) -> list[str]:
    """Return a sentence for the runs in which a key has a value."""
    return _about([i for i, run in enumerate(results, start=1) if run.get(key) == value], sentence)


def _about(rows: Sequence[int], sentence: str) -> list[str]:
    """Return a sentence with the rows that it is about; nothing without any."""
    return [f"Run{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}: {sentence}."] if rows else []


def _shared_batchnorm(results: Sequence[Results]) -> list[str]:
    """Return a sentence where some runs share BatchNorm and others keep it at home."""
    homes = {
        i: run.get("recipe", {}).get("stays_home") for i, run in enumerate(results, start=1) if _has_batchnorm(run)
    }
    shared = [i for i, home in homes.items() if home in SHARES_BATCHNORM]
    return _about(shared, SHARED_BATCHNORM) if len(shared) < len(homes) else []


def _has_batchnorm(results: Results) -> bool:
    return results.get("normalization") == "batch"


def _differences(results: Sequence[Results]) -> list[str]:
    """Return in what the runs differ so that their means say different things."""
    differences = []
    if len({run.get("metric") for run in results}) > 1:
        differences.append("metric")
    if len({run.get("split_unit") for run in results}) > 1:
        differences.append("how patients are split")
    if len({_test_cases(run) for run in results}) > 1:
        differences.append("the number of test cases")
    return differences


def _test_cases(results: Results) -> tuple[tuple[str, int], ...]:
    """Return the test cases of each site, counted and excluded ones together."""
    cases, excluded = results.get("cases", {}), results.get("excluded_cases", {})
    return tuple((site, cases[site] + excluded.get(site, 0)) for site in sorted(cases))
