"""Do amplitude normalisation and perturbation help on phantoms? The question behind HarmoFL's recommended preset.

    python bench/harmofl.py OUT [--development 101,102] [--seeds 111,112,113] [--rounds 20] [--processes 1]

All keep BatchNorm at home. On phantoms of the development seeds are tried:
each input normalisation with and without perturbation, with a constant and a falling learning rate; bands of the
amplitude on images that are scaled in three ways; and lengths of the perturbation, constant or falling with the rate.
The best row by validation, mean over sites and seeds, is then trained on phantoms of the other seeds, beside the best
one without both, which is FedBN, and beside today's recommended preset. Finished runs in OUT are reused.
"""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from runs import Alone, Choices, carry_out, validation_of

from silofl.federation.results import Results, read_results
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.report.result_tables import mean_and_deviation
from silofl_desk.studies.demo import SMALL

HARMOFL: Choices = {"name": "harmofl"}
# Frequencies of images of 64 x 64.
INPUTS: dict[str, Choices] = {
    "no amplitude": {"input": "none"},
    "mean intensity": {"amplitude": {"band": 0}},
    "radius 4": {"amplitude": {"band": 4}},
    "whole amplitude": {"amplitude": {"band": "full"}},
}
STEPS: dict[str, Choices] = {
    "plain step": {"step": "plain"},
    "perturbed step": {},
    **{
        f"alpha {alpha:g}{falling}": {"perturbation": {"alpha": alpha, "follows_rate": bool(falling)}}
        for falling in ("", ", falling")
        for alpha in (0.01, 0.05, 0.2)
    },
}
# A row: how images are scaled, what is done to their amplitude, the step, and the learning rate.
Name = tuple[str, str, str, str]
HALVES: list[Name] = [
    ("percentiles", *name)
    for name in itertools.product(
        ("no amplitude", "mean intensity", "whole amplitude"), ("plain step", "perturbed step"), ("constant", "poly")
    )
]
BANDS: list[Name] = list(itertools.product(("percentiles", "zscore", "dtype"), INPUTS, ("plain step",), ("constant",)))
LENGTHS: list[Name] = [
    *(
        ("percentiles", "no amplitude", f"alpha {alpha}", rate)
        for alpha in (0.01, 0.2)
        for rate in ("constant", "poly")
    ),
    *(("percentiles", "no amplitude", f"alpha {alpha}, falling", "poly") for alpha in (0.01, 0.05, 0.2)),
]
FEDBN, RECOMMENDED = ("no amplitude", "plain step"), ("percentiles", "mean intensity", "perturbed step", "constant")


def main() -> None:
    """Search, run what is not there yet, print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--development", default="101,102")
    parser.add_argument("--seeds", default="111,112,113")
    parser.add_argument("--rounds", type=int, default=SMALL["rounds"])
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    grid = list(dict.fromkeys([*HALVES, *BANDS, *LENGTHS]))
    development = done(options, grid, options.development)
    values = {name: [validation_of(run) for run in runs] for name, runs in development.items()}
    print(f"### Validation on phantoms of seeds {options.development}, mean over sites\n")
    print("| scaling | input | step | rate | mean | by seed |\n|---|---|---|---|---|---|")
    for name in grid:
        seeds = ", ".join(f"{value:.3f}" for value in values[name])
        print(f"| {' | '.join(name)} | {np.mean(values[name]):.3f} | {seeds} |")
    best, fedbn = best_of(values, grid), best_of(values, [name for name in grid if name[1:3] == FEDBN])
    rows = {"best on validation": best, "FedBN": fedbn, "recommended preset": RECOMMENDED}
    found = done(options, list(dict.fromkeys(rows.values())), options.seeds)
    print(f"\n### Test on phantoms of seeds {options.seeds}\n")
    sites = sorted(next(iter(found.values()))[0].sites)
    print(f"| | scaling | input | step | rate | mean of sites | {' | '.join(sites)} | validation |")
    print("|---" * (7 + len(sites)) + "|")
    for row, name in rows.items():
        runs = found[name]
        cells = [row, *name, mean_and_deviation([run.mean for run in runs])]
        cells += [mean_and_deviation([run.values[site] for run in runs]) for site in sites]
        cells.append(mean_and_deviation([validation_of(run) for run in runs]))
        print(f"| {' | '.join(cells)} |")


def done(options: argparse.Namespace, names: Sequence[Name], seeds: str) -> dict[Name, list[Results]]:
    """Return the results by seed of all names, those of phantoms and training."""
    found: dict[Name, list[Results]] = {name: [] for name in names}
    for seed in map(int, seeds.split(",")):
        data = options.out / f"data-{seed}"
        make_phantoms(data / "phantoms", seed)
        runs = {name: alone(name, seed, options.rounds) for name in names}
        carry_out(runs.values(), data, options.out, options.processes)
        for name, run in runs.items():
            found[name].append(read_results(options.out / run.folder))
    return found


def alone(name: Name, seed: int, rounds: int) -> Alone:
    """Return one run."""
    scaling, images, step, rate = name
    changes = SMALL | {"rounds": rounds, "seed": seed, "guard": False, "data.intensity": scaling}
    changes |= {"algorithm": HARMOFL | INPUTS[images] | STEPS[step], "training.schedule": rate}
    return Alone("phantoms", f"{rounds}rounds/{'-'.join(name).replace(' ', '_')}-seed{seed}", changes)


def best_of(values: Mapping[Name, Sequence[float]], names: Sequence[Name]) -> Name:
    """Return the name with the highest mean."""
    return max(names, key=lambda name: np.mean(values[name]))


if __name__ == "__main__":
    main()
