"""Whether classes are answered better than by guessing, by numbers over the cases that were answered.

What guesses have of N cases, n_c of class c, of K classes with cases: the mean g and the variance.

    accuracy             max n_c / N, of the most frequent class for every case;  g (1 - g) / N
    balanced accuracy    1 / K;  (K - 1) / K^4 sum 1 / n_c, of answers that are as often each class
    AUROC                1 / 2;  mean over classes of (N + 1) / (12 n_c (N - n_c))

The last is Mann and Whitney's: On a test of whether one of two random variables is stochastically larger than the
other, Annals of Mathematical Statistics 1947. Accuracies go by steps of a case, of which half is taken off (Yates):
six right answers of six show something and five do not, as in the binomial test.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np

from silofl.core.gain import LEAST_UNITS, LEVEL

# Metric -> its name, and how a guess's value comes about.
_GUESSES = {
    "accuracy": ("accuracy", "always answering the most frequent class"),
    "balanced_accuracy": ("balanced accuracy", "guessing"),
    "auroc": ("AUROC", "guessing"),
}


@dataclass(frozen=True)
class Measured:
    """A measure of some answers, beside what guesses have of it.

    Attributes:
        value: Of the answers.
        guess: Mean of guesses.
        variance: Of guesses; positive.
        num_cases: Cases that count.
        has_steps: Whether it goes by steps of a case.
    """

    value: float
    guess: float
    variance: float
    num_cases: int
    has_steps: bool = True

    def is_better(self, looks: int = 1) -> bool:
        """Return whether guesses have such a value in at most 2.5 %, over so many looks (Bonferroni)."""
        excess = self.value - self.guess - self.has_steps * 0.5 / self.num_cases
        return excess > NormalDist().inv_cdf(1 - LEVEL / looks) * sqrt(self.variance)


# Name of a model and of a measure -> the measure.
Measures = dict[tuple[str, str], Measured]


def measure_classes(model: str, values: Mapping[str, float], cases: Iterable[int]) -> Measures:
    """Return what is known of a model beside guesses; nothing of cases of one class.

    Args:
        values: Name of a metric -> its value.
        cases: Cases of each class.
    """
    counts = np.array([count for count in cases if count], dtype=np.float64)
    classes, total = len(counts), int(counts.sum())
    if classes < 2:
        return {}
    most = float(counts.max()) / total
    guesses = {
        "accuracy": (most, most * (1 - most) / total),
        "balanced_accuracy": (1 / classes, (classes - 1) / classes**4 * float((1 / counts).sum())),
    }
    found = {(model, name): Measured(values[name], *guess, total) for name, guess in guesses.items() if name in values}
    return found | measure_findings(model, values, [(int(count), total - int(count)) for count in counts])


def measure_findings(model: str, values: Mapping[str, float], cases: Iterable[tuple[int, int]]) -> Measures:
    """Return the AUROC of a model, a mean over findings, beside guesses; nothing where no finding is in some cases.

    Args:
        values: Name of a metric -> its value.
        cases: Of each finding the cases with it, and those without.
    """
    pairs = np.array([pair for pair in cases if all(pair)], dtype=np.float64)
    if "auroc" not in values or not len(pairs):
        return {}
    totals = pairs.sum(axis=1)
    # As of findings that go together: their mean then varies as each one does.
    variance = float(np.mean((totals + 1) / (12 * pairs.prod(axis=1))))
    return {(model, "auroc"): Measured(values["auroc"], 0.5, variance, int(totals.max()), has_steps=False)}


def pool_measured(parts: Sequence[Measured]) -> Measured:
    """Return a measure over several parts of the cases, at least one; each counts by its cases."""
    cases = np.array([one.num_cases for one in parts])
    shares = cases / cases.sum()
    value, guess = (float(shares @ [getattr(one, key) for one in parts]) for key in ("value", "guess"))
    variance = float(shares**2 @ [one.variance for one in parts])
    return Measured(value, guess, variance, int(cases.sum()), parts[0].has_steps)


def describe_guesses(sites: Mapping[str, Measures], metric: str) -> list[str]:
    """Say at which sites no model is better than guessing, where some model is over all of them.

    A site is named that has at least 20 cases and no measure above a guess: fewer cases, or few of a class, say nothing
    of a good model.

    Args:
        sites: Site -> what its cases show of each model.
        metric: The study's, which is named.
    """
    if describe_guess(sites.values(), metric):
        return []
    return [
        f"{site}: no model is better than guessing: {_describe_best(found, metric, 'test')}"
        for site, found in sites.items()
        if _is_below_all(found) and count_measured(found) >= LEAST_UNITS
    ]


def describe_guess(parts: Iterable[Measures], metric: str, part: str = "test", looks: int = 1) -> str:
    """Say what no model, or not the only one, is: "better than guessing", with numbers over all cases; empty if one is.

    Args:
        parts: What the cases of each site show.
        metric: The study's, which is named.
        part: Of the data: test or validation.
        looks: Number of models, of which the best one was looked for.
    """
    found = pool_measures(parts)
    if not found or any(one.is_better(looks) for one in found.values()):
        return ""
    shown = "" if _is_below_all(found) else "shown to be "
    return f"{shown}better than guessing: {_describe_best(found, metric, part)}"


def pool_measures(parts: Iterable[Measures]) -> Measures:
    """Return each measure over several parts of the cases, of those that have it."""
    by_key: dict[tuple[str, str], list[Measured]] = {}
    for key, one in (item for found in parts for item in found.items()):
        by_key.setdefault(key, []).append(one)
    return {key: pool_measured(several) for key, several in by_key.items()}


def count_measured(found: Measures) -> int:
    """Return of how many cases measures are."""
    return max((one.num_cases for one in found.values()), default=0)


def _is_below_all(found: Measures) -> bool:
    return bool(found) and all(one.value <= one.guess for one in found.values())


def _describe_best(found: Measures, metric: str, part: str) -> str:
    """Return the highest value of the study's metric beside a guess's; of one that has none, of the AUROC."""
    names = {name for _, name in found}
    name = metric if metric in names else "auroc" if "auroc" in names else next(iter(names))
    best = max((one for key, one in found.items() if key[1] == name), key=lambda one: one.value)
    words, how = _GUESSES[name]
    words = f"the best has {words}" if len({model for model, _ in found}) > 1 else words
    return f"{words} {best.value:.3f} in {best.num_cases} {part} cases, {best.guess:.3f} by {how}"
