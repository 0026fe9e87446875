"""What the federated model gives a site against its own, on its test units.

Two tests give the verdict and the interval, and both must agree. The paired permutation test holds where a difference
is as likely as its opposite: Hartigan, Using subsample values as typical values, Journal of the American Statistical
Association 1969. The t test without skewness also holds where a model fails on few patients and some have been seen:
Hall, On the removal of skewness by transformation, Journal of the Royal Statistical Society B 1992. Holm, A simple
sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 1979. Degrees of freedom of a mean
over sites: Satterthwaite, An approximate distribution of estimates of variance components, Biometrics Bulletin 1946.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

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
# Fewer get no verdict: of a model that fails on one patient in ten, too many sites with fewer have seen no failure
# (`bench/gain.py`). Where as many show no difference, there is hardly one that matters.
LEAST_UNITS = 20
# Of the test on each side, and outside the interval on each side.
LEVEL = 0.025
# How often, at most, chance alone names a site that gains, or one that loses, in all rows of a comparison.
FAMILY_LEVEL = 0.05
# Units of which all exchanges are tried, 2 ** 13, and the random ones of more, with their seed.
EXACT, RESAMPLES, SEED = 13, 9999, 0
# Differences and a skewness below this are 0.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Gain:
    """What a site's test units say of the federated model, against its own.

    Attributes:
        verdict: Of the model that it keeps: better or worse where the interval lies above or below 0.
        difference: Mean paired difference of the federated model minus the own one; None without units.
        standard_error: Of that mean; None of fewer than two units.
        low: Lower end of its 95 % interval; None of fewer than six units.
        high: Upper end.
        num_test_units: Units in which both have a score.
        p_below: One-sided p-value of the federated model's being no worse than the own one; None without a verdict.
    """

    verdict: Verdict
    difference: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    num_test_units: int
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
    if not few:
        return []
    return [
        f"a verdict on joining takes at least {LEAST_UNITS} test patients per site, not {few}: put more patients into "
        "the test, as with a larger silofl import --test"
    ]


def measure_joining(
    own: NDArray[np.float64],
    at_zero: NDArray[np.float64],
    federated: NDArray[np.float64],
    keeps_local: bool = False,
    are_finished: bool = True,
) -> Gain:
    """Compare the federated model with a site's own; it is better only if it also is without the own model's bias.

    Args:
        own: Score of each independent test unit of the own model with its bias, shape (N,); NaN where a unit has none.
        at_zero: The same of the own model without a bias.
        federated: The same of the federated model with its bias.
        keeps_local: The site keeps its own model.
        are_finished: Both were trained to their end.
    """
    gain = measure_gain(own, federated)
    if not gain.num_test_units:
        # Of healthy patients alone nothing but false alarms can be measured.
        return gain
    if not are_finished:
        return replace(gain, verdict=UNFINISHED)
    if keeps_local:
        return replace(gain, verdict="keeps its own model")
    if gain.verdict == BETTER and measure_gain(at_zero, federated).verdict != BETTER:
        return replace(gain, verdict="no clear difference")
    return gain


def measure_gain(own: NDArray[np.float64], federated: NDArray[np.float64]) -> Gain:
    """Compare the federated model with the own one by two tests, each one-sided at 2.5 % each way; see the module.

    Where a model fails on few units and is the better one on all others, a site may have seen no failure: then both
    tests are wrong. `bench/gain.py` measures how often.

    Args:
        own: Score of each independent test unit, shape (N,); NaN where a unit has none.
        federated: The federated model's, of the same units in the same order.
    """
    differences = federated - own
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    means = average_subsets(differences)
    low, high = find_mean_interval(means)
    # With every subset the exchange of none counts, which leaves all as it is.
    p_below = (1 + int((means >= 0).sum())) / (1 + len(means))
    if low is not None and high is not None and np.ptp(differences) > ROUNDING:
        skewed = measure_skewed(differences)
        # A mean of differences between scores lies between -1 and 1.
        low = max(min(low, skewed[0]), -1.0)
        high = min(max(high, skewed[1]), 1.0)
        p_below = max(p_below, skewed[2])
    difference = float(differences.mean()) if n else None
    error = float(differences.std(ddof=1) / sqrt(n)) if n > 1 else None
    if n < LEAST_UNITS or low is None or high is None:
        return Gain("too few to say", difference, error, low, high, n)
    verdict: Verdict = "no clear difference"
    if low > 0:
        verdict = BETTER
    elif high < 0:
        verdict = WORSE
    return Gain(verdict, difference, error, low, high, n, p_below)


def measure_skewed(differences: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the ends of the 95 % interval of a mean, and the p-value of its being no less than 0, by Hall's test.

    With S = mean / s, the skewness k and ``g(S) = S + k S^2 / 3 + k^2 S^3 / 27 + k / 6n``, sqrt(n) g(S) is close to
    Student's t with n - 1 degrees of freedom. g never falls, so that the interval is that of its inverse.

    Args:
        differences: Of each unit, shape (N,), not all of them equal.
    """
    # scipy takes a while to be imported.
    from scipy.special import stdtr, stdtrit

    n = len(differences)
    mean = float(differences.mean())
    deviation = float(differences.std())
    skewness = float(((differences - mean) ** 3).mean()) / deviation**3
    # Symmetric differences have a skewness of 0, by which the inverse would divide.
    if abs(skewness) <= ROUNDING:
        skewness = ROUNDING
    shift = skewness / (6 * n)

    def invert(value: float) -> float:
        return float(3 / skewness * (np.cbrt(1 + skewness * (value - shift)) - 1))

    half = float(stdtrit(n - 1, 1 - LEVEL)) / sqrt(n)
    ratio = mean / deviation
    transformed = ratio + skewness * ratio**2 / 3 + skewness**2 * ratio**3 / 27 + shift
    p_below = float(stdtr(n - 1, sqrt(n) * transformed))
    return mean - deviation * invert(half), mean - deviation * invert(-half), p_below


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
    means = [(piece @ differences / np.maximum(piece.sum(axis=1), 1)).round(12) for piece in pieces]
    return np.sort(np.concatenate(means))


