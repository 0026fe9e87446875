"""What a site gains by taking part: the model that it chose against the one that it trained alone, on its test units.

The bootstrap's percentile interval, expanded for few units: Hesterberg, What teachers should know about the bootstrap,
The American Statistician 2015, arXiv:1411.5279; Holm, A simple sequentially rejective multiple test procedure,
Scandinavian Journal of Statistics 1979.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from silofl.errors import ConfigError

Verdict = Literal["gains", "no clear difference", "loses", "too few to say", "keeps its own model"]
# Of fewer units no interval is what it says, right or wrong answers above all (`bench/gain.py`).
MIN_UNITS = 20
# Of a permutation test in place of an interval, on each side, as the interval's; five units that agree have 2 ** -5.
LEVEL = 0.025
RESAMPLES = 9999
# Of the bootstrap and of the random exchanges.
SEED = 0
# Of a permutation test on one side of at most 2.5 %: five units that agree have 3.1 %.
LEAST_UNITS = 6
# The sum of the normal quantiles of 97.5 % and 80 %: with that many units four of five tests would see the difference.
POWER = 2.8
# More is no number that anybody plans by.
MOST_UNITS = 10**6


@dataclass(frozen=True)
class Gain:
    """What a site's test units say of the model that it chose, against its own local model.

    Attributes:
        verdict: ``gains`` or ``loses`` where the interval lies above or below 0, or the test of few units says so.
        difference: Mean paired difference of chosen minus local; None where there is no unit, or one model only.
        low: Lower end of its 95 % interval; None of fewer than `MIN_UNITS` units, or of one model only.
        high: Upper end.
        num_units: Units in which both have a score.
        needed_units: About how many units would do, where they are too few to say.
    """

    verdict: Verdict
    difference: float | None
    low: float | None
    high: float | None
    num_units: int
    needed_units: int | None = None


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
    if keeps_own:
        return Gain("keeps its own model", None, None, None, _pair_scores(own, kept).shape[1])
    gain = measure_gain(own, kept)
    if gain.verdict != "gains":
        return gain
    other = measure_gain(at_zero, kept)
    verdict = other.verdict if other.verdict in ("gains", "too few to say") else "no clear difference"
    return replace(gain, verdict=verdict, needed_units=other.needed_units)


def measure_gain(local: NDArray[np.float64], chosen: NDArray[np.float64]) -> Gain:
    """Compare the chosen model with the local one by a paired 95 % bootstrap interval, of few units by a test.

    The interval is the percentile interval, at the wider level that Student's quantile and the divisor n - 1 ask for.

    Of fewer than 20 units the verdict is that of the paired permutation test `p_below`, one-sided at 2.5 % for each of
    gains and loses, which takes at least six units. That holds where each difference is as likely as its opposite.
    Where a model fails on few units and is the better one on all others it does not, as with the interval: most sites
    have not seen the failure. `bench/gain.py` measures both.

    Args:
        local: Score of each independent test unit, shape (N,); NaN where a unit has none.
        chosen: The chosen model's, of the same units in the same order.
    """
    differences = np.diff(_pair_scores(local, chosen), axis=0)[0]
    n = len(differences)
    difference = float(differences.mean()) if n else None
    if n < MIN_UNITS:
        verdict = _judge_few(local, chosen, difference or 0.0)
        needed = estimate_needed_units(differences) if verdict == "too few to say" else None
        return Gain(verdict, difference, None, None, n, needed)
    low, high = map(float, estimate_interval(differences))
    verdict = "gains" if low > 0 else "loses" if high < 0 else "no clear difference"
    return Gain(verdict, difference, low, high, n)


def _judge_few(local: NDArray[np.float64], chosen: NDArray[np.float64], difference: float) -> Verdict:
    """Return what the permutation test says of too few units for an interval."""
    verdict, pair = ("loses", (local, chosen)) if difference < 0 else ("gains", (chosen, local))
    return verdict if p_below(*pair) <= LEVEL else "too few to say"


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


def estimate_interval(
    differences: NDArray[np.float64], resamples: int = RESAMPLES
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of the 95 % interval of the mean of each row of differences (..., n), n at least 2."""
    # Imported here because it takes a second, which a site that only trains does not need.
    from scipy.special import ndtr, stdtrit
    from scipy.stats import bootstrap

    n = differences.shape[-1]
    # The bootstrap's spread is too small by the factor sqrt((n - 1) / n), and its tails are thinner than Student's.
    outside = float(ndtr(-np.sqrt(n / (n - 1)) * stdtrit(n - 1, 0.975)))
    settings = {"n_resamples": resamples, "batch": 100, "method": "percentile", "confidence_level": 1 - 2 * outside}
    found = bootstrap((differences,), np.mean, axis=-1, rng=SEED, **settings).confidence_interval
    return found.low, found.high


def p_below(local: NDArray[np.float64], chosen: NDArray[np.float64]) -> float:
    """Return the one-sided p-value of the hypothesis that the chosen model is no worse than the local one.

    It is small where the model is worse. A paired permutation test of the mean difference, which exchanges the two
    models' scores of a unit: all exchanges up to 13 units, 9999 random ones beyond. Without a unit it is 1.

    Args:
        local: Score of each independent test unit, shape (N,); NaN where a unit has none.
        chosen: The chosen model's, of the same units in the same order.
    """
    from scipy.stats import permutation_test

    pairs = _pair_scores(local, chosen)
    # One unit is as likely better as worse, and scipy permutes at least two.
    if pairs.shape[1] < 2:
        return 1.0 - 0.5 * float((pairs[1] < pairs[0]).any())
    settings = {"permutation_type": "samples", "alternative": "greater", "n_resamples": RESAMPLES, "batch": 1000}
    found = permutation_test(
        tuple(pairs), lambda ours, theirs, axis: (ours - theirs).mean(axis=axis), rng=SEED, vectorized=True, **settings
    )
    return float(found.pvalue)


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


def federation_sentence(gains: Mapping[str, Gain]) -> str:
    """Return one sentence on all hospitals: how many have each verdict, and which of them lose.

    That none loses is said only where every one gains or keeps its own model: what was not seen may be there. Where no
    one has enough cases for a verdict, nothing is said of a loss, because none could have been seen.

    Args:
        gains: Name of a site -> its gain.
    """
    if not gains:
        return "No hospital has been tested."
    counts = Counter(gain.verdict for gain in gains.values())
    parts = [f"{counts[verdict]} {words[counts[verdict] > 1]}" for verdict, words in _WORDS.items() if counts[verdict]]
    losing = sorted(site for site, gain in gains.items() if gain.verdict == "loses")
    if losing:
        end = f"{_join_with_and(losing)} {_WORDS['loses'][len(losing) > 1]} by joining"
    elif counts["too few to say"] + counts["keeps its own model"] == len(gains) > counts["keeps its own model"]:
        end = "nobody can tell yet whether joining pays"
    elif counts["no clear difference"] or counts["too few to say"]:
        end = "none is seen to lose by joining"
    else:
        end = "none loses by joining"
    return f"Of {len(gains)} hospital{'s'[: len(gains) > 1]} {_join_with_and(parts)}: {end}."


def _join_with_and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _pair_scores(local: NDArray[np.float64], chosen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return both scores (2, n) of the units that have both."""
    if np.shape(local) != np.shape(chosen):
        raise ConfigError(
            f"local and chosen model must have scores of the same units, not {np.shape(local)} and {np.shape(chosen)}"
        )
    pairs = np.stack([np.asarray(local, np.float64), np.asarray(chosen, np.float64)])
    return pairs[:, np.isfinite(pairs).all(axis=0)]
