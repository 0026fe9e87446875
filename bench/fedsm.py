"""FedSM against a tuned FedAvg on phantoms that no setting was chosen on: the phantoms' table in bench/fedsm.md.

    python bench/fedsm.py OUT [--seeds 101,102,103] [--rounds 24]

FedAvg's normalisation and learning rate are chosen by validation on phantoms of seed 0. Then every method runs on the
phantoms of each other seed, its training seeded alike. Finished runs in OUT are reused.
"""

import argparse
from pathlib import Path

from runs import Choices, best_choices, compared, name_of

from silofl.data.phantoms import make_phantoms
from silofl.federation.results import Results
from silofl.report.tables import markdown_table
from silofl.studies.method_rows import Method
from silofl.studies.method_table import methods_notes, methods_table

DEVELOPMENT = 0
JOB = "fedsm_phantoms"
FEDAVG: Choices = {"algorithm": {"name": "fedavg"}}
SEARCH = (("model.normalization", ("batch", "instance", "group")), ("training.learning_rate", (0.003, 0.001)))


def main() -> None:
    """Choose FedAvg's settings, run what is not there yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="101,102,103")
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()
    seeds, rounds = [int(seed) for seed in options.seeds.split(",")], options.rounds
    tuned = best_choices(SEARCH, lambda choices: run(options.out, DEVELOPMENT, rounds, choices)[1])
    results = {seed: run(options.out, seed, rounds, tuned) for seed in seeds}
    methods = [
        Method("fedsm", {seed: own for seed, (own, _) in results.items()}),
        Method(f"FedAvg at its best ({name_of(tuned)})", {seed: fedavg for seed, (_, fedavg) in results.items()}),
    ]
    print(markdown_table(methods_table(methods, len(seeds)), methods_notes(methods, seeds)))


def run(out: Path, seed: int, rounds: int, choices: Choices) -> tuple[Results, Results]:
    """Return the results of FedSM and of FedAvg with its choices on the phantoms of a seed."""
    data, row = make_phantoms(out / f"phantoms-{seed}", seed), f"fedavg-{name_of(choices)}"
    found = compared(JOB, data, out / f"{rounds}rounds-{seed}", {row: FEDAVG | choices}, [seed], rounds)
    return found[JOB][0], found[row][0]


if __name__ == "__main__":
    main()
