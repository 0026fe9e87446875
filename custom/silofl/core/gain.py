"""What a site gains by taking part: the model that it chose against the one that it trained alone, on its test units.

A paired permutation test gives the verdict and the interval: Hartigan, Using subsample values as typical values,
Journal of the American Statistical Association 1969; Holm, A simple sequentially rejective multiple test procedure,
Scandinavian Journal of Statistics 1979.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["gains", "no clear difference", "loses", "too few to say", "keeps its own model"]
# Where fewer show no difference, more would tell; where as many show none, there is hardly one that matters.
MIN_UNITS = 20
# Of the test on each side, and outside the interval on each side.
LEVEL = 0.025
# Units of which all exchanges are tried, 2 ** 13, and the random ones of more, with their seed.
EXACT, RESAMPLES, SEED = 13, 9999, 0
# The least of which the test can say something: five units that agree have 2 ** -5, which is 3.1 %.
LEAST_UNITS = 6
# The sum of the normal quantiles of 97.5 % and 80 %: with that many units four of five tests would see the difference.
POWER = 2.8
# More is no number that anybody plans by.
MOST_UNITS = 10**6


@dataclass(frozen=True)
class Gain:
    """What a site's test units say of the model that it chose, against its own local model.

    Attributes:
        verdict: ``gains`` or ``loses`` where the interval lies above or below 0.
        difference: Mean paired difference of chosen minus local; None where there is no unit, or one model only.
        low: Lower end of its 95 % interval; None of fewer than `LEAST_UNITS` units, or of one model only.
        high: Upper end.
        num_test_units: Units in which both have a score.
        needed_units: About how many units would do, where they are too few to say.
        p_below: One-sided p-value of the chosen model's being no worse than the local one; None of one model only.
    """

    verdict: Verdict
    difference: float | None
    low: float | None
    high: float | None
    num_test_units: int
    needed_units: int | None = None
    p_below: float | None = None


def measure_joining(
    own: NDArray[np.float64], at_zero: NDArray[np.float64], kept: NDArray[np.float64], keeps_own: bool = False
) -> Gain:
    """Compare what a site keeps with its own model; it gains only if it also does against that without a bias.

    Args:
        own: Score of each independent test unit of the own model with its bias, shape (N,); NaN where a unit has none.
        at_zero: The same of the own model without a bias.
        kept: The same of the kept model.
        keeps_own: The kept model is the own one.
    """
    gain = measure_gain(own, kept)
    if keeps_own:
        return Gain("keeps its own model", None, None, None, gain.num_test_units)
    if gain.verdict != "gains":
        return gain
    other = measure_gain(at_zero, kept)
    verdict: Verdict = other.verdict if other.verdict in ("gains", "too few to say") else "no clear difference"
    return replace(gain, verdict=verdict, needed_units=other.needed_units)


def measure_gain(local: NDArray[np.float64], chosen: NDArray[np.float64]) -> Gain:
    """Compare the chosen model with the local one by a paired permutation test, one-sided at 2.5 % each way.

    The test exchanges the two models' scores of units. It can say something from six units on, and it holds where each
    difference is as likely as its opposite. Where a model fails on few units and is the better one on all others it
    does not: most sites have not seen the failure. `bench/gain.py` measures both.

    Args:
        local: Score of each independent test unit, shape (N,); NaN where a unit has none.
        chosen: The chosen model's, of the same units in the same order.
    """
    differences = chosen - local
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    means = average_subsets(differences)
    # With every subset the exchange of none counts, which leaves all as it is.
    p_below, p_above = ((1 + int(worse.sum())) / (1 + len(means)) for worse in (means >= 0, means <= 0))
    verdict: Verdict = "gains" if p_above <= LEVEL else "loses" if p_below <= LEVEL else "no clear difference"
    if verdict == "no clear difference" and n < MIN_UNITS:
        verdict = "too few to say"
    needed = estimate_needed_units(differences) if verdict == "too few to say" else None
    difference = float(differences.mean()) if n else None
    low, high = find_interval(means)
    return Gain(verdict, difference, low, high, n, needed, p_below)


def average_subsets(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sorted means of subsets of differences (N,): of all, or of 9999 random ones of more than 13.

    An exchange of these units' scores makes a mean difference as large as that seen where their mean is at most 0.
    """
    n = len(differences)
    if n <= EXACT:
        members = np.arange(1, 2**n)[:, None] >> np.arange(n) & 1
        pieces = [members]
    else:
        rng = np.random.default_rng(SEED)
        pieces = [rng.integers(0, 2, (1111, n), np.int8) for _ in range(RESAMPLES // 1111)]
    # Rounded, or a sum of nothing in decimals would not be nothing.
    found = [(piece @ differences / np.maximum(piece.sum(axis=1), 1)).round(12) for piece in pieces]
    return np.sort(np.concatenate(found))


def find_interval(means: NDArray[np.float64]) -> tuple[float, float] | tuple[None, None]:
    """Return the ends of the 95 % interval of the mean difference; none where no subset may be left out.

    These are the true differences that the test of `measure_gain` does not refuse (Hartigan's typical values), so that
    0 lies outside exactly where a site gains or loses.

    Args:
        means: Of the subsets, sorted.
    """
    outside = int(LEVEL * (1 + len(means)) + 1e-9) - 1
    return (float(means[outside]), float(means[-1 - outside])) if outside >= 0 else (None, None)


def estimate_needed_units(differences: NDArray[np.float64]) -> int:
    """Return about how many units would do for a verdict: ``(2.8 s / d)^2``, and at least one more and six.

    d is the mean and s the standard deviation of the differences seen. Where they tell neither, the least number with
    which the test can say anything.

    Args:
        differences: Of each unit, shape (N,).
    """
    n = len(differences)
    if n < 2 or not differences.any() or not (mean := abs(float(differences.mean()))):
        return max(LEAST_UNITS, n + 1)
    wanted = (POWER * float(differences.std(ddof=1)) / mean) ** 2
    return max(LEAST_UNITS, n + 1, ceil(min(wanted, MOST_UNITS)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return the p-values after Holm's correction: the k-th smallest of n times n - k + 1, never falling."""
    ordered = sorted(p_values, key=p_values.__getitem__)
    factors = np.arange(len(ordered), 0, -1)
    corrected = np.minimum(np.maximum.accumulate(factors * [p_values[name] for name in ordered]), 1.0)
    found = dict(zip(ordered, corrected.tolist(), strict=True))
    return {name: found[name] for name in p_values}


# Verdict -> what one hospital does, and what several do.
_WORDS: dict[Verdict, tuple[str, str]] = {
    "gains": ("gains", "gain"),
    "no clear difference": ("has no clear difference", "have no clear difference"),
    "loses": ("loses", "lose"),
    "too few to say": ("has too few test cases to say", "have too few test cases to say"),
    "keeps its own model": ("keeps its own model", "keep their own model"),
}


def count_verdicts(verdicts: Iterable[Verdict]) -> list[str]:
    """Return how many sites have each verdict, as ``2 gain`` and ``1 keeps its own model``."""
    counts = Counter(verdicts)
    return [f"{counts[one]} {words[counts[one] > 1]}" for one, words in _WORDS.items() if counts[one]]


def federation_sentence(verdicts: Mapping[str, Verdict]) -> str:
    """Return one sentence on all hospitals: how many have each verdict, and which of them lose.

    That none loses is said only where every one gains or keeps its own model: what was not seen may be there. Where no
    one has enough cases for a verdict, nothing is said of a loss, because none could have been seen.

    Args:
        verdicts: Name of a site -> its verdict.
    """
    if not verdicts:
        return "No hospital has been tested."
    counts = Counter(verdicts.values())
    losing = sorted(site for site, verdict in verdicts.items() if verdict == "loses")
    if losing:
        end = f"{_join_with_and(losing)} {_WORDS['loses'][len(losing) > 1]} by joining"
    elif counts["too few to say"] + counts["keeps its own model"] == len(verdicts) > counts["keeps its own model"]:
        end = "nobody can tell yet whether joining pays"
    elif counts["no clear difference"] or counts["too few to say"]:
        end = "none is seen to lose by joining"
    else:
        end = "none loses by joining"
    if len(verdicts) == 1:
        return f"The only hospital {_WORDS[next(iter(verdicts.values()))][0]}: {end}."
    return f"Of {len(verdicts)} hospitals, {_join_with_and(count_verdicts(verdicts.values()))}: {end}."


def _join_with_and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
