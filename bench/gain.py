"""How often a model is said to be better or worse, by the number of test units and by what the models' scores are like.

    python bench/gain.py

A population of units is drawn for each kind of score and each true difference between two models, which find the same
units hard. Counted are intervals that lie above or below 0: with fewer than `LEAST_UNITS` units no verdict follows.
Then comparisons of several hospitals in which nothing is to be gained: how often the mean hospital's gain is called
clear after one start of the training, and how often any hospital gains over several starts. Takes three minutes on one
core; the seed is fixed.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from silofl.core.gain import Effect, average_sites, measure_gain
from silofl_desk.studies.runs.starts import find_gains, measure_starts

UNITS, PIXELS = 4000, 64
SIZES = (6, 10, 15, 19, 20, 30, 40, 100)
# True mean of local minus federated.
DIFFERENCES = (0.0, -0.1)
TRIALS = 400
# Kind of score -> pixels of a unit, of which it is the Dice (of one: right or wrong); share of the units on which the
# local model fails, which is the better one on all others; how far the models' errors are their own.
KINDS = {
    "Dice": (PIXELS, 0.0, 0.8),
    "Dice, models alike": (PIXELS, 0.0, 0.25),
    "Dice, 2 % failures": (PIXELS, 0.02, 0.25),
    "Dice, 5 % failures": (PIXELS, 0.05, 0.25),
    "Dice, 10 % failures": (PIXELS, 0.1, 0.8),
    "right or wrong": (1, 0.0, 0.8),
}
# The federated model fails on a tenth of the units, and is slightly better on all others.
SKEWED, FAILING, SLIGHTLY = "9 of 10 slightly better, one failing", 0.1, 0.03
# Of a comparison of several hospitals without a gain: hospitals and starts, test units of each hospital, and the
# deviation of what a start changes at a hospital, and of what it changes at a unit.
COMPARISONS = ((4, 2), (4, 3), (8, 2), (8, 3))
UNITS_OF_A_HOSPITAL, COMPARED = (6, 10, 20, 50), 400
LUCK, LUCK_OF_A_UNIT = 0.02, 0.01


def draw_differences(
    pixels: int, failures: float, own: float, difference: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return federated minus local scores of all units of a kind, whose mean is minus the difference."""
    shape = UNITS, pixels
    truth = rng.random(shape) < (rng.uniform(0.15, 0.5, (UNITS, 1)) if pixels > 1 else 1.0)
    sign = np.where(truth, 1.0, -1.0)
    difficulty = 0.7 * rng.normal(size=(UNITS, 1)) * sign + rng.normal(size=shape)
    scores = []
    for mean, failing in ((0.8, 0.0), (0.8 + difference, failures)):
        logits = difficulty + own * (rng.normal(size=(UNITS, 1)) * sign + rng.normal(size=shape))
        logits -= 8 * sign * (rng.random((UNITS, 1)) < failing)
        scores.append(_score(logits + sign * _find_shift(logits, sign, truth, mean) > 0, truth))
    return scores[0] - scores[1]


