"""What the federated model gives a site against its own: on its test units, and over several starts of the training.

A paired permutation test of one start gives the verdict and the interval: Hartigan, Using subsample values as typical
values, Journal of the American Statistical Association 1969; Holm, A simple sequentially rejective multiple test
procedure, Scandinavian Journal of Statistics 1979. Over starts: Satterthwaite, An approximate distribution of estimates
of variance components, Biometrics Bulletin 1946.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    low, high = find_interval(means)
    return Gain(verdict, difference, error, low, high, n, needed, p_below)


class Start(NamedTuple):
    """What one start of the training gives a site: the mean difference, its standard error, and the test units."""

    difference: float
    standard_error: float
    num_units: int


def measure_starts(sites: Mapping[str, Sequence[Start]]) -> dict[str, tuple[float, float, float]]:
    """Return site -> what joining gives it over several starts of the training: mean difference, and its 95 % interval.

    The variance is that between test units, the mean of the starts' squared errors, plus that between starts divided by
    their number. Of the latter the larger one of the site's own and the mean over all sites counts, since two starts
    may be alike by chance; its freedom is that of all sites' starts. Degrees of freedom by Satterthwaite.

    Args:
        sites: Site -> its starts; of one alone nothing is said.
    """
    from scipy.stats import t

    known = {site: starts for site, starts in sites.items() if len(starts) > 1}
    spreads = {site: float(np.var([one.difference for one in starts], ddof=1)) for site, starts in known.items()}
    freedom = sum(len(starts) - 1 for starts in known.values())
    shared, found = sum(spreads.values()) / max(len(spreads), 1), {}
    for site, starts in known.items():
        between = max(spreads[site], shared) / len(starts)
        within = float(np.mean([one.standard_error**2 for one in starts]))
        units = min(one.num_units for one in starts) - 1
        mean, variance = float(np.mean([one.difference for one in starts])), within + between
        parts = within**2 / units + between**2 / freedom
        half = t.ppf(1 - LEVEL, variance**2 / parts) * sqrt(variance) if parts else 0.0
        found[site] = mean, mean - float(half), mean + float(half)
    return found


def measure_mean_of_starts(sites: Mapping[str, Sequence[Start]]) -> tuple[float, float, float] | None:
    """Return what joining gives the mean hospital, as `measure_starts` does; None where no site has several starts.

    The error of a start's mean over the sites holds their test units and, as if each site had its own luck, what one
    start changes at them; what it changes at all of them at once is the starts' own variance.

    Args:
        sites: As for `measure_starts`; all with the same starts.
    """
    known = [starts for starts in sites.values() if len(starts) > 1]
    if not known:
        return None
    luck = sum(float(np.var([one.difference for one in starts], ddof=1)) for starts in known)
    means = [
        Start(
            float(np.mean([one.difference for one in of_start])),
            sqrt(luck + sum(one.standard_error**2 for one in of_start)) / len(known),
            sum(one.num_units for one in of_start),
        )
        for of_start in zip(*known, strict=True)
    ]
    return measure_starts({"": means})[""]


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
    BETTER: (
        "keeps a model that is better for its test patients than its own",
        "keep a model that is better for their test patients than their own",
    ),
    "no clear difference": ("has no clear difference", "have no clear difference"),
    WORSE: (
        "keeps a model that is worse for its test patients than its own",
        "keep a model that is worse for their test patients than their own",
    ),
    "too few to say": ("has too few test patients to say", "have too few test patients to say"),
    "keeps its own model": ("keeps its own model", "keep their own model"),
    UNFINISHED: ("has a model that was not trained to the end", "have a model not trained to the end"),
}
ONE_START = "one start of the training cannot tell whether joining made the difference"


# The same in a table.
_BRIEF: dict[Verdict, str] = {
    BETTER: "better",
    WORSE: "worse",
    "keeps its own model": "own model kept",
    UNFINISHED: "unfinished",
}


def count_verdicts(verdicts: Iterable[Verdict]) -> list[str]:
    """Return how many sites have each verdict, as ``2 better`` and ``1 own model kept``."""
    counts = Counter(verdicts)
    return [f"{counts[one]} {shorten_verdict(one)}" for one in _WORDS if counts[one]]


def shorten_verdict(verdict: Verdict) -> str:
    """Return a verdict as a table has it."""
    return _BRIEF.get(verdict, verdict)


def federation_sentence(verdicts: Mapping[str, Verdict], tests: Sequence[tuple[float, float]] = ()) -> str:
    """Return one sentence on all hospitals: how many have each verdict, and what that says of joining.

    Args:
        verdicts: Name of a site -> its verdict.
        tests: The test values of the federated and of the own model at each site.
    """
    if not verdicts:
        return "No hospital has been tested."
    counts, total = Counter(verdicts.values()), len(verdicts)
    if counts["keeps its own model"] == total:
        return f"Joining gave nothing: {_describe_nothing(total, tests)}."
    losing = sorted(site for site, verdict in verdicts.items() if verdict == WORSE)
    if losing:
        end = f"{_join_with_and(losing)} would do better with the own model"
    elif counts[UNFINISHED]:
        end = "what joining gives is not known before both models are trained to the end"
    elif counts[BETTER]:
        end = ONE_START
    else:
        end = "it is not known yet whether joining pays"
    if total == 1:
        return f"The only hospital {_WORDS[next(iter(verdicts.values()))][0]}: {end}."
    told = [f"{counts[one]} {words[counts[one] > 1]}" for one, words in _WORDS.items() if counts[one]]
    return f"Of {total} hospitals, {_join_with_and(told)}: {end}."


def _describe_nothing(total: int, tests: Sequence[tuple[float, float]]) -> str:
    if not tests or not all(federated < own for federated, own in tests):
        where = f"any of the {total} hospitals" if total > 1 else "the only hospital"
        return f"on validation data the federated model is no better at {where}"
    federated, own = np.mean(tests, axis=0)
    where = f"all {total} hospitals" if total > 1 else "the only hospital"
    return f"the federated model is worse at {where} ({federated:.3f}, alone {own:.3f})"


def _join_with_and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
