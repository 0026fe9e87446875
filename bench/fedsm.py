"""FedSM beside FedAvg at its own best on phantoms that no choice was made on: the phantoms' table in the README.

    python bench/fedsm.py OUT [--seeds 101,102,103] [--rounds 24]

FedAvg's normalisation and learning rate are chosen by validation on phantoms of seed 0. Then every method runs on the
phantoms of each other seed, its training seeded alike. Finished runs in OUT are reused.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from runs import Choices, Run, best_choices, unlike, words

from silofl.data.phantoms import make_phantoms
from silofl.federation.results import Results
from silofl.report.comparison import Method
from silofl.report.methods import methods_notes, methods_table
from silofl.report.tables import markdown

DEVELOPMENT = 0
SEARCH = (("model", "normalization", ("batch", "instance", "group")), ("training", "learning_rate", (0.003, 0.001)))


def main() -> None:
    """Choose FedAvg's settings, run what is not there yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="101,102,103")
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()
    seeds, rounds = [int(seed) for seed in options.seeds.split(",")], options.rounds
    tuned = best_choices(SEARCH, lambda choices: run(options.out, "fedavg_phantoms", DEVELOPMENT, rounds, choices))
    runs: list[tuple[str, str, Choices]] = [
        ("fedsm", "fedsm_phantoms", {}),
        (f"FedAvg at its best ({', '.join(words(tuned))})", "fedavg_phantoms", tuned),
    ]
    methods = [
        Method(name, {seed: run(options.out, job, seed, rounds, choices) for seed in seeds})
        for name, job, choices in runs
    ]
    print(markdown(methods_table(methods, len(seeds)), methods_notes(methods, seeds)))


def run(out: Path, job: str, seed: int, rounds: int, choices: Choices) -> Results:
    """Return the result of one run on the phantoms of a seed, from an earlier call where there is one."""
    choices = unlike(job, choices)
    name = "-".join([job, *words(choices), f"{seed}", f"{rounds}rounds"])
    data = make_phantoms(out / f"phantoms-{seed}", seed)
    return Run(name, job, choices, seed, rounds).result(out, data)


if __name__ == "__main__":
    main()
