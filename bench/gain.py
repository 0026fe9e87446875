"""How often each interval of a site's gain holds the true one, and how often few units get a wrong verdict.

    python bench/gain.py

A population of units is drawn for each kind of score and each true difference between two models, which find the same
units hard. Takes about a minute and a half on one core; the seed is fixed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import stdtrit

from silofl.algorithms.gain import estimate_interval, measure_gain

UNITS, PIXELS = 4000, 64
SIZES = (5, 10, 15, 20, 30, 50, 100)
DIFFERENCES = (-0.1, 0.0, 0.1)
TRIALS, RESAMPLES = 500, 999
# Of the verdicts without an interval.
FEW, FEW_TRIALS = (5, 6, 8, 10, 19), 400
Ends = tuple[NDArray, NDArray]


@dataclass(frozen=True)
class Kind:
    """What a unit's score is, and how the local model may fail.

    Attributes:
        name: For the table.
        pixels: 1: right or wrong; more: the Dice of as many pixels.
        failures: Share of the units on which the local model fails, which is the better one on all others.
        own: How far the models' errors are their own.
    """

    name: str
    pixels: int = PIXELS
    failures: float = 0.0
    own: float = 0.8


KINDS = (
    Kind("Dice"),
    Kind("Dice, models alike", own=0.25),
    Kind("Dice, 2 % failures", failures=0.02, own=0.25),
    Kind("Dice, 5 % failures", failures=0.05, own=0.25),
    Kind("Dice, 10 % failures", failures=0.1),
    Kind("right or wrong", pixels=1),
)


def draw_differences(kind: Kind, difference: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return federated minus local scores of all units, whose mean is minus the difference."""
    shape = UNITS, kind.pixels
    truth = rng.random(shape) < (rng.uniform(0.15, 0.5, (UNITS, 1)) if kind.pixels > 1 else 1.0)
    sign = np.where(truth, 1.0, -1.0)
    difficulty = 0.7 * rng.normal(size=(UNITS, 1)) * sign + rng.normal(size=shape)
    scores = []
    for mean, failures in ((0.8, 0.0), (0.8 + difference, kind.failures)):
        logits = difficulty + kind.own * (rng.normal(size=(UNITS, 1)) * sign + rng.normal(size=shape))
        logits -= 8 * sign * (rng.random((UNITS, 1)) < failures)
        scores.append(_score(logits + sign * _find_shift(logits, sign, truth, mean) > 0, truth))
    return scores[0] - scores[1]


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


def bootstrap(method: str) -> Callable[[NDArray], Ends]:
    """Return scipy's bootstrap interval; of equal differences it is their mean."""

    def ends(differences: NDArray) -> Ends:
        settings = {"axis": -1, "n_resamples": RESAMPLES, "batch": 100, "method": method, "rng": 0}
        # BCa warns of equal differences, and has no interval of them.
        with np.errstate(invalid="ignore"), catch_warnings():
            simplefilter("ignore", stats.DegenerateDataWarning)
            found = stats.bootstrap((differences,), np.mean, **settings).confidence_interval
        mean = differences.mean(axis=-1)
        return np.where(np.isnan(found.low), mean, found.low), np.where(np.isnan(found.high), mean, found.high)

    return ends


def student(differences: NDArray) -> Ends:
    """Return Student's interval."""
    n = differences.shape[-1]
    half = stdtrit(n - 1, 0.975) * differences.std(axis=-1, ddof=1) / np.sqrt(n)
    mean = differences.mean(axis=-1)
    return mean - half, mean + half


INTERVALS: dict[str, Callable[[NDArray], Ends]] = {
    "percentile": bootstrap("percentile"),
    "BCa": bootstrap("BCa"),
    "**expanded percentile**": lambda differences: estimate_interval(differences, resamples=RESAMPLES),
    "Student": student,
}


def main() -> None:
    """Print each interval's coverage by the number of units, and the verdicts of few."""
    rng = np.random.default_rng(0)
    differences = {
        (kind, difference): draw_differences(kind, difference, rng) for kind, difference in product(KINDS, DIFFERENCES)
    }
    groups = {
        "Dice": [key for key in differences if key[0].pixels > 1 and not key[0].failures],
        "right or wrong": [key for key in differences if key[0].pixels == 1],
        "Dice, one model fails at times": [key for key in differences if key[0].failures],
    }
    for group, keys in groups.items():
        print(f"\n| {group}: units | {' | '.join(INTERVALS)} |\n|{'---|' * (len(INTERVALS) + 1)}")
        for n in SIZES:
            samples = [(differences[key], differences[key][rng.integers(UNITS, size=(TRIALS, n))]) for key in keys]
            columns = [[coverage(ends(sample), one.mean()) for one, sample in samples] for ends in INTERVALS.values()]
            print(f"| {n} | {' | '.join(f'{np.mean(c):.1%} (lowest {np.min(c):.1%})' for c in columns)} |")
    print_verdicts(differences, rng)


def print_verdicts(differences: dict[tuple[Kind, float], NDArray], rng: np.random.Generator) -> None:
    """Print how often few units are said to gain and to lose where the true difference is 0.

    In a kind with failures the local model fails at times and is the better one on all other units.
    """
    print(f"\n| models that are equally good | {' | '.join(f'{n} units' for n in FEW)} |\n|{'---|' * (len(FEW) + 1)}")
    for kind in KINDS:
        of_kind = differences[kind, 0.0]
        cells = []
        for n in FEW:
            drawn = of_kind[rng.integers(UNITS, size=(FEW_TRIALS, n))]
            found = [measure_gain(np.zeros(n), one).verdict for one in drawn]
            cells.append(" / ".join(f"{found.count(verdict) / FEW_TRIALS:.1%}" for verdict in ("gains", "loses")))
        print(f"| {kind.name} | {' | '.join(cells)} |")


def coverage(ends: Ends, truth: float) -> float:
    """Return how often the ends hold the true mean, which rounding must not decide."""
    return float(np.mean((ends[0] <= truth + 1e-9) & (ends[1] >= truth - 1e-9)))


if __name__ == "__main__":
    main()
