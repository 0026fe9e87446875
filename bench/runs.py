"""Runs of a benchmark, in one process each; finished ones are reused."""

import logging
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.data.manifest import read_content
from silofl.federation.results import Results, read_results
from silofl.models.weights import read_pretrained
from silofl.setup.site import Site
from silofl.study import Study
from silofl_desk.studies.comparisons.tune import rates_beyond
from silofl_desk.studies.runs.in_process import run_in_process
from silofl_desk.studies.runs.simulation import apply_changes

JOBS = Path(__file__).parents[1] / "jobs"
# Set of real data, or of phantoms -> the job in whose study all methods run.
SETS = {
    "nuclei": "harmofl_nuclei",
    "spine": "fedsm_spine",
    "activity": "adafed_activity",
    "mednist": "adafed_mednist",
    "pneumonia": "adafed_pneumonia",
    "phantoms": "harmofl_phantoms",
}
# What compares or keeps BatchNorm needs it.
BATCH = {"model.normalization": "batch"}
# Sets on which FedSM's own job has InstanceNorm; its selector bears no BatchNorm.
OF_INSTANCENORM = ("spine", "phantoms")
# Windows of one line of numbers, and images of 28 x 28, are too small for the selector.
TOO_SMALL = ("activity", "mednist", "pneumonia")
# A process takes longer to start than a small network to train; after so many runs its memory is given back.
RUNS_EACH = 20
# Of the demonstration's hospitals this one joins no run.
UNSEEN = "coast"
# Learning rates that are tried beyond the edge of a row's own.
LADDER = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# Dotted key of the study -> value.
Choices = dict[str, Any]
# Phantoms of 32 x 32 and a network that learns them in seconds.
TINY: Choices = {
    "data.transforms": [{"Resize": {"spatial_size": [32, 32]}}],
    "data.augment": [],
    "model": {
        "network": "monai.networks.nets.UNet",
        "arguments": {"channels": [8, 16, 32], "strides": [2, 2]},
        "normalization": "group",
    },
    "training.learning_rate": 0.01,
}


def for_selector(name: str) -> Choices:
    """Return what FedSM, which needs a network without BatchNorm, changes in the job of a set."""
    return {"model.normalization": "instance" if name in OF_INSTANCENORM else "group"}


@dataclass(frozen=True)
class Alone:
    """A run in one process, without NVFlare.

    Attributes:
        set: Key of `SETS`, or a job itself; the folder of its data where that is not named.
        folder: The run's, below the benchmark's.
        changes: Dotted key of the study -> value.
        source: Folder of its data, below that of all data; a pretrained model lies there beside the sites.
    """

    set: str
    folder: str
    changes: Mapping[str, Any]
    source: str = ""

    def find_sites(self, data: Path) -> list[Path]:
        """Return the folders of the sites that train."""
        found = (path.parent for path in (data / (self.source or self.set)).resolve().glob("*/dataset.json"))
        return sorted(path for path in found if path.name != UNSEEN)

    def run(self, data: Path, out: Path) -> float:
        """Carry it out; returns its seconds."""
        logging.disable(logging.WARNING)
        started, sites, folder = time.monotonic(), self.find_sites(data), out.resolve() / self.folder
        settings = Site(
            data=f"{sites[0].parent}/{{site}}",
            state_dir=f"{folder}/sites/{{site}}",
            cache_dir=f"{out.resolve()}/cache/{self.set}",
            has_progress=False,
            min_patients=0,
            min_partners=0,
        )
        values = yaml.safe_load((JOBS / SETS.get(self.set, self.set) / "app" / "config" / "study.yaml").read_text())
        study = parse(Study, apply_changes(values, self.changes), self.folder)
        pretrained = sites[0].parent / study.model.pretrained
        start = read_pretrained(pretrained, study) if study.recipe.needs_pretrained else None
        run_in_process(study, folder, [site.name for site in sites], settings, start)
        return time.monotonic() - started


def carry_out(wanted: Iterable[Alone], data: Path, out: Path, processes: int) -> None:
    """Carry out all runs that are not finished, several at once."""
    left = [one for one in wanted if not is_finished(out / one.folder)]
    for folder, one in {data / (one.source or one.set): one for one in left}.items():
        sites = one.find_sites(data)
        if not sites:
            sys.exit(f"{folder} must hold sites as silofl import makes them; there is none: import it, or leave it out")
        # Neither a round nor what a site keeps could be chosen.
        if not any(read_content(site).get("validation") for site in sites):
            sys.exit(f"{folder} must have validation data; no site has any: import it with --validation")
    started, numbers = time.monotonic(), count(1)
    # Fresh processes for each batch; max_tasks_per_child can hang in Python 3.11 (gh-115634).
    for batch in (left[first : first + processes * RUNS_EACH] for first in range(0, len(left), processes * RUNS_EACH)):
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            tasks = {pool.submit(one.run, data, out): one for one in batch}
            for task in as_completed(tasks):
                one, so_far = tasks[task], time.monotonic() - started
                try:
                    ending = f"{task.result():.0f} s"
                except ConfigError as error:  # a value that this method does not bear
                    ending = f"refused: {error}"
                print(f"{next(numbers)} of {len(left)}: {one.folder}, {ending}; {so_far:.0f} s so far", flush=True)


def is_finished(folder: Path) -> bool:
    """Return whether a run has its result."""
    results = read_results(folder) if folder.is_dir() else None
    return results is not None and results.is_finished


def read_complete(folder: Path) -> Results | None:
    """Return the result of a run in which no site failed, as one does whose training diverges; None of any other."""
    results = read_results(folder) if folder.is_dir() else None
    return results if results is not None and results.status == "COMPLETE" else None


def validation_of(results: Results) -> float:
    """Return the mean over sites of the validation of a run's reported model; NaN where no site has any."""
    mean = results.validation_mean
    return float("nan") if mean is None else mean


def validation_to_choose(results: Results) -> float:
    """Return the mean over sites of the validation, by which something is chosen.

    Raises:
        ConfigError: No site has any.
    """
    value = validation_of(results)
    if np.isnan(value):
        raise ConfigError(
            f"{results.study} must have validation data to choose by; no site has any: import them with --validation"
        )
    return value


def beyond(best: float, tried: Collection[float]) -> list[float]:
    """Return the next rate of `LADDER` where the best one is at an edge of those tried."""
    return [rate for rate in rates_beyond(best, tried) if rate in LADDER]


def run_recipe(name: str, source: Path, target: Path, *options: object) -> None:
    """Import a public set by a script in recipes/; stop where it fails."""
    command = [sys.executable, JOBS.parent / "recipes" / f"{name}.py", source, target, *options]
    subprocess.run([str(one) for one in command], check=True, stdout=subprocess.DEVNULL)


def silofl(*arguments: str) -> str:
    """Run a command of SiloFL and return what it printed for programs; stop where it fails."""
    command = [sys.executable, "-m", "silofl", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
