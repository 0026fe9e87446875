"""What joining gives each hospital, on six sets: for docs/joining.md.

    python bench/joining.py DATA OUT [--processes 16] [--sets nuclei,spine] [--seeds 0,1,2]

DATA holds one folder a set, as ``silofl import`` and the demonstration make them: ``nuclei``, ``spine``, ``activity``,
``mednist``, ``pneumonia`` and ``phantoms``. Every method runs with the mean of the last quarter and the guard, both
with a falling and with a constant learning rate. Alone is the own model with its decision bias. Each run takes one
process; finished ones in OUT are used again. The table is printed, and written as OUT/joining.md.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runs import BATCH, SETS, TOO_SMALL, Alone, carry_out, for_selector, is_finished, validation_of

from silofl.algorithms.gain import LEVEL, count_verdicts
from silofl.federation.ledger import read_ledger
from silofl.federation.results import Results, read_results
from silofl.report.comparison import count_below_local
from silofl.report.tables import MISSING
from silofl.training.metrics import mean_of_known

METHODS: dict[str, dict[str, Any]] = {
    "local": {"algorithm": {"name": "local"}},
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "fedbn": {"algorithm": {"name": "fedbn"}, **BATCH},
    "harmofl": {"algorithm": {"name": "harmofl"}, **BATCH},
    "adafed": {"algorithm": {"name": "adafed"}, **BATCH},
    "fedsm": {"algorithm": {"name": "fedsm"}},
}
SCHEDULES = ("constant", "poly")


@dataclass(frozen=True)
class Wanted:
    """One run."""

    set: str
    method: str
    schedule: str
    seed: int

    @property
    def name(self) -> str:
        """The run's folder."""
        return f"{self.set}/{self.method}-{self.schedule}/seed{self.seed}"

    def alone(self, device: str, rounds: int | None) -> Alone:
        """Return how it is carried out, with other rounds than the job's where they are given."""
        changes = METHODS[self.method] | {"training.schedule": self.schedule, "algorithm.average_last": 0.25}
        changes |= for_selector(self.set) if self.method == "fedsm" else {}
        # The jobs of the papers' settings have it off.
        changes |= {"seed": self.seed, "device": device, "guard": True} | ({"rounds": rounds} if rounds else {})
        return Alone(self.set, self.name, changes)


def main() -> None:
    """Run what is not there yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, help="instead of each job's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    options = parser.parse_args()
    sets, methods, schedules = (text.split(",") for text in (options.sets, options.methods, options.schedules))
    every = itertools.product(map(int, options.seeds.split(",")), sets, methods, schedules)
    wanted = [Wanted(one, method, schedule, seed) for seed, one, method, schedule in every]
    wanted = [one for one in wanted if one.method != "fedsm" or one.set not in TOO_SMALL]
    runs = [one.alone(options.device, options.rounds) for one in wanted]
    carry_out(runs, options.data, options.out, options.processes)
    text = page(wanted, options.out)
    (options.out / "joining.md").write_text(text)
    print(text)


@dataclass(frozen=True)
class Row:
    """One method with one schedule on one set, over the seeds.

    Attributes:
        method: Its name.
        schedule: Of the learning rate.
        results: Of each seed.
        swings: Of each seed, the mean over sites of the deviation of validation over the last quarter of rounds.
    """

    method: str
    schedule: str
    results: tuple[Results, ...]
    swings: tuple[float | None, ...]

    @property
    def validation(self) -> list[float]:
        """Seed by seed, the mean over sites of the validation of the algorithm's own model."""
        return [validation_of(one) for one in self.results]

    @property
    def federated(self) -> list[float]:
        """Seed by seed, the mean over sites of the test value of the algorithm's own model."""
        return [one.mean for one in self.results]

    @property
    def chosen(self) -> list[float]:
        """The same of the models that the sites chose."""
        sites = [one.joining.values() for one in self.results if one.joining]
        return [mean_of_known(site.test["chosen"] for site in of_run) for of_run in sites]

    @property
    def local(self) -> list[float]:
        """The same of the models that they trained alone beside the algorithm's."""
        sites = [one.joining.values() for one in self.results if one.joining]
        return [mean_of_known(site.test["local"] for site in of_run) for of_run in sites]

    @property
    def verdicts(self) -> str:
        """How many sites have each verdict, over all seeds."""
        joined = (one for run in self.results for one in (run.joining or {}).values())
        return ", ".join(count_verdicts(one.verdict for one in joined)) or MISSING


def rows_of(wanted: Sequence[Wanted], out: Path, name: str) -> list[Row]:
    """Return the finished runs of a set by method and schedule."""
    found: dict[tuple[str, str], list[Path]] = {}
    for one in wanted:
        if one.set == name and is_finished(out / one.name):
            found.setdefault((one.method, one.schedule), []).append(out / one.name)
    return [Row(*key, tuple(map(read_results, runs)), tuple(map(swing, runs))) for key, runs in found.items()]


def swing(folder: Path) -> float | None:
    """Return the mean over sites of the deviation of validation over the last quarter of a run's rounds."""
    ledger = read_ledger(folder) or []
    last = ledger[-max(2, len(ledger) // 4) :]
    sites = {site for record in last for site in record.validated}
    deviations = [np.std([r.validated[site] for r in last if site in r.validated]) for site in sites]
    return float(np.mean(deviations)) if deviations else None


def page(wanted: Sequence[Wanted], out: Path) -> str:
    """Return the tables of all sets in Markdown."""
    parts = []
    for name in dict.fromkeys(one.set for one in wanted):
        if rows := rows_of(wanted, out, name):
            parts += [f"### {name}", "", _facts(rows[0].results[0], rows), "", *_table(rows), ""]
    return "\n".join(parts)


def _facts(results: Results, rows: Sequence[Row]) -> str:
    seeds = max(len(row.results) for row in rows)
    sites = sum(value is not None for value in results.sites.values())
    return f"{results.metric}, {sites} sites, {results.rounds} rounds, {seeds} seeds, split unit: {results.split_unit}."


def _table(rows: Sequence[Row]) -> list[str]:
    heads = ("method", "rate", "validation", "federated", "kept", "alone", "verdicts, sites x seeds")
    heads += ("below local, p < 0.025", "after Holm", "swing")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    # One family for a set: all methods, schedules, sites and seeds.
    below = count_below_local({(row.method, row.schedule): row.results for row in rows})
    for row in rows:
        found = below[row.method, row.schedule]
        cells = [row.method, row.schedule, *map(_spread, (row.validation, row.federated, row.chosen, row.local))]
        tested = f"{found.before} of {found.tests} (chance: {LEVEL * found.tests:.1f})"
        cells += [row.verdicts, *((tested, str(found.after)) if found.tests else ("-", "-")), _spread(row.swings)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{np.mean(known):.3f}" + (f" +- {np.std(known, ddof=1):.3f}" if len(known) > 1 else "")


if __name__ == "__main__":
    main()
