"""AdaFed's claims: label shift, few rounds and many local epochs.

Made-up images of 28 x 28, whose class is the number of lobes of an outline, are dealt to eight sites of equal size by
Dirichlet shares, as the paper deals its sets: with alpha 0.1, where sites differ in their labels, and with 100, where
they do not. Images, deal and training have the seed of their run. How hard the images are was settled on one network
trained on all of them. Every method is there twice, from the pretrained model f and from random weights.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from runs import JOBS, Choices, run_recipe, silofl
from verdicts import QUICK, Claim, Paper, Row, Table, Wanted, mean_over_sites

from silofl.federation.ledger import read_ledger
from silofl_desk.options import format_set_options
from silofl_desk.studies.comparisons.methods import find_method_algorithm

JOB, SITES, IMAGES, SIDE = "adafed_mednist", 8, 1600, 28
CLASSES = {number: f"{number + 2} lobes" for number in range(6)}
NOISE = 0.15
# As in HarmoFL's tables: one deal does not tell two rates apart.
SEARCHED = (1, 2, 3)
# With 0.3 the loss of most rows is no longer finite within ten rounds.
EPOCHS, RATES, RATE_OF_F = 24, (0.01, 0.03, 0.1), 0.03
CHANGES: Choices = {
    "labels": CLASSES,
    "training.momentum": 0.9,
    "training.batch_size": 16,
    "baseline_comparison": False,
}
METHODS = {
    "local": "local",
    "FedAvg": "fedavg",
    "FedPer": "fedper",
    "FedBN": "fedbn",
    "AdaFed": "adafed",
    "d-AdaFed": "d-adafed",
    "f-AdaFed": "f-adafed",
}
RIVALS = ("local", "FedAvg", "FedPer", "FedBN")
STARTS = {" from f": True, "": False}


def draw_image(rng: np.random.Generator, lobes: int) -> NDArray[np.uint8]:
    """Draw a bright outline with so many lobes on a dark ground, off the centre, turned a little, under noise."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2 - rng.uniform(-2, 2, (2, 1, 1))
    angle, radius, depth = np.arctan2(y, x) + rng.uniform(-0.35, 0.35), rng.uniform(6.5, 8.5), rng.uniform(0.2, 0.4)
    # Divided by its root mean square, so that all classes are equally large.
    outline = radius * (1 + depth * np.cos(lobes * angle)) / np.sqrt(1 + depth**2 / 2)
    inside = 1 / (1 + np.exp(-2 * (outline - np.hypot(x, y))))
    image = (0.3 + 0.4 * inside) * rng.uniform(0.8, 1.2) + rng.normal(0, NOISE, inside.shape)
    return np.clip(255 * image, 0, 255).astype(np.uint8)


def make(alpha: float, folder: Path, seed: int) -> None:
    """Draw the images of a seed, deal them to the sites, and pretrain f on a fifth of their training data."""
    sites, file = folder / JOB, folder / "images.npz"
    if (sites / "pretrained.pt").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng, labels = np.random.default_rng(seed), np.arange(IMAGES) % len(CLASSES)
    images = np.stack([draw_image(rng, label + 2) for label in labels])
    parts = {"train": slice(None), "val": slice(0), "test": slice(0)}
    drawn = {f"{part}_images": images[rows] for part, rows in parts.items()}
    np.savez(file, **drawn, **{f"{part}_labels": labels[rows, None] for part, rows in parts.items()})
    if not sites.is_dir():
        dealt = ["--sites", str(SITES), "--alpha", str(alpha), "--equal-sizes", "--test", "0.5", "--validation", "0.4"]
        names = ["--labels", ",".join(CLASSES.values()), "--seed", str(seed)]
        run_recipe("medmnist", file, sites, *dealt, *names)
    job = [str(JOBS / JOB), "--data", str(sites), "--out", str(sites / "pretrained.pt"), "--epochs", str(EPOCHS)]
    changes = CHANGES | {"training.learning_rate": RATE_OF_F}
    silofl("pretrain", *job, "--seed", str(seed), *format_set_options(changes))


