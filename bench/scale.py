"""Twenty sites on one machine: the memory of the whole simulation, and what a round costs beyond the sites' own work.

    python bench/scale.py [--sites 20] [--rounds 12]

A made-up set of small pictures in six classes is dealt to the sites (Dirichlet, alpha 0.1), and LeNet-5 trains on it by
f-AdaFed: once in NVFlare's simulator, and once with all sites in one process (``--in-process``), where the same rounds
run without a framework. A round's overhead is its time in the simulator less the sites' work, shared by the cores.
Beside it stands a round of NVFlare alone, less its sites' one step of Adam in plain torch (`echo`). Memory is the sum
of the processes' proportional set sizes, so that what they share counts once.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from echo import Echoed, echoed
from memory import GIB, watched
from runs import run_recipe

from silofl_desk.options import parse_setting
from silofl_desk.studies.runs.simulation import Simulation, settle_job

JOB = Path(__file__).parents[1] / "jobs" / "adafed_mednist"
CLASSES, PICTURES, SIZE = 6, 675, 28
CORES = len(os.sched_getaffinity(0))


def main() -> None:
    """Measure both ways on the same data, and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    found = of_sites(options.sites, options.rounds)
    print(f"{options.sites} sites, {options.rounds} rounds, {CORES} cores")
    print(f"memory of the whole simulation at its peak: {found.peak / GIB:.1f} GiB")
    print(f"a round in the simulator: {found.round_s:.2f} s (median); ", end="")
    print(f"the sites' own work, one after the other: {found.work_s:.2f} s")
    print(f"overhead of a round: {found.overhead_s:.2f} s")
    print(f"NVFlare alone, with one plain step of Adam: {found.echo.round_s:.2f} s, {found.echo.peak / GIB:.1f} GiB")


@dataclass(frozen=True)
class Scale:
    """What a simulation takes.

    Attributes:
        peak: Most memory of all its processes, in bytes.
        round_s: Seconds of a round in the simulator, the median.
        work_s: Seconds of the same round with all sites in one process.
        echo: The same of NVFlare alone.
    """

    peak: int
    round_s: float
    work_s: float
    echo: Echoed

    @property
    def overhead_s(self) -> float:
        """Seconds of a round beyond the sites' work, shared by the cores."""
        return self.round_s - self.work_s / CORES


def of_sites(sites: int, rounds: int) -> Scale:
    """Run f-AdaFed on small pictures at many sites, both ways."""
    labels = ", ".join(f"{number}: class {number}" for number in range(CLASSES))
    choices = (f"labels={{{labels}}}", "algorithm={name: adafed}", "device=cpu", f"rounds={rounds}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pictures(folder / "pictures.npz")
        dealt = ["--sites", sites, "--alpha", 0.1, "--test", 0.5]
        run_recipe("medmnist", folder / "pictures.npz", folder / "data", *dealt)
        return both_ways(JOB, folder, choices, (1, SIZE, SIZE))


def both_ways(job: Path, folder: Path, choices: Sequence[str], image: Sequence[int]) -> Scale:
    """Run a job on ``folder / "data"``, with choices for ``--set``, both ways, and NVFlare alone with its model."""
    study, settings = settle_job(job, Simulation(str(folder / "data")), dict(map(parse_setting, choices)))
    peak, round_s = simulated(job, folder, "network", choices)
    _, work_s = simulated(job, folder, "alone", choices, "--in-process")
    return Scale(peak, round_s, work_s, echoed(folder / "echo", study, len(settings.sites), image))


def simulation(job: Path, data: Path, out: Path, choices: Sequence[str], *options: str) -> list[str]:
    """Return the command that simulates a job, with choices for ``--set``."""
    chosen = [part for choice in choices for part in ("--set", choice)]
    command = [sys.executable, "-m", "silofl", "simulate", str(job), "--data", str(data), "--out", str(out)]
    return [*command, *chosen, *options]


def write_pictures(path: Path, pictures: int = PICTURES) -> None:
    """Write a set of MedMNIST's form: noisy stripes, of a direction for each class, so many pictures of each."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES, dtype=np.uint8), pictures)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    angles = labels[:, None, None] * np.pi / CLASSES
    phase = rng.uniform(0, 6, (len(labels), 1, 1))
    waves = np.sin(0.6 * (rows * np.sin(angles) + columns * np.cos(angles)) + phase)
    images = np.clip(128 + 80 * waves + rng.normal(0, 30, waves.shape), 0, 255).astype(np.uint8)
    parts = {"train": 0, "val": 1, "test": 2}
    arrays = {f"{part}_images": images[start::3] for part, start in parts.items()}
    np.savez(path, **arrays, **{f"{part}_labels": labels[start::3, None] for part, start in parts.items()})


def simulated(job: Path, folder: Path, name: str, choices: Sequence[str], *options: str) -> tuple[int, float]:
    """Run a job; returns the peak of its memory in bytes, and the median seconds of a round."""
    peak = watched(simulation(job, folder / "data", folder / name, choices, *options))
    # The first round waits for all processes to start.
    ledger = json.loads((folder / name / "ledger.json").read_text())[1:]
    return peak, float(np.median([record["seconds"] for record in ledger]))


if __name__ == "__main__":
    main()