def find_mean_interval(means: NDArray[np.float64]) -> tuple[float, float] | tuple[None, None]:
    """Return the ends of the 95 % interval of the mean difference; none where no subset may be left out.

    These are the true differences that the permutation test does not refuse (Hartigan's typical values).

    Args:
        means: Of the subsets, sorted.
    """
    outside = int(LEVEL * (1 + len(means)) + 1e-9) - 1
    if outside < 0:
        return None, None
    return float(means[outside]), float(means[-1 - outside])


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
    variances = [((effect.standard_error / len(effects)) ** 2, effect.num_units - 1) for effect in effects]
    return describe_mean(mean, variances)


def describe_mean(mean: float, variances: Sequence[tuple[float, int]]) -> MeanEffect:
    """Return a mean with Student's interval and p value; degrees of freedom ``(sum v_i)^2 / sum(v_i^2 / f_i)``.

    Args:
        variances: What the variance of the mean is the sum of, each with its degrees of freedom.
    """
    # scipy takes a while to be imported.
    from scipy.special import stdtr, stdtrit

    variance = sum(part for part, _ in variances)
    if not variance > ROUNDING**2:
        # Units that are all alike show no spread, which is not that there is none.
        return MeanEffect(mean, mean, mean, 1.0)
    freedom = variance**2 / sum(part**2 / of_part for part, of_part in variances)
    margin = float(stdtrit(freedom, 1 - LEVEL)) * sqrt(variance)
    return MeanEffect(mean, mean - margin, mean + margin, 2 * float(stdtr(freedom, -abs(mean) / sqrt(variance))))


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return the p-values after Holm's correction: the k-th smallest of n times n - k + 1, never falling."""
    ordered = sorted(p_values, key=p_values.__getitem__)
    factors = np.arange(len(ordered), 0, -1)
    corrected = np.minimum(np.maximum.accumulate(factors * [p_values[name] for name in ordered]), 1.0)
    by_name = dict(zip(ordered, corrected.tolist(), strict=True))
    return {name: by_name[name] for name in p_values}
