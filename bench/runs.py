"""A bench's runs: ``silofl simulate`` of a job with other choices in its study.yaml; finished ones are reused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from silofl.federation.results import Results, read_results
from silofl.studies.simulation import guard_batchnorm
from silofl.study import load_study

JOBS = Path(__file__).parents[1] / "jobs"
STUDY = Path("app", "config", "study.yaml")
# Section of the study -> setting -> value.
Choices = dict[str, dict[str, Any]]
# Section, setting and the values to try.
Search = tuple[tuple[str, str, tuple[Any, ...]], ...]


@dataclass(frozen=True)
class Run:
    """One run of a bench.

    Attributes:
        name: What it is called in the bench's folder; the same name is the same run.
        job: The job in ``jobs`` that runs.
        choices: Instead of the job's own: a whole algorithm, and single settings of the study's other sections.
        seed: Of the training.
        rounds: How many.
    """

    name: str
    job: str
    choices: Choices
    seed: int
    rounds: int

    def result(self, out: Path, data: Path) -> Results:
        """Return the run's result on the sites' data, from an earlier call into the same folder where there is one."""
        folder = out / "runs" / self.name
        if read_results(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
            print("running", self.name, flush=True)
            limits = ("--rounds", str(self.rounds), "--seed", str(self.seed))
            job = self._write_job(out / "jobs" / self.name)
            silofl("simulate", str(job), "--data", str(data), "--out", str(folder), *limits)
        return read_results(folder)

    def _write_job(self, folder: Path) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(JOBS / self.job, folder)
        study = study_of(self.job)
        for section, values in self.choices.items():
            study[section] = values if section == "algorithm" else study[section] | values
        (folder / STUDY).write_text(yaml.safe_dump(study, sort_keys=False))
        guard_batchnorm(folder, load_study(folder / STUDY).recipe.stays_home == "batchnorm")
        return folder


def study_of(job: str) -> dict[str, Any]:
    """Return the study of a job in ``jobs``."""
    return yaml.safe_load((JOBS / job / STUDY).read_text())


def unlike(job: str, choices: Choices) -> Choices:
    """Leave out what a job says anyway, so that the same study has the same name and runs once."""
    study = study_of(job)
    return {
        section: {key: value for key, value in values.items() if study[section].get(key) != value}
        for section, values in choices.items()
    }


def best_choices(search: Search, run: Callable[[Choices], Results]) -> Choices:
    """Return the choices with which FedAvg validates best, one after the other, each by the mean over the sites."""
    chosen: Choices = {}
    for section, key, values in search:
        scores = {}
        for value in values:
            choices = deepcopy(chosen)
            choices.setdefault(section, {})[key] = value
            scores[value] = float(np.mean([score.value for score in run(choices).tested.validation.values()]))
        print("FedAvg, validation by", f"{section}.{key}:", {value: round(score, 4) for value, score in scores.items()})
        chosen.setdefault(section, {})[key] = max(scores, key=scores.get)
    return chosen


def words(choices: Choices) -> list[str]:
    """Return the chosen values as text, in order."""
    return [f"{value}" for values in choices.values() for value in values.values()]


def silofl(*arguments: str) -> None:
    """Run a command of SiloFL; stop where it fails."""
    subprocess.run([sys.executable, "-m", "silofl", *arguments], check=True, stdout=subprocess.DEVNULL)
