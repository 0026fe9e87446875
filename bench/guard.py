"""What the guard's rule earns, by simulation, beside the plain mean of both models and the own model alone.

    python bench/guard.py

For each kind of score a local model, which needs a decision bias or none, meets federated models that are useless,
worse, as good or better. A population of units is scored with every share and bias; sites draw their validation units
from it, choose, and are judged by the population's means, which they do not see. Takes about a minute on one core; the
seed is fixed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from silofl.algorithms.guard import BIASES, SHARES, choose_kept

SIZES = {"1-3 units": (1, 2, 3), "5-20": (5, 10, 20), "50-200": (50, 100, 200)}
UNITS, PIXELS, SITES = 2000, 256, 150
# A site ends below its own model only by more than this.
EQUAL = 0.005
# What the local model's log-odds lack: 0 needs no bias.
OFFSETS = (0.0, 1.5)
# Federated model -> how right its log-odds are, beside 1.5 of the local one, and what they lack.
LEARNT = {"worse": (0.9, 0.5), "as good": (1.5, 0.5), "better": (2.2, 0.5)}
USELESS = ("zeros", "constant", "random")
KINDS = {"Dice": PIXELS, "right or wrong": 1}


@dataclass(frozen=True)
class Population:
    """The units of a hospital with one local and one federated model.

    Attributes:
        kind: What a score is.
        federated: What the federated model is like.
        validation: Scores to choose by, of every share and bias: shape (shares, biases, units).
        truth: Score to be judged by, mean over the units: shape (shares, biases).
    """

    kind: str
    federated: str
    validation: NDArray[np.float64]
    truth: NDArray[np.float64]

    @property
    def zero(self) -> int:
        """The number of the bias 0."""
        return self.truth.shape[1] // 2


def draw_populations(rng: np.random.Generator, shares: NDArray[np.float64] = SHARES) -> Iterator[Population]:
    """Yield a population for each kind of score, local and federated model."""
    for kind, pixels in KINDS.items():
        truth = rng.random((UNITS, pixels)) < (rng.uniform(0.1, 0.5, (UNITS, 1)) if pixels > 1 else 0.5)
        for offset in OFFSETS if pixels > 1 else OFFSETS[:1]:
            shared = _draw_noise(truth.shape, rng)
            local = _predict(1.5, offset, truth, shared, rng)
            theirs = {name: _predict(*one, truth, shared, rng) for name, one in LEARNT.items()}
            theirs |= dict(zip(USELESS, (0 * local, 0 * local + 0.3, rng.random(local.shape)), strict=True))
            for name, federated in theirs.items():
                score = _score_dice if pixels > 1 else _score_answers
                validation, found = score(federated, local, truth, shares)
                yield Population(kind, name, validation, found)


def _predict(
    quality: float, offset: float, truth: NDArray[np.bool_], shared: NDArray, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return probabilities: models find the same units and pixels hard, and have errors of their own."""
    noise = np.sqrt(0.6) * shared + np.sqrt(0.4) * _draw_noise(truth.shape, rng)
    return expit(quality * np.where(truth, 1, -1) + 1.2 * noise - offset)


