"""How a round grows with examples, sites, parameters and rounds: a picture each, with the exponent that fits.

    python bench/growth.py OUT [--only examples,sites,parameters,rounds]

All sites of a run take turns in one process, one thread. Drawn are the median seconds of a round (for rounds those of
all rounds together) and the most memory that the process held; the exponent is the slope of a straight line through
the logarithms, 1 where twice as much takes twice as long. The exit code is 1 where an exponent is above 1.05, or where
memory grows with the rounds. About a quarter of an hour on two cores.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scale
from matplotlib.ticker import NullFormatter, ScalarFormatter
from reading import write_tiles
from runs import run_recipe

MIB = 2**20
LINEAR = 1.05
# Of the memory after few rounds, how much more after many.
FLAT = 1.05
TILES_JOB = scale.JOB.parent / "fedavg_phantoms"
# Eight of them train: one batch of small tiles, so that the parameters weigh most.
FEW_TILES = (10, (32, 32))
FEDAVG = ("algorithm={name: fedavg}", "guard=false", "device=cpu")
# Widths of the U-Net's six stages -> its parameters in millions.
WIDTHS = {(8, 8, 16, 32, 64, 8): 0.12, (32, 32, 64, 128, 192, 32): 1.55, (64, 64, 160, 320, 544, 64): 10.5}
WIDTHS |= {(64, 128, 256, 512, 1024, 64): 31.1, (64, 128, 1024, 1024, 1024, 64): 103.2}
WIDTHS |= {(128, 1024, 1024, 1024, 1024, 128): 150.2}


@dataclass(frozen=True)
class Growth:
    """What was measured for growing numbers of something.

    Attributes:
        what: The something, in words.
        numbers: How many.
        seconds: Of a round, or of all.
        memory: Most bytes of the process.
        of: What the seconds are of.
    """

    what: str
    numbers: list[float]
    seconds: list[float]
    memory: list[float]
    of: str = "a round"

    @property
    def exponent(self) -> float:
        """The slope of the seconds' logarithm over that of the number."""
        return float(np.polyfit(np.log(self.numbers), np.log(self.seconds), 1)[0])

    @property
    def is_kept(self) -> bool:
        """Whether it grows linearly or better, and memory not at all with rounds."""
        is_flat = self.what != "rounds" or self.memory[-1] <= FLAT * self.memory[0]
        return self.exponent <= LINEAR and is_flat


def main() -> int:
    """Measure, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(MEASURES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    all_kept = True
    for name in options.only.split(","):
        growth = MEASURES[name]()
        draw(growth, options.out / f"growth_{name}.png")
        print(f"{'kept' if growth.is_kept else 'BROKEN'}: {title(growth)}", flush=True)
        for number, seconds, memory in zip(growth.numbers, growth.seconds, growth.memory, strict=True):
            print(f"  {number:g} {growth.what}: {seconds:.3f} s, {memory / MIB:.0f} MiB", flush=True)
        all_kept = all_kept and growth.is_kept
    return int(not all_kept)


def examples() -> Growth:
    """Measure four sites with LeNet-5 and 100 to 100,000 training pictures in all."""
    numbers = [100, 1000, 10_000, 100_000]
    return grown("examples", numbers, lambda folder, number: of_pictures(folder, 4, number))


def sites() -> Growth:
    """Measure 2 to 40 sites with LeNet-5 and some 100 training pictures each."""
    return grown("sites", [2, 5, 10, 20, 40], lambda folder, number: of_pictures(folder, number, 100 * number))


def parameters() -> Growth:
    """Measure two sites with U-Nets of 0.1 to 150 million parameters on few and small pictures."""
    found = [of_tiles(widths) for widths in WIDTHS]
    return Growth("million parameters", list(WIDTHS.values()), *map(list, zip(*found, strict=True)))


def rounds() -> Growth:
    """Measure 25 to 500 rounds of four sites with LeNet-5."""
    numbers = [25, 50, 100, 200, 500]
    growth = grown("rounds", numbers, lambda folder, number: of_pictures(folder, 4, 400, number))
    seconds = [number * one for number, one in zip(numbers, growth.seconds, strict=True)]
    return Growth("rounds", growth.numbers, seconds, growth.memory, "all rounds")


def grown(what: str, numbers: list[int], measure: Callable[[Path, int], tuple[float, int]]) -> Growth:
    """Measure for each number, in a folder of its own."""
    found = []
    for number in numbers:
        with tempfile.TemporaryDirectory() as name:
            found.append(measure(Path(name), number))
    return Growth(what, list(map(float, numbers)), *map(list, zip(*found, strict=True)))


def of_pictures(folder: Path, num_sites: int, training: int, num_rounds: int = 6) -> tuple[float, int]:
    """Return the seconds of a round of FedAvg with so many training pictures in all, and the most memory."""
    # A third of the pictures each in train, val and test; the recipe deals them anew, half of them to training.
    scale.write_pictures(folder / "pictures.npz", 2 * training // scale.CLASSES)
    dealt = ["--sites", num_sites, "--alpha", 100.0, "--test", 0.25, "--validation", 0.25]
    run_recipe("medmnist", folder / "pictures.npz", folder / "data", *dealt)
    labels = ", ".join(f"{number}: class {number}" for number in range(scale.CLASSES))
    return run(scale.JOB, folder, *FEDAVG, f"labels={{{labels}}}", f"rounds={num_rounds}")


def of_tiles(widths: tuple[int, ...]) -> tuple[float, int]:
    """Return the seconds of a round of FedAvg with a U-Net of such widths, and the most memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for site in ("north", "south"):
            write_tiles(folder / "data" / site, *FEW_TILES)
        return run(TILES_JOB, folder, *FEDAVG, *choices_of_tiles(widths), "training.optimizer=sgd")


def choices_of_tiles(widths: tuple[int, ...]) -> list[str]:
    """Return what a study of `FEW_TILES` has else than `TILES_JOB`."""
    plain = [f"data.{key}=[]" for key in ("transforms", "volume_transforms", "augment")]
    model = [f"model.features={list(widths)}", "model.normalization=group"]
    return [*plain, *model, "labels={1: nucleus}", "rounds=4"]


def run(job: Path, folder: Path, *choices: str) -> tuple[float, int]:
    """Return a round's seconds and the most memory of a run in one process."""
    peak, seconds = scale.simulated(job, folder, "run", choices, "--alone")
    return seconds, peak


def draw(growth: Growth, path: Path) -> None:
    """Draw seconds and memory over the number, on logarithmic axes."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.loglog(growth.numbers, growth.seconds, "o-", color="tab:blue")
    axes.set_xlabel(growth.what)
    axes.set_ylabel(f"seconds of {growth.of}", color="tab:blue")
    axes.set_title(title(growth), fontsize=10)
    axes.set_xticks(growth.numbers, labels=[f"{number:g}" for number in growth.numbers])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    memory = axes.twinx()
    memory.plot(growth.numbers, [value / MIB for value in growth.memory], "s--", color="tab:orange")
    memory.set_ylabel("MiB at the most", color="tab:orange")
    memory.set_ylim(bottom=0)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def title(growth: Growth) -> str:
    """Say what was found in one line."""
    return f"Seconds of {growth.of} grow with {growth.what} to the power of {growth.exponent:.2f}"


MEASURES = {measure.__name__: measure for measure in (examples, sites, parameters, rounds)}


if __name__ == "__main__":
    sys.exit(main())
