"""What the rule of the baseline comparison earns, by simulation, beside the federated and the local model alone.

    python bench/baseline.py

For each kind of score a local model, which needs a decision bias or none, meets federated models that are useless,
worse, as good or better. A population of units is scored by both with every bias; sites draw their validation units
from it, choose, and are judged by the population's means, which they do not see. Some have units without a label in
truth. Takes two minutes on one core; the seed is fixed.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from silofl.core.baseline_rule import BIASES, choose_kept

SIZES = {"3-5 units": (3, 4, 5), "7-10": (7, 10), "20-40": (20, 40)}
# Of a site's units without a label in truth.
NUMBERS_OF_EMPTY = (0, 1, 2, 3)
UNITS, EMPTY, PIXELS, SITES = 2000, 500, 256, 150
# A site ends below its local model only by more than this.
EQUAL = 0.005
# What the local model's log-odds lack: 0 needs no bias.
OFFSETS = (0.0, 1.5)
# Federated model -> how right its log-odds are, beside 1.5 of the local one, and what they lack.
LEARNT = {"worse": (0.9, 0.5), "as good": (1.5, 0.5), "better": (2.2, 0.5)}
USELESS = ("zeros", "constant", "random")
DICE, CLASSES = "Dice", "right or wrong"
# Rows of the table.
AT_ZERO, OWN, FEDERATED, KEPT = "local at 0.5", "local, calibrated", "federated, calibrated", "**the rule**"


class Population(NamedTuple):
    """The units of a hospital with one local and one federated model.

    Attributes:
        kind: What a score is: `DICE` or `CLASSES`.
        federated: What the federated model is like.
        offset: What the local model's log-odds lack.
        validation: Scores to choose by, of the federated and the local model with every bias: shape (2, biases, units).
        truth: Score to be judged by, mean over the units: shape (2, biases).
        empty: Scores of units without a label in truth: shape (2, biases, units); none of classes.
    """

    kind: str
    federated: str
    offset: float
    validation: NDArray[np.float64]
    truth: NDArray[np.float64]
    empty: NDArray[np.float64]


def draw_populations(rng: np.random.Generator) -> Iterator[Population]:
    """Yield a population for each kind of score, local and federated model."""
    for kind, pixels, offsets, score in ((DICE, PIXELS, OFFSETS, _score_dice), (CLASSES, 1, (0.0,), _score_answers)):
        truth = rng.random((UNITS, pixels)) < (rng.uniform(0.1, 0.5, (UNITS, 1)) if pixels > 1 else 0.5)
        nothing = np.zeros((EMPTY if pixels > 1 else 0, pixels), bool)
        # In some of these units a model is surer that there is nothing.
        calm = rng.uniform(0, 6, (len(nothing), 1))
        for offset in offsets:
            shared, shared_empty = _draw_noise(truth.shape, rng), _draw_noise(nothing.shape, rng)

            def predict(quality: float, lacking: float) -> tuple[NDArray, NDArray]:
                labelled = _predict(quality, lacking, truth, shared, rng)  # noqa: B023
                return labelled, _predict(quality, lacking + calm, nothing, shared_empty, rng)  # noqa: B023

            local = predict(1.5, offset)
            theirs = {name: predict(*values) for name, values in LEARNT.items()}
            theirs["zeros"] = tuple(0 * part for part in local)
            theirs["constant"] = tuple(0 * part + 0.3 for part in local)
            theirs["random"] = tuple(rng.random(part.shape) for part in local)
            for name, federated in theirs.items():
                scores, means = score(federated[0], local[0], truth)
                yield Population(kind, name, offset, scores, means, score(federated[1], local[1], nothing)[0])


def _predict(
    quality: float, offset: float | NDArray, truth: NDArray[np.bool_], shared: NDArray, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return probabilities: models find the same units and pixels hard, and have errors of their own."""
    noise = np.sqrt(0.6) * shared + np.sqrt(0.4) * _draw_noise(truth.shape, rng)
    return expit(quality * np.where(truth, 1, -1) + 1.2 * noise - offset)