def _draw_noise(shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    return 0.6 * rng.normal(size=(shape[0], 1)) + 0.8 * rng.normal(size=shape)


def _score_dice(federated: NDArray, local: NDArray, truth: NDArray, shares: NDArray) -> tuple[NDArray, NDArray]:
    scores = np.empty((len(shares), len(BIASES), UNITS))
    units = np.arange(UNITS)[:, None]
    for share, found in zip(shares, scores, strict=True):
        with np.errstate(divide="ignore"):
            # The number of the first bias that makes the pixel foreground.
            first = np.searchsorted(BIASES, -logit((1 - share) * federated + share * local), side="right")
        place, size = units * (len(BIASES) + 1) + first, UNITS * (len(BIASES) + 1)
        said, both = (
            np.bincount(place.ravel(), one.ravel(), size).reshape(UNITS, -1).cumsum(axis=1)[:, :-1]
            for one in (np.ones(truth.shape), truth)
        )
        found[:] = (2 * both / np.maximum(said + truth.sum(axis=1, keepdims=True), 1)).T
    return scores, scores.mean(axis=-1)


def _score_answers(federated: NDArray, local: NDArray, truth: NDArray, shares: NDArray) -> tuple[NDArray, NDArray]:
    theirs, ours = (np.where(truth, found, 1 - found)[:, 0] for found in (federated, local))
    right = ((1 - shares[:, None]) * theirs + shares[:, None] * ours)[:, None]
    return right, (right > 0.5).mean(axis=-1)


# The scores of a site's validation units (shares, biases, n) -> share and bias of what it keeps, as numbers.
Rule = Callable[[NDArray[np.float64]], tuple[int, int]]


def keep_by_guard(scores: NDArray[np.float64]) -> tuple[int, int]:
    """Keep what the guard's rule says."""
    biases = BIASES if scores.shape[1] > 1 else np.zeros(1)
    choice = choose_kept(scores, biases)
    return round(10 * choice.share), int(np.argmin(np.abs(biases - choice.bias)))


def keep_own(scores: NDArray[np.float64]) -> tuple[int, int]:
    """Keep the own model with the bias that the guard's rule gives it."""
    biases = BIASES if scores.shape[1] > 1 else np.zeros(1)
    return len(SHARES) - 1, int(np.argmin(np.abs(biases - choose_kept(scores, biases).own_bias)))


def keep_point(share: int) -> Rule:
    """Keep a share without a bias, whatever the scores."""
    return lambda scores: (share, scores.shape[1] // 2)


RULES: dict[str, Rule] = {
    "federated, no bias": keep_point(0),
    "plain mean, no bias": keep_point(5),
    "own, no bias": keep_point(10),
    "own, calibrated": keep_own,
    "**the guard**": keep_by_guard,
}


@dataclass(frozen=True)
class Cell:
    """What a rule does at the sites of one population with one number of units.

    Attributes:
        federated: What the federated model is like.
        num_units: Units of a site.
        value: Mean true score of what sites keep.
        below: Share of the sites that end below their calibrated own model.
    """

    federated: str
    num_units: int
    value: float
    below: float


def judge(population: Population, rules: dict[str, Rule], rng: np.random.Generator) -> Iterator[tuple[str, Cell]]:
    """Yield each rule's cells of a population."""
    for n in (n for sizes in SIZES.values() for n in sizes):
        drawn = [population.validation[..., rng.choice(UNITS, n, replace=False)] for _ in range(SITES)]
        own = np.array([population.truth[keep_own(scores)] for scores in drawn])
        for name, rule in rules.items():
            kept = np.array([population.truth[rule(scores)] for scores in drawn])
            yield name, Cell(population.federated, n, float(kept.mean()), float((kept < own - EQUAL).mean()))


def print_table(kind: str, found: dict[str, list[Cell]]) -> None:
    """Print each rule's mean score by federated model and by number of units, and how many sites end below own."""
    groups = {"useless": USELESS, **{name: (name,) for name in LEARNT}}
    heads = [*groups, *SIZES, "all", "below own, calibrated", "at most, of a population"]
    print(f"\n| {kind} | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for name, cells in found.items():
        parts = [[cell for cell in cells if cell.federated in one] for one in groups.values()]
        parts += [[cell for cell in cells if cell.num_units in sizes] for sizes in SIZES.values()]
        means = [f"{np.mean([cell.value for cell in part]):.3f}" for part in [*parts, cells]]
        below = [np.mean([cell.below for cell in cells]), max(cell.below for cell in cells)]
        print(f"| {name} | {' | '.join(means)} | {below[0]:.1%} | {below[1]:.0%} |")


def main() -> None:
    """Print a table for each kind of score."""
    rng = np.random.default_rng(0)
    found: dict[str, dict[str, list[Cell]]] = {kind: {name: [] for name in RULES} for kind in KINDS}
    for population in draw_populations(rng):
        for name, cell in judge(population, RULES, rng):
            found[population.kind][name].append(cell)
    for kind, rules in found.items():
        print_table(kind, rules)


if __name__ == "__main__":
    main()
