"""Runs of a benchmark, by ``silofl compare`` of one job with other choices in its study; finished ones are reused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from silofl.federation.results import Results, read_results

JOBS = Path(__file__).parents[1] / "jobs"
# Dotted key of the study -> value.
Choices = dict[str, Any]
# Dotted key and the values to try.
Search = tuple[tuple[str, tuple[Any, ...]], ...]


def compared(
    job: str,
    data: Path,
    out: Path,
    rows: Mapping[str, Choices],
    seeds: Sequence[int],
    rounds: int,
    is_alone: bool = False,
) -> dict[str, list[Results]]:
    """Return the results of the job itself and of each row by seed, from an earlier call where they are finished.

    Args:
        job: A job in ``jobs``, or the path of another, under whose name its results are returned.
        data: Folder with one folder a site.
        out: Folder of the runs.
        rows: Name of a row -> what is chosen in it, for ``--set``; the same name is the same run.
        seeds: Of the training.
        rounds: Of every run.
        is_alone: Whether all sites of a run take turns in one process.
    """
    command = ["compare", str(JOBS / job), "--data", str(data), "--out", str(out), "--rounds", str(rounds)]
    for name, choices in rows.items():
        for key, value in choices.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        command += ["--as", name]
    command += ["--alone"] * is_alone
    print("comparing", ", ".join(rows), flush=True)
    table = json.loads(silofl(*command, "--seeds", ",".join(map(str, seeds)), "--json"))
    found: dict[str, list[Results]] = {}
    for run in table["runs"]:
        found.setdefault(run["name"], []).append(read_results(Path(run["folder"])))
    return found


def best_choices(search: Search, run: Callable[[Choices], Results]) -> Choices:
    """Return the choices with which FedAvg validates best, one after the other, each by the mean over the sites."""
    chosen: Choices = {}
    for key, values in search:
        scores = {}
        for value in values:
            validation = run(chosen | {key: value}).tested.validation
            scores[value] = float(np.mean([score.value for score in validation.values()]))
        print(f"FedAvg, validation by {key}:", {value: round(score, 4) for value, score in scores.items()})
        chosen[key] = max(scores, key=scores.get)
    return chosen


def name_of(choices: Choices) -> str:
    """Return the chosen values as the name of a row."""
    return "-".join(_words(choices))


def _words(choices: Mapping[str, Any]) -> list[str]:
    """Return the values, those of an algorithm's constants after their keys."""
    words: list[str] = []
    for key, value in choices.items():
        if isinstance(value, Mapping):
            words += _words(value)
        else:
            words += [str(value)] if "." in key or key in ("name", "preset") else [key, str(value)]
    return words


def silofl(*arguments: str) -> str:
    """Run a command of SiloFL and return what it printed for programs; stop where it fails."""
    command = [sys.executable, "-m", "silofl", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