def rows(methods: tuple[str, ...], start: str, epochs: int = 1) -> list[Row]:
    """Return methods with a start and local epochs, as many epochs in all."""
    fixed = {"rounds": EPOCHS // epochs, "training.local_epochs": epochs}
    begin = {"start_from_pretrained": STARTS[start]}
    return [
        Row(name_row(one, start, epochs), {"algorithm": find_method_algorithm(METHODS[one]) | begin} | fixed, RATES)
        for one in methods
    ]


def name_row(method: str, start: str, epochs: int = 1) -> str:
    """Return the name of a row."""
    return f"{method}{start}" + f", {epochs} local epochs" * (epochs > 1)


def beside(name: Callable[[str], str], run: Path) -> Path | None:
    """Return the run of another row on the same data, with that row's own rate; None where it was not searched."""
    table = next(one for one in PAPER.tables if one.name == run.parts[-3])
    row = next((one for one in table.rows if Wanted("", table, one, 0, 0).folder.split("/")[-2] == run.parts[-2]), None)
    other = next(one for one in table.rows if one.name == name(row.name))
    stored = json.loads(Path(__file__).with_name("rates.json").read_text())["adafed"][table.name].get(other.name)
    seed = int(run.name.rpartition("seed")[2])
    return run.parents[3] / Wanted("adafed", table, other, stored["rate"], seed).folder if stored else None


def rounds_to_fedbn(run: Path) -> float | None:
    """Return the first round that validates as FedBN's last one from the same start; one more than all for none."""
    rival = beside(lambda row: name_row("FedBN", " from f" if " from f" in row else ""), run)
    if rival is None:
        return None
    # The last round that each site validated.
    aim = [record.validation_mean for record in read_ledger(rival)][-1]
    curve = [record.validation_mean for record in read_ledger(run)]
    return next((number for number, value in enumerate(curve, start=1) if value >= aim), len(curve) + 1)


def change_by_epochs(run: Path) -> float | None:
    """Return the test minus that of the same method with one local epoch in each round."""
    single = beside(lambda row: row.partition(",")[0], run)
    return None if single is None else mean_over_sites(run) - mean_over_sites(single)


def ahead_of(method: str, rivals: tuple[str, ...], start: str, rival_start: str | None = None) -> tuple:
    """Return the pairs of cells in which a method is compared with rivals."""
    other = start if rival_start is None else rival_start
    return tuple(((name_row(method, start), "mean"), (name_row(rival, other), "mean")) for rival in rivals)


COLUMNS = {"mean": mean_over_sites, "rounds": rounds_to_fedbn, "change": change_by_epochs}
BEST = "Our method achieves the best results on average"
VARIANTS = "all three implementations achieve better average accuracy ... compared with FedAvg and FedBN"
FASTER = "faster convergence speed"
EPOCH = (
    "FedBN drops seriously with more local iterations and fewer communication rounds while our method declines slowly"
)
WORDS = {" from f": "all from f", "": "none from f"}
NOTE = (
    f"Accuracy, mean of {SITES} sites; *from f*: begins with the model that `pretrain` makes of a fifth of all sites' "
    f"training data; {EPOCHS} epochs in all. *rounds*: the first that validates as FedBN's last one from the same "
    "start; one more than there are where none does. *change*: against the same row with one local epoch in each round."
)


def claims_of_start(start: str) -> tuple[Claim, ...]:
    """Return the claims that rows of one start decide."""
    means = [pair for one in ("AdaFed", "d-AdaFed", "f-AdaFed") for pair in ahead_of(one, ("FedAvg", "FedBN"), start)]
    rounds = ((name_row("FedBN", start), "rounds"), (name_row("AdaFed", start), "rounds"))
    return (
        Claim(BEST, ahead_of("AdaFed", RIVALS, start), about=WORDS[start]),
        Claim(VARIANTS, tuple(means), about=WORDS[start]),
        Claim(FASTER, (rounds,), about=f"{WORDS[start]}: fewer rounds to FedBN's last validation"),
    )


SHIFTED = Table(
    "labels-shifted",
    JOB,
    partial(make, 0.1),
    (
        *rows(tuple(METHODS), " from f"),
        *rows(tuple(METHODS), ""),
        *(row for epochs in (8, 4, 2) for row in rows(("FedBN", "AdaFed"), " from f", epochs)),
    ),
    CHANGES,
    COLUMNS,
    (
        Claim(BEST, ahead_of("AdaFed", RIVALS, " from f", ""), about="AdaFed alone from f"),
        *(claim for start in STARTS for claim in claims_of_start(start)),
        Claim(
            EPOCH,
            (((name_row("AdaFed", " from f", 8), "change"), (name_row("FedBN", " from f", 8), "change")),),
            about="8 local epochs instead of 1",
        ),
    ),
    NOTE,
    seeds=QUICK,
    searched=SEARCHED,
    is_main=True,
)
EVEN = Table(
    "labels-even",
    JOB,
    partial(make, 100.0),
    tuple(rows(("local", "FedAvg", "FedBN", "AdaFed"), " from f")),
    CHANGES,
    {"mean": mean_over_sites, "rounds": rounds_to_fedbn},
    (
        Claim(
            BEST,
            ahead_of("AdaFed", ("local", "FedAvg", "FedBN"), " from f"),
            about="all from f; labels do not differ",
        ),
    ),
    "The same images where all sites have all labels alike, which is not what the method is for.",
    seeds=QUICK,
    searched=SEARCHED,
)
PAPER = Paper("AdaFed (Chen et al., arXiv:2112.00734)", (SHIFTED, EVEN))