def _draw_noise(shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    return 0.6 * rng.normal(size=(shape[0], 1)) + 0.8 * rng.normal(size=shape)


def _score_dice(federated: NDArray, local: NDArray, truth: NDArray) -> tuple[NDArray, NDArray]:
    num_units = len(truth)
    scores = np.empty((2, len(BIASES), num_units))
    units = np.arange(num_units)[:, None]
    for probabilities, found in zip((federated, local), scores, strict=True):
        with np.errstate(divide="ignore"):
            # The number of the first bias that makes the pixel foreground.
            first = np.searchsorted(BIASES, -logit(probabilities), side="right")
        place, size = units * (len(BIASES) + 1) + first, num_units * (len(BIASES) + 1)
        said, both = (
            np.bincount(place.ravel(), one.ravel(), size).reshape(num_units, -1).cumsum(axis=1)[:, :-1]
            for one in (np.ones(truth.shape), truth)
        )
        total = said + truth.sum(axis=1, keepdims=True)
        found[:] = np.where(total > 0, 2 * both / np.maximum(total, 1), 1.0).T
    return scores, scores.mean(axis=-1)


def _score_answers(federated: NDArray, local: NDArray, truth: NDArray) -> tuple[NDArray, NDArray]:
    right = np.stack([np.where(truth, found, 1 - found)[:, 0] for found in (federated, local)])[:, None]
    return right, (right > 0.5).sum(axis=-1) / max(len(truth), 1)


def place_rows(scores: NDArray[np.float64]) -> dict[str, tuple[int, int]]:
    """Return the numbers of the model and bias of each row of the table at a site.

    Args:
        scores: Of the site's validation units, as `Population.validation`.
    """
    biases = BIASES if scores.shape[1] > 1 else np.zeros(1)
    choice, zero = choose_kept(*scores, biases), len(biases) // 2
    kept, own, theirs = (
        int(np.argmin(np.abs(biases - one))) for one in (choice.bias, choice.local_bias, choice.federated_bias)
    )
    return {
        "federated at 0.5": (0, zero),
        FEDERATED: (0, theirs),
        AT_ZERO: (1, zero),
        OWN: (1, own),
        KEPT: (int(choice.keeps_local), kept),
    }


# Federated model, offset and number of units -> row -> the true score at each site.
Cells = dict[tuple[str, float, int], dict[str, NDArray[np.float64]]]
# What a kept model's score is, over which units, and by which of them the site has chosen.
BY_LABELLED, OF_ALL, BY_ALL = "labelled patients", "all patients", "labelled patients, empty ones counted by the rule"
# Which of these, number of units, of them empty -> of each population the kept score minus the own one at 0.5.
Gains = dict[tuple[str, int, int], list[float]]


def measure_empty(
    population: Population, sites: int, rng: np.random.Generator
) -> Iterator[tuple[str, int, int, float]]:
    """Yield what sites gain by the rule over their own model at 0.5, by their units and how many of them are empty."""
    for n in (n for sizes in SIZES.values() for n in sizes):
        for num_empty in NUMBERS_OF_EMPTY:
            if num_empty >= n:
                continue
            # A unit without a label is as frequent elsewhere.
            share = num_empty / n
            all_units = (1 - share) * population.truth + share * population.empty.mean(axis=-1)
            gains: dict[str, list[float]] = {BY_LABELLED: [], OF_ALL: [], BY_ALL: []}
            for _ in range(sites):
                labelled = population.validation[..., rng.choice(UNITS, n - num_empty, replace=False)]
                empty = population.empty[..., rng.choice(EMPTY, num_empty, replace=False)]
                rows = place_rows(labelled)
                counting = place_rows(np.concatenate([labelled, empty], axis=-1))
                gains[BY_LABELLED].append(population.truth[rows[KEPT]] - population.truth[rows[AT_ZERO]])
                gains[OF_ALL].append(all_units[rows[KEPT]] - all_units[rows[AT_ZERO]])
                gains[BY_ALL].append(population.truth[counting[KEPT]] - population.truth[counting[AT_ZERO]])
            for name, values in gains.items():
                yield name, n, num_empty, float(np.mean(values))


def print_empty(gains: Gains) -> None:
    """Print by number of patients, and of empty ones, the mean gain over all populations and that of the worst one."""
    sizes = [n for numbers in SIZES.values() for n in numbers]
    for name in (BY_LABELLED, OF_ALL, BY_ALL):
        print(f"\n| {name} | {' | '.join(f'{k} empty' for k in NUMBERS_OF_EMPTY)} |")
        print(f"|{'---|' * (len(NUMBERS_OF_EMPTY) + 1)}")
        for n in sizes:
            cells = []
            for num_empty in NUMBERS_OF_EMPTY:
                values = gains.get((name, n, num_empty))
                cells.append(f"{np.mean(values):+.3f} / {min(values):+.3f}" if values else "-")
            print(f"| {n} patients | {' | '.join(cells)} |")


def print_classes(cells: Cells) -> None:
    """Print by number of patients what the kept model gains over the own one: on average, and in the worst case."""
    print("\n| right or wrong | mean / worst |\n|---|---|")
    for n in (n for numbers in SIZES.values() for n in numbers):
        values = [(rows[KEPT] - rows[AT_ZERO]).mean() for (_, _, size), rows in cells.items() if size == n]
        print(f"| {n} patients | {np.mean(values):+.3f} / {min(values):+.3f} |")


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
    gains: Gains = {}
    for population in draw_populations(rng):
        kind, federated, offset, validation, truth, _ = population
        for n in (n for sizes in SIZES.values() for n in sizes):
            drawn = [place_rows(validation[..., rng.choice(UNITS, n, replace=False)]) for _ in range(SITES)]
            found[kind][federated, offset, n] = {row: np.array([truth[one[row]] for one in drawn]) for row in drawn[0]}
        for name, n, num_empty, gain in measure_empty(population, SITES, rng) if kind == DICE else ():
            gains.setdefault((name, n, num_empty), []).append(gain)
    for kind, cells in found.items():
        print_table(kind, cells)
    print_empty(gains)
    print_classes(found[CLASSES])


if __name__ == "__main__":
    main()
