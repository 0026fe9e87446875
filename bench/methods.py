"""All methods on five sets of real data, each tuned by the same search: the table of bench/methods.md.

    python bench/methods.py DATA OUT [--sets mednist,pneumonia] [--rounds 40] [--seeds 0,1,2] [--processes 2]
    python bench/methods.py DATA OUT --estimate

DATA holds one folder a set, as ``recipes/`` makes them: ``nuclei``, ``spine``, ``activity``, ``mednist``,
``pneumonia``. The search is the same for all: three learning rates, and those beyond while the best is at an edge, seed
0, half the rounds, the best by the mean over sites of the validation. With it each method is trained with all seeds; a
rate with which one of them fails gives way to the next best.
Every other constant is that of the method's recommended preset; no baseline comparison, no average, a constant rate;
what refuses Adam takes SGD with momentum 0.9 (APFL and pFedMe, which refuse that too, without), and rates that suit it.
The table is printed, and written as OUT/methods.md. With --estimate each method trains for two rounds, and what is
printed are the hours of one core that search and table take at that pace.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from runs import (
    BATCH,
    TOO_SMALL,
    Alone,
    Choices,
    beyond,
    carry_out,
    for_selector,
    read_complete,
    validation_of,
    validation_to_choose,
)
from verdicts import compare

from silofl.federation.ledger import read_ledger
from silofl.federation.results import Results
from silofl_desk.report.result_tables import mean_and_deviation
from silofl_desk.studies.comparisons.methods import find_method_algorithm

# Set -> learning rates to try: those around the job's own; the studies that learn by plain SGD have far to go.
RATES = {
    "nuclei": (0.0003, 0.001, 0.003),
    "spine": (0.001, 0.003, 0.01),
    "activity": (0.01, 0.03, 0.1),
    "mednist": (0.01, 0.03, 0.1),
    "pneumonia": (0.01, 0.03, 0.1),
}
# Sets whose job has Adam -> learning rates of what refuses it and takes SGD.
RATES_OF_SGD = dict.fromkeys(("nuclei", "spine"), (0.01, 0.03, 0.1))
OF_SGD: dict[str, Choices] = {
    "fednova": {},
    "apfl": {"training.momentum": 0.0},
    "scaffold": {"algorithm.scaffold.has_momentum": True},
    "pfedme": {"training.momentum": 0.0},
}
BASELINE = "local"
SHARED = ("fedavg", "fedprox", "scaffold", "fednova", "fedopt", "moon")
PERSONAL = ("fedper", "fedrep", "finetuning", "ditto", "apfl", "perfedavg", "pfedme", "softpull", "fedsm")
OF_BATCHNORM = ("fedbn", "harmofl", "f-adafed")
# One epoch for the head and one for the body: as many epochs in all come in half the rounds.
TWO_EPOCHS = ("fedrep",)
# Half of its rounds are those in which every site goes on alone; its presets have them on top.
TWO_HALVES = ("finetuning",)
METHODS = (BASELINE, *SHARED, *PERSONAL, *OF_BATCHNORM)
# Rounds by which hours are estimated.
TRIED = 2


@dataclass(frozen=True)
class Wanted:
    """One run: a method with a learning rate.

    Attributes:
        set: Key of `RATES`.
        method: One of `METHODS`.
        rate: The learning rate.
        seed: Of the training.
        rounds: Of the run.
    """

    set: str
    method: str
    rate: float
    seed: int
    rounds: int

    @property
    def folder(self) -> str:
        """The run's folder."""
        return f"{self.set}/{self.method}/rate{self.rate:g}-{self.rounds}rounds-seed{self.seed}"

    def alone(self, device: str) -> Alone:
        """Return how it is carried out."""
        normalization = (
            BATCH if self.method in OF_BATCHNORM else for_selector(self.set) if self.method == "fedsm" else {}
        )
        changes: Choices = {
            "algorithm": find_method_algorithm(self.method),
            "training.learning_rate": self.rate,
            "baseline_comparison": False,
        }
        changes |= {"seed": self.seed, "rounds": self.rounds, "device": device} | normalization
        if takes_sgd(self.set, self.method):
            changes |= {"training.optimizer": "sgd", "training.momentum": 0.9} | OF_SGD[self.method]
        if self.method in TWO_EPOCHS:
            changes |= {"rounds": max(1, self.rounds // 2), "training.local_epochs": 2}
        if self.method in TWO_HALVES:
            half = self.rounds // 2
            changes |= {"rounds": self.rounds - half, "algorithm.extra_rounds": half}
        return Alone(self.set, self.folder, changes)


def takes_sgd(name: str, method: str) -> bool:
    """Return whether a method cannot take the optimiser of a set's job."""
    return name in RATES_OF_SGD and method in OF_SGD


def main() -> None:
    """Search, run what is not there yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", default=",".join(RATES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--estimate", action="store_true")
    options = parser.parse_args()
    seeds = tuple(map(int, options.seeds.split(",")))
    sets, parts = options.sets.split(","), []
    for name in sets:
        methods = [one for one in options.methods.split(",") if one != "fedsm" or name not in TOO_SMALL]
        if options.estimate:
            print(_estimate(name, methods, len(seeds), options))
            continue
        ranked = {method: _search(name, method, options) for method in methods}
        parts.append(_page(name, _train(name, ranked, seeds, options), options.out))
        (options.out / "methods.md").write_text("\n\n".join(parts) + "\n")
    print("\n\n".join(parts))


def _estimate(name: str, methods: Sequence[str], seeds: int, options: argparse.Namespace) -> str:
    """Say how long search and table of a set take on one core, and which methods take most of it."""
    rounds = len(RATES[name]) * max(1, options.rounds // 2) + seeds * options.rounds
    tried = {method: Wanted(name, method, min(_rates(name, method)), 0, TRIED) for method in methods}
    _do(options, list(tried.values()))
    hours = {method: _seconds(options.out / one.folder) / TRIED * rounds / 3600 for method, one in tried.items()}
    longest = sorted(hours, key=lambda method: -hours[method])[:3]
    return f"{name}: {sum(hours.values()):.1f} hours; " + ", ".join(f"{one} {hours[one]:.1f}" for one in longest)


def _seconds(folder: Path) -> float:
    """Return how long the rounds of a finished run took."""
    return sum(record.seconds for record in read_ledger(folder) or ())


def _train(
    name: str, ranked: dict[str, list[float]], seeds: Sequence[int], options: argparse.Namespace
) -> dict[str, list[Wanted]]:
    """Train each method with its best rate that no seed fails with, and return its runs; with its last where all do."""
    final: dict[str, list[Wanted]] = {}
    left = ranked
    while left:
        final |= {
            method: [Wanted(name, method, rates[0], seed, options.rounds) for seed in seeds]
            for method, rates in left.items()
        }
        _do(options, [one for method in left for one in final[method]])
        has_failed = {
            method: None in [read_complete(options.out / one.folder) for one in final[method]] for method in left
        }
        left = {method: rates[1:] for method, rates in left.items() if has_failed[method] and rates[1:]}
    return final


def _search(name: str, method: str, options: argparse.Namespace) -> list[float]:
    """Return the rates with a validation, the best first, by seed 0 and half the rounds; it is at no edge, if possible.

    Where none has any, the first of those tried.
    """
    rates = left = _rates(name, method)
    while left:
        tried = [Wanted(name, method, rate, 0, max(1, options.rounds // 2)) for rate in rates]
        _do(options, tried)
        found = {one.rate: _validation(options.out, one) for one in tried}
        ranked = sorted(rates, key=lambda rate: -found[rate])
        left = tuple(beyond(ranked[0], rates))
        rates += left
    return [rate for rate in ranked if found[rate] >= 0] or ranked[:1]


def _rates(name: str, method: str) -> tuple[float, ...]:
    return RATES_OF_SGD[name] if takes_sgd(name, method) else RATES[name]


def _do(options: argparse.Namespace, wanted: Sequence[Wanted]) -> None:
    carry_out([one.alone(options.device) for one in wanted], options.data, options.out, options.processes)


def _validation(out: Path, wanted: Wanted) -> float:
    """Return a run's validation; one that failed, as with a rate that it does not bear, is below all others."""
    results = read_complete(out / wanted.folder)
    return -1.0 if results is None else validation_to_choose(results)


@dataclass(frozen=True)
class Row:
    """A method over the seeds.

    Attributes:
        method: Its name.
        rate: The learning rate that the search chose.
        results: Of each seed that finished.
        failed: How many seeds did not.
    """

    method: str
    rate: float
    results: tuple[Results, ...]
    failed: int

    @property
    def means(self) -> list[float]:
        """Seed by seed, the mean over sites of the test value."""
        return [one.mean for one in self.results]

    @property
    def lowest(self) -> list[float]:
        """Seed by seed, the value of the site that has the lowest."""
        return [min(value for value in one.values.values() if value is not None) for one in self.results]


def _page(name: str, final: dict[str, list[Wanted]], out: Path) -> str:
    """Return the table of a set in Markdown."""
    rows = []
    for method, runs in final.items():
        done = tuple(filter(None, (read_complete(out / one.folder) for one in runs)))
        rows.append(Row(method, runs[0].rate, done, len(runs) - len(done)))
    facts = next(row.results[0] for row in rows if row.results)
    # As asked for: of two epochs a round, or with extra rounds, a study has half.
    rounds = next(iter(final.values()))[0].rounds
    rates = ", ".join(f"{rate:g}" for rate in RATES[name])
    sites = sum(value is not None for value in facts.values.values())
    lines = [
        f"### {name}",
        "",
        f"{facts.metric}, {sites} sites, {rounds} rounds, {max(len(row.results) for row in rows)} seeds, "
        f"split unit: {facts.split_unit}; rates tried: {rates} and beyond a best edge, each for {rounds // 2} "
        f"rounds{_of_sgd(name)}.",
        "",
        "| method | rate | validation | test, mean of sites | lowest site | against local training |",
        "|---|---|---|---|---|---|",
    ]
    baseline = next((row for row in rows if row.method == BASELINE), None)
    for row in sorted(rows, key=lambda row: -np.mean(row.means) if row.means else np.inf):
        cells = [row.method, f"{row.rate:g}", mean_and_deviation([validation_of(one) for one in row.results])]
        cells += [mean_and_deviation(row.means), mean_and_deviation(row.lowest), _against(row, baseline)]
        cells[0] += f" ({row.failed} failed)" if row.failed else ""
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _of_sgd(name: str) -> str:
    """Say which methods of a set's table were tried otherwise; nothing where its job takes SGD."""
    if name not in RATES_OF_SGD:
        return ""
    return (
        f"; with SGD {', '.join(f'{rate:g}' for rate in RATES_OF_SGD[name])} for {', '.join(OF_SGD)}, which refuse Adam"
    )


def _against(row: Row, baseline: Row | None) -> str:
    """Return how far a method lies from local training, and the 95 % interval of a paired t test over the seeds."""
    if baseline is None or row is baseline or row.failed or baseline.failed or len(row.means) < 2:
        return "-"
    found = compare([a - b for a, b in zip(row.means, baseline.means, strict=True)])
    return f"{found.mean:+.3f} [{found.low:.3f}, {found.high:.3f}]"


if __name__ == "__main__":
    main()
