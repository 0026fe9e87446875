"""What the federated model gives a site against its own, on its test units.

A paired permutation test gives the verdict and the interval: Hartigan, Using subsample values as typical values,
Journal of the American Statistical Association 1969; Holm, A simple sequentially rejective multiple test procedure,
Scandinavian Journal of Statistics 1979; degrees of freedom: Satterthwaite, An approximate distribution of estimates of
variance components, Biometrics Bulletin 1946.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from silofl.core.intervals import ROUNDING

Key = TypeVar("Key", bound=Hashable)
# Of the model that a site keeps against its own. One start says nothing of the next: none is said of joining.
Verdict = Literal[
    "better for its patients",
    "no clear difference",
    "worse for its patients",
    "too few to say",
    "keeps its own model",
    "not trained to the end",
]
BETTER: Verdict = "better for its patients"
WORSE: Verdict = "worse for its patients"
UNFINISHED: Verdict = "not trained to the end"
# Where fewer show no difference, more would tell; where as many show none, there is hardly one that matters.
MIN_UNITS = 20
# Of the test on each side, and outside the interval on each side.
LEVEL = 0.025
# How often, at most, chance alone names a site that gains, or one that loses, in all rows of a comparison.
FAMILY_LEVEL = 0.05
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
    """What a site's test units say of the federated model, against its own.

    Attributes:
        verdict: Of the model that it keeps: better or worse where the interval lies above or below 0.
        difference: Mean paired difference of the federated model minus the own one; None without units.
        standard_error: Of that mean; None of fewer than two units.
        low: Lower end of its 95 % interval; None of fewer than `LEAST_UNITS` units.
        high: Upper end.
        num_test_units: Units in which both have a score.
        needed_units: About how many units would do, where they are too few to say.
        p_below: One-sided p-value of the federated model's being no worse than the own one.
    """

    verdict: Verdict
    difference: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    num_test_units: int
    needed_units: int | None = None
    p_below: float | None = None


class Effect(NamedTuple):
    """The mean difference of two models at a site, federated minus local, its standard error, and its test units."""

    difference: float
    standard_error: float
    num_units: int


class MeanEffect(NamedTuple):
    """A mean difference, federated minus local, its 95 % interval, and the p value of no difference, two-sided."""

    difference: float
    low: float
    high: float
    p_value: float


def describe_few_units(tested: Mapping[str, int]) -> list[str]:
    """Name the sites whose test units are too few for any verdict, in a sentence; none where all have enough.

    Args:
        tested: Site -> units of its test data.
    """
    few = ", ".join(f"{number} ({site})" for site, number in tested.items() if number < LEAST_UNITS)
    sentence = (
        f"a verdict on joining takes at least {LEAST_UNITS} test patients per site, not {few}: put more patients into "
        "the test, as with a larger silofl import --test"
    )
    return [sentence] if few else []


def measure_joining(
    own: NDArray[np.float64],
    at_zero: NDArray[np.float64],
    federated: NDArray[np.float64],
    keeps_own: bool = False,
    are_finished: bool = True,
) -> Gain:
    """Compare the federated model with a site's own; it is better only if it also is without the own model's bias.

    Args:
        own: Score of each independent test unit of the own model with its bias, shape (N,); NaN where a unit has none.
        at_zero: The same of the own model without a bias.
        federated: The same of the federated model with its bias.
        keeps_own: The site keeps its own model.
        are_finished: Both were trained to their end.
    """
    gain = measure_gain(own, federated)
    if not are_finished:
        return replace(gain, verdict=UNFINISHED, needed_units=None)
    if keeps_own:
        return replace(gain, verdict="keeps its own model", needed_units=None)
    if gain.verdict != BETTER:
        return gain
    other = measure_gain(at_zero, federated)
    is_one = other.verdict in (BETTER, "too few to say")
    return replace(gain, verdict=other.verdict if is_one else "no clear difference", needed_units=other.needed_units)


def measure_gain(own: NDArray[np.float64], federated: NDArray[np.float64]) -> Gain:
    """Compare the federated model with the own one by a paired permutation test, one-sided at 2.5 % each way.

    The test exchanges the two models' scores of units. It can say something from six units on, and it holds where each
    difference is as likely as its opposite. Where a model fails on few units and is the better one on all others it
    does not: most sites have not seen the failure. `bench/gain.py` measures both.

    Args:
        own: Score of each independent test unit, shape (N,); NaN where a unit has none.
        federated: The federated model's, of the same units in the same order.
    """
    differences = federated - own
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    means = average_subsets(differences)
    # With every subset the exchange of none counts, which leaves all as it is.
    p_below, p_above = ((1 + int(worse.sum())) / (1 + len(means)) for worse in (means >= 0, means <= 0))
    is_better, is_worse = p_above <= LEVEL, p_below <= LEVEL
    verdict: Verdict = "no clear difference" if n >= MIN_UNITS else "too few to say"
    if is_better or is_worse:
        verdict = BETTER if is_better else WORSE
    needed = estimate_needed_units(differences) if verdict == "too few to say" else None
    difference = float(differences.mean()) if n else None
    error = float(differences.std(ddof=1) / sqrt(n)) if n > 1 else None
    low, high = find_mean_interval(means)
    return Gain(verdict, difference, error, low, high, n, needed, p_below)


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


def find_mean_interval(means: NDArray[np.float64]) -> tuple[float, float] | tuple[None, None]:
    """Return the ends of the 95 % interval of the mean difference; none where no subset may be left out.

    These are the true differences that the test of `measure_gain` does not refuse (Hartigan's typical values), so that
    0 lies outside exactly where a site gains or loses.

    Args:
        means: Of the subsets, sorted.
    """
    outside = int(LEVEL * (1 + len(means)) + 1e-9) - 1
    return (float(means[outside]), float(means[-1 - outside])) if outside >= 0 else (None, None)


def estimate_needed_units(differences: NDArray[np.float64]) -> int | None:
    """Return about how many units would do for a verdict: ``(2.8 s / d)^2``, and at least one more and six.

    d is the mean and s the standard deviation of the differences seen. Where they tell neither, six of fewer, and else
    None: nobody knows.

    Args:
        differences: Of each unit, shape (N,).
    """
    n = len(differences)
    if n < 2 or not differences.any() or not (mean := abs(float(differences.mean()))):
        return LEAST_UNITS if n < LEAST_UNITS else None
    wanted = (POWER * float(differences.std(ddof=1)) / mean) ** 2
    return max(LEAST_UNITS, n + 1, ceil(min(wanted, MOST_UNITS)))


def average_sites(effects: Sequence[Effect]) -> MeanEffect | None:
    """Average what one start of the training gives several sites; None of fewer than two.

    Each site has the same weight 1 / K, whatever its patients: the standard error is ``sqrt(sum se_i^2) / K``. The
    interval holds for new patients of these sites, and for this start only.

    Args:
        effects: One of each site, all with at least two test units.
    """
    if len(effects) < 2:
        return None
    mean = sum(effect.difference for effect in effects) / len(effects)
    return describe_mean(
        mean, [((effect.standard_error / len(effects)) ** 2, effect.num_units - 1) for effect in effects]
    )


def describe_mean(mean: float, variances: Sequence[tuple[float, int]]) -> MeanEffect:
    """Return a mean with Student's interval and p value; degrees of freedom ``(sum v_i)^2 / sum(v_i^2 / f_i)``.

    Args:
        variances: What the variance of the mean is the sum of, each with its degrees of freedom.
    """
    # Imported here: it takes long, and a run that trains needs it at its end alone.
    from scipy.stats import t

    variance = sum(part for part, _ in variances)
    if not variance > ROUNDING**2:
        # Units that are all alike show no spread, which is not that there is none.
        return MeanEffect(mean, mean, mean, 1.0)
    freedom = variance**2 / sum(part**2 / of_part for part, of_part in variances)
    margin = float(t.ppf(1 - LEVEL, freedom)) * sqrt(variance)
    return MeanEffect(mean, mean - margin, mean + margin, 2 * float(t.sf(abs(mean) / sqrt(variance), freedom)))


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return the p-values after Holm's correction: the k-th smallest of n times n - k + 1, never falling."""
    ordered = sorted(p_values, key=p_values.__getitem__)
    factors = np.arange(len(ordered), 0, -1)
    corrected = np.minimum(np.maximum.accumulate(factors * [p_values[name] for name in ordered]), 1.0)
    found = dict(zip(ordered, corrected.tolist(), strict=True))
    return {name: found[name] for name in p_values}
