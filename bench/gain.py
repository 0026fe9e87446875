"""How often each interval of a site's gain holds the true one, and how often few units get a wrong verdict.

    python bench/gain.py

Of the populations of `bench/guard.py`. Takes about a minute and a half on one core; the seed is fixed.
"""

from collections.abc import Callable
from itertools import product
from warnings import catch_warnings, simplefilter

import numpy as np
from guard import FEDERATED, KINDS, LOCAL, UNITS, Kind, population
from numpy.typing import NDArray
from scipy import stats
from scipy.special import stdtrit

from silofl.algorithms.gain import estimate_interval, measure_gain

SIZES = (5, 10, 15, 20, 30, 50, 100)
DIFFERENCES = (-0.1, 0.0, 0.1)
TRIALS, RESAMPLES = 500, 999
# Of the verdicts without an interval.
FEW, FEW_TRIALS = (5, 6, 8, 10, 19), 400
Ends = tuple[NDArray, NDArray]


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
    differences = {}
    for kind, difference in product(KINDS, DIFFERENCES):
        scores, _ = population(kind, difference, True, rng)
        differences[kind, difference] = scores[FEDERATED] - scores[LOCAL]
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
