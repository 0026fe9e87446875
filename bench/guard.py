"""What the guard's rule earns, by simulation, beside the federated model and the own model alone.

    python bench/guard.py

For each kind of score a local model, which needs a decision bias or none, meets federated models that are useless,
worse, as good or better. A population of units is scored by both with every bias; sites draw their validation units
from it, choose, and are judged by the population's means, which they do not see. Takes about a minute on one core; the
seed is fixed.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from silofl.core.guard_rule import BIASES, choose_kept

SIZES = {"1-3 units": (1, 2, 3), "5-20": (5, 10, 20), "50-200": (50, 100, 200)}
UNITS, PIXELS, SITES = 2000, 256, 150
# A site ends below its own model only by more than this.
EQUAL = 0.005
# What the local model's log-odds lack: 0 needs no bias.
OFFSETS = (0.0, 1.5)
# Federated model -> how right its log-odds are, beside 1.5 of the local one, and what they lack.
LEARNT = {"worse": (0.9, 0.5), "as good": (1.5, 0.5), "better": (2.2, 0.5)}
USELESS = ("zeros", "constant", "random")
DICE, CLASSES = "Dice", "right or wrong"
# Rows of the table.
AT_ZERO, OWN, FEDERATED, KEPT = "own at 0.5", "own, calibrated", "federated, calibrated", "**the guard**"


class Population(NamedTuple):
    """The units of a hospital with one local and one federated model.

    Attributes:
        kind: What a score is: `DICE` or `CLASSES`.
        federated: What the federated model is like.
        offset: What the local model's log-odds lack.
        validation: Scores to choose by, of the federated and the own model with every bias: shape (2, biases, units).
        truth: Score to be judged by, mean over the units: shape (2, biases).
    """

    kind: str
    federated: str
    offset: float
    validation: NDArray[np.float64]
    truth: NDArray[np.float64]


def draw_populations(rng: np.random.Generator) -> Iterator[Population]:
    """Yield a population for each kind of score, local and federated model."""
    for kind, pixels, offsets, score in ((DICE, PIXELS, OFFSETS, _score_dice), (CLASSES, 1, (0.0,), _score_answers)):
        truth = rng.random((UNITS, pixels)) < (rng.uniform(0.1, 0.5, (UNITS, 1)) if pixels > 1 else 0.5)
        for offset in offsets:
            shared = _draw_noise(truth.shape, rng)
            local = _predict(1.5, offset, truth, shared, rng)
            theirs = {name: _predict(*one, truth, shared, rng) for name, one in LEARNT.items()}
            theirs |= dict(zip(USELESS, (0 * local, 0 * local + 0.3, rng.random(local.shape)), strict=True))
            for name, federated in theirs.items():
                yield Population(kind, name, offset, *score(federated, local, truth))


def _predict(
    quality: float, offset: float, truth: NDArray[np.bool_], shared: NDArray, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return probabilities: models find the same units and pixels hard, and have errors of their own."""
    noise = np.sqrt(0.6) * shared + np.sqrt(0.4) * _draw_noise(truth.shape, rng)
    return expit(quality * np.where(truth, 1, -1) + 1.2 * noise - offset)


def _draw_noise(shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    return 0.6 * rng.normal(size=(shape[0], 1)) + 0.8 * rng.normal(size=shape)


def _score_dice(federated: NDArray, local: NDArray, truth: NDArray) -> tuple[NDArray, NDArray]:
    scores = np.empty((2, len(BIASES), UNITS))
    units = np.arange(UNITS)[:, None]
    for probabilities, found in zip((federated, local), scores, strict=True):
        with np.errstate(divide="ignore"):
            # The number of the first bias that makes the pixel foreground.
            first = np.searchsorted(BIASES, -logit(probabilities), side="right")
        place, size = units * (len(BIASES) + 1) + first, UNITS * (len(BIASES) + 1)
        said, both = (
            np.bincount(place.ravel(), one.ravel(), size).reshape(UNITS, -1).cumsum(axis=1)[:, :-1]
            for one in (np.ones(truth.shape), truth)
        )
        found[:] = (2 * both / np.maximum(said + truth.sum(axis=1, keepdims=True), 1)).T
    return scores, scores.mean(axis=-1)


def _score_answers(federated: NDArray, local: NDArray, truth: NDArray) -> tuple[NDArray, NDArray]:
    right = np.stack([np.where(truth, found, 1 - found)[:, 0] for found in (federated, local)])[:, None]
    return right, (right > 0.5).mean(axis=-1)


def place_rows(scores: NDArray[np.float64]) -> dict[str, tuple[int, int]]:
    """Return the numbers of the model and bias of each row of the table at a site.

    Args:
        scores: Of the site's validation units, as `Population.validation`.
    """
    biases = BIASES if scores.shape[1] > 1 else np.zeros(1)
    choice, zero = choose_kept(*scores, biases), len(biases) // 2
    kept, own, theirs = (
        int(np.argmin(np.abs(biases - one))) for one in (choice.bias, choice.own_bias, choice.federated_bias)
    )
    return {
        "federated at 0.5": (0, zero),
        FEDERATED: (0, theirs),
        AT_ZERO: (1, zero),
        OWN: (1, own),
        KEPT: (int(choice.keeps_own), kept),
    }


# Federated model, offset and number of units -> row -> the true score at each site.
Cells = dict[tuple[str, float, int], dict[str, NDArray[np.float64]]]


def print_table(kind: str, cells: Cells) -> None:
    """Print each row's mean score by federated model and by number of units, and how many sites end below own."""
    groups = {"useless": USELESS} | {name: (name,) for name in LEARNT} | SIZES
    heads = [kind, *groups, "all", "below own, calibrated", "at most, of a population"]
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    parts = [[one for (name, _, n), one in cells.items() if {name, n} & {*group}] for group in groups.values()]
    for row in next(iter(cells.values())):
        means = [f"{np.mean([one[row].mean() for one in part]):.3f}" for part in [*parts, cells.values()]]
        below = [(one[row] < one[OWN] - EQUAL).mean() for one in cells.values()]
        print(f"| {row} | {' | '.join(means)} | {np.mean(below):.1%} | {max(below):.0%} |")


def main() -> None:
    """Print a table for each kind of score."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rng = np.random.default_rng(0)
    found: dict[str, Cells] = {DICE: {}, CLASSES: {}}
    for kind, federated, offset, validation, truth in draw_populations(rng):
        for n in (n for sizes in SIZES.values() for n in sizes):
            drawn = [place_rows(validation[..., rng.choice(UNITS, n, replace=False)]) for _ in range(SITES)]
            found[kind][federated, offset, n] = {row: np.array([truth[one[row]] for one in drawn]) for row in drawn[0]}
    for kind, cells in found.items():
        print_table(kind, cells)


if __name__ == "__main__":
    main()