def draw_skewed(difference: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return federated minus local scores of all units, whose mean is minus the difference; see `SKEWED`."""
    loss = SLIGHTLY * (1 - FAILING) / FAILING
    differences = np.where(rng.random(UNITS) < FAILING, -loss, SLIGHTLY) + rng.normal(0, 0.005, UNITS)
    return differences - differences.mean() - difference


def _find_shift(logits: NDArray, sign: NDArray, truth: NDArray, mean: float) -> float:
    """Return by how much logits must move towards the truth for a mean score."""
    low, high = -8.0, 16.0
    for _ in range(25):
        middle = (low + high) / 2
        is_below = _score(logits + middle * sign > 0, truth).mean() < mean
        low, high = (middle, high) if is_below else (low, middle)
    return high


def _score(predictions: NDArray, truth: NDArray) -> NDArray[np.float64]:
    size = predictions.sum(axis=1) + truth.sum(axis=1)
    return np.where(size == 0, 1.0, 2 * (predictions & truth).sum(axis=1) / np.maximum(size, 1))


def count_intervals(samples: NDArray) -> str:
    """Return how many samples of differences, one a row, have an interval above / below 0."""
    gains = [measure_gain(np.zeros(len(sample)), sample) for sample in samples]
    above = sum(gain.low > 0 for gain in gains)
    below = sum(gain.high < 0 for gain in gains)
    return f"{above / len(gains):.1%} / {below / len(gains):.1%}"


def draw_comparable(rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """Return kind -> federated minus local scores of all its units, whose mean is 0.

    Where the local model fails on few units its failures are seen as gains; the exceptions are the kinds in which the
    federated model does.
    """
    populations = {}
    for name, kind in KINDS.items():
        differences = draw_differences(*kind, 0.0, rng)
        populations[name] = differences
        if "failures" in name:
            populations[f"{name} of the federated model"] = -differences
    populations[SKEWED] = draw_skewed(0.0, rng)
    return populations


def count_gains(population: NDArray, hospitals: int, starts: int, units: int, rng: np.random.Generator) -> str:
    """Return how often any hospital gains over several starts by its interval alone / after Holm's correction."""
    alone, corrected = 0, 0
    for _ in range(COMPARED):
        sites = {}
        for hospital in range(hospitals):
            own = population[rng.integers(UNITS, size=units)]
            luck = rng.normal(0, LUCK, (starts, 1)) + rng.normal(0, LUCK_OF_A_UNIT, (starts, units))
            sites[str(hospital)] = [_summarise(own + of_start) for of_start in luck]
        effects = measure_starts(sites)
        alone += any(effect.low > 0 for effect in effects.values())
        corrected += bool(find_gains(effects))
    return f"{alone / COMPARED:.1%} / {corrected / COMPARED:.1%}"


def count_clear(population: NDArray, hospitals: int, units: int, rng: np.random.Generator) -> str:
    """Return how often the mean difference of all hospitals in one start is a clear gain / a clear loss."""
    gains, losses = 0, 0
    for _ in range(COMPARED):
        samples = population[rng.integers(UNITS, size=(hospitals, units))]
        mean = average_sites([_summarise(sample) for sample in samples])
        gains += mean is not None and mean.low > 0
        losses += mean is not None and mean.high < 0
    return f"{gains / COMPARED:.1%} / {losses / COMPARED:.1%}"


def _summarise(differences: NDArray) -> Effect:
    number = len(differences)
    return Effect(float(differences.mean()), float(differences.std(ddof=1)) / number**0.5, number)


def print_comparisons(rng: np.random.Generator) -> None:
    """Print how often hospitals that gain nothing are said to gain, all together and each of them."""
    populations = draw_comparable(rng)
    for hospitals, starts in ((4, 1), (8, 1), *COMPARISONS):
        what = f"{hospitals} hospitals, {starts} starts, any gains: by its interval / after Holm"
        if starts == 1:
            what = f"{hospitals} hospitals, one start, the mean is a clear gain / a clear loss"
        print(f"\n| {what} | {' | '.join(f'{n} units each' for n in UNITS_OF_A_HOSPITAL)} |")
        print(f"|{'---|' * (len(UNITS_OF_A_HOSPITAL) + 1)}")
        for name, population in populations.items():
            if starts == 1:
                cells = [count_clear(population, hospitals, n, rng) for n in UNITS_OF_A_HOSPITAL]
            else:
                cells = [count_gains(population, hospitals, starts, n, rng) for n in UNITS_OF_A_HOSPITAL]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print how often sites are said to gain and to lose where the true difference is 0, and where it is not."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rng = np.random.default_rng(0)
    for difference in DIFFERENCES:
        print(f"\n| local minus federated {difference:+} | {' | '.join(f'{n} units' for n in SIZES)} |")
        print(f"|{'---|' * (len(SIZES) + 1)}")
        populations = {name: draw_differences(*kind, difference, rng) for name, kind in KINDS.items()}
        populations[SKEWED] = draw_skewed(difference, rng)
        for name, population in populations.items():
            cells = [count_intervals(population[rng.integers(UNITS, size=(TRIALS, n))]) for n in SIZES]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print_comparisons(np.random.default_rng(1))


if __name__ == "__main__":
    main()
