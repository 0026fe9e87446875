"""FedSM beside FedAvg at its own best on phantoms that no choice was made on: the phantoms' table in the README.

    python bench/fedsm.py OUT [--seeds 101,102,103] [--rounds 24]

FedAvg's normalisation and learning rate are chosen by validation on phantoms of seed 0. Then every method runs on the
phantoms of each other seed, its training seeded alike. Finished runs in OUT are reused.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from silofl.data.phantoms import make_phantoms
from silofl.report.methods import Method, markdown, methods_table
from silofl.report.methods_notes import notes_of

JOBS = Path(__file__).parents[1] / "jobs"
DEVELOPMENT = 0
SEARCH = (("model", "normalization", ("batch", "instance", "group")), ("training", "learning_rate", (0.003, 0.001)))
Choices = dict[str, dict[str, Any]]


def main() -> None:
    """Choose FedAvg's settings, run what is not there yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="101,102,103")
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()
    seeds, rounds = [int(seed) for seed in options.seeds.split(",")], options.rounds
    tuned = tuned_fedavg(options.out, rounds)
    runs: list[tuple[str, str, Choices]] = [
        ("fedsm", "fedsm_phantoms", {}),
        (f"FedAvg at its best ({_words(tuned)})", "fedavg_phantoms", tuned),
    ]
    methods = [
        Method(name, {seed: run(options.out, job, seed, rounds, choices) for seed in seeds})
        for name, job, choices in runs
    ]
    print(markdown(methods_table(methods, len(seeds)), notes_of(methods, seeds)))


def tuned_fedavg(out: Path, rounds: int) -> Choices:
    """Return the choices with which FedAvg validates best, one after the other."""
    chosen: Choices = {}
    for section, key, values in SEARCH:
        scores = {}
        for value in values:
            choices = deepcopy(chosen)
            choices.setdefault(section, {})[key] = value
            result = run(out, "fedavg_phantoms", DEVELOPMENT, rounds, choices)
            scores[value] = float(np.mean([score["value"] for score in result["validation"].values()]))
        print("FedAvg, validation by", f"{section}.{key}:", {value: round(score, 4) for value, score in scores.items()})
        chosen.setdefault(section, {})[key] = max(scores, key=scores.get)
    return chosen


def run(out: Path, job: str, seed: int, rounds: int, choices: Choices) -> dict[str, Any]:
    """Return the result of one run on the phantoms of a seed, from an earlier call where there is one."""
    study = yaml.safe_load((JOBS / job / "app" / "config" / "study.yaml").read_text())
    choices = {section: _unlike(study[section], values) for section, values in choices.items()}
    name = "-".join([job, *(f"{v}" for part in choices.values() for v in part.values()), f"{seed}", f"{rounds}rounds"])
    folder = out / "runs" / name
    if not (folder / "results.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        print("running", name, flush=True)
        limits = ("--rounds", str(rounds), "--seed", str(seed))
        _silofl("simulate", str(_job(out, job, name, study, choices)), *_data(out, seed), "--out", str(folder), *limits)
    return json.loads((folder / "results.json").read_text())


def _unlike(settings: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the job says anyway, so that the same study has the same name and runs once."""
    return {key: value for key, value in values.items() if settings.get(key) != value}


def _job(out: Path, job: str, name: str, study: dict[str, Any], choices: Choices) -> Path:
    folder = out / "jobs" / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(JOBS / job, folder)
    for section, values in choices.items():
        study[section] = values if section == "algorithm" and values else study[section] | values
    (folder / "app" / "config" / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    return folder


def _data(out: Path, seed: int) -> tuple[str, str]:
    folder = out / f"phantoms-{seed}"
    make_phantoms(folder, seed)
    return "--data", str(folder)


def _words(choices: Choices) -> str:
    return ", ".join(f"{value}" for part in choices.values() for value in part.values())


def _silofl(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "silofl", *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
