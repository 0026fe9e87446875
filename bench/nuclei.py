"""HarmoFL and its parts against FedAvg and FedBN on real nuclei: the first table of bench/harmofl.md.

    python bench/nuclei.py SOURCE OUT [--rounds 40]

SOURCE is the nuclei set in the form that ``recipes/nuclei_dsb2018.py`` reads. Every run is a row of ``silofl
compare`` of ``jobs/harmofl_nuclei`` with other choices in its study; finished runs in OUT are reused.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from runs import Choices, best_choices, compared, name_of, run_recipe

from silofl.federation.results import Results
from silofl_desk.report.result_tables import mean_and_deviation

JOB = "harmofl_nuclei"
NORMALIZATION = "model.normalization"
SEEDS = (0, 1, 2)
PERTURBED = {"step": "harmofl"}
WHOLE_AMPLITUDE = {"input": "harmofl", "amplitude": {"band": "full"}}


@dataclass(frozen=True)
class Method:
    """A row of the table: the choices in the study, and the seeds."""

    name: str
    algorithm: dict[str, Any]
    normalization: str = "batch"
    seeds: tuple[int, ...] = SEEDS[:1]
    changes: Choices = field(default_factory=dict)


METHODS = (
    Method("FedAvg", {"name": "fedavg"}, seeds=SEEDS),
    Method("FedBN", {"name": "fedbn"}, seeds=SEEDS),
    Method("HarmoFL recommended", {"name": "harmofl", "preset": "recommended"}, seeds=SEEDS),
    Method("HarmoFL paper", {"name": "harmofl", "preset": "paper"}, seeds=SEEDS),
    Method("HarmoFL reference", {"name": "harmofl", "preset": "reference"}),
    Method("Local training", {"name": "local"}),
    Method("AmpNorm full alone", {"name": "fedavg", **WHOLE_AMPLITUDE}),
    Method("perturbation alone", {"name": "fedavg", **PERTURBED}),
    Method("FedAvg", {"name": "fedavg"}, "batch_stateless"),
    Method("HarmoFL paper", {"name": "harmofl", "preset": "paper"}, "batch_stateless"),
    Method("FedBN, AmpNorm full and perturbation", {"name": "fedbn", **WHOLE_AMPLITUDE, **PERTURBED}),
    Method("FedBN, AmpNorm band 0 alone", {"name": "fedbn", "input": "harmofl"}),
    Method("HarmoFL reference", {"name": "harmofl", "preset": "reference"}, "batch_stateless"),
)

# FedAvg at its own best: one choice after the other, each by the mean validation Dice of seed 0.
SEARCH = (
    ("model.normalization", ("batch", "batch_stateless", "instance", "group")),
    ("data.intensity", ("dtype", "percentiles", "zscore")),
    ("training.learning_rate", (0.001, 0.003, 0.0003)),
)


def main() -> None:
    """Import the data, run what is not there yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    data = options.out / "data"
    if not data.exists():
        run_recipe("nuclei_dsb2018", options.source, data)
    methods = (METHODS[0], tuned_fedavg(data, options), *METHODS[1:])
    print(table([(method, run(method, data, options)) for method in methods]))


def tuned_fedavg(data: Path, options: argparse.Namespace) -> Method:
    """Return FedAvg with the normalisation, input scaling and learning rate that validate best."""
    chosen = best_choices(SEARCH, lambda choices: run(_fedavg(choices, SEEDS[:1]), data, options)[0])
    return _fedavg(chosen, SEEDS)


def _fedavg(changes: Choices, seeds: tuple[int, ...]) -> Method:
    others = {key: value for key, value in changes.items() if key != NORMALIZATION}
    normalization = str(changes.get(NORMALIZATION, "batch"))
    return Method("FedAvg at its best", {"name": "fedavg"}, normalization, seeds, others)


def run(method: Method, data: Path, options: argparse.Namespace) -> list[Results]:
    """Return a method's results by seed, from an earlier call where they are finished."""
    choices = {"algorithm": method.algorithm, NORMALIZATION: method.normalization, **method.changes}
    row, out = name_of(choices), options.out / f"{options.rounds}rounds"
    return compared(JOB, data, out, {row: choices}, method.seeds, options.rounds)[row]


def table(rows: list[tuple[Method, list[Results]]]) -> str:
    """Return the table in Markdown: mean over seeds, deviation over seeds where there are several."""
    lines = ["| method | BatchNorm | seeds | Dice, mean of sites | spread over sites | pooled | lowest site |"]
    lines.append("|---|---|---|---|---|---|---|")
    for method, results in rows:
        site_means = {site: np.mean([r.values[site] for r in results]) for site in results[0].sites}
        lowest = min(site_means, key=site_means.get)
        cells = [method.name, _batchnorm(method, results[0]), str(len(results))]
        cells += [mean_and_deviation([getattr(r, key) for r in results]) for key in ("mean", "spread", "pooled")]
        cells.append(f"{site_means[lowest]:.3f} ({lowest})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _batchnorm(method: Method, result: Results) -> str:
    others = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in method.changes.items())
    kinds = {
        "batch": {"nothing": "shared", "batchnorm": "local", "everything": "local"}[result.recipe.get("stays_home")]
    }
    kind = kinds.get(method.normalization, method.normalization.removeprefix("batch_"))
    return f"{kind} ({others})" if others else kind


if __name__ == "__main__":
    main()
