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
    classes = len(counts)
    total = int(counts.sum())
    if classes < 2:
        return {}
    measures: Measures = {}
    if "accuracy" in values:
        most = float(counts.max()) / total
        measures[model, "accuracy"] = Measured(values["accuracy"], most, most * (1 - most) / total, total)
    if "balanced_accuracy" in values:
        variance = (classes - 1) / classes**4 * float((1 / counts).sum())
        measures[model, "balanced_accuracy"] = Measured(values["balanced_accuracy"], 1 / classes, variance, total)
    # For the AUROC each class is one finding, which all other cases lack.
    return measures | measure_findings(model, values, [(int(count), total - int(count)) for count in counts])


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
    cases = np.array([part.num_cases for part in parts])
    shares = cases / cases.sum()
    return Measured(
        value=float(shares @ [part.value for part in parts]),
        guess=float(shares @ [part.guess for part in parts]),
        variance=float(shares**2 @ [part.variance for part in parts]),
        num_cases=int(cases.sum()),
        has_steps=parts[0].has_steps,
    )


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
    sentences = []
    for site, measures in sites.items():
        if _is_below_all(measures) and count_measured(measures) >= LEAST_UNITS:
            best = _describe_best(measures, metric, "test")
            sentences.append(f"{site}: no model is better than guessing: {best}")
    return sentences


def describe_guess(parts: Iterable[Measures], metric: str, part: str = "test", looks: int = 1) -> str:
    """Say what no model, or not the only one, is: "better than guessing", with numbers over all cases; empty if one is.

    Args:
        parts: What the cases of each site show.
        metric: The study's, which is named.
        part: Of the data: test or validation.
        looks: Number of models, of which the best one was looked for.
    """
    measures = pool_measures(parts)
    if not measures or any(measured.is_better(looks) for measured in measures.values()):
        return ""
    best = f"better than guessing: {_describe_best(measures, metric, part)}"
    return best if _is_below_all(measures) else f"shown to be {best}"


def pool_measures(parts: Iterable[Measures]) -> Measures:
    """Return each measure over several parts of the cases, of those that have it."""
    by_key: dict[tuple[str, str], list[Measured]] = {}
    for part in parts:
        for key, measured in part.items():
            by_key.setdefault(key, []).append(measured)
    return {key: pool_measured(several) for key, several in by_key.items()}


def count_measured(measures: Measures) -> int:
    """Return of how many cases measures are."""
    return max((measured.num_cases for measured in measures.values()), default=0)


def _is_below_all(measures: Measures) -> bool:
    return bool(measures) and all(measured.value <= measured.guess for measured in measures.values())


def _describe_best(measures: Measures, metric: str, part: str) -> str:
    """Return the highest value of the study's metric beside a guess's; of one that has none, of the AUROC."""
    names = {name for _, name in measures}
    # Sorted, so that the sentence does not change from process to process.
    name = next((name for name in (metric, "auroc") if name in names), min(names))
    candidates = [measured for (_, measure), measured in measures.items() if measure == name]
    best = max(candidates, key=lambda measured: measured.value)
    words, how = _GUESSES[name]
    if len({model for model, _ in measures}) > 1:
        words = f"the best has {words}"
    return f"{words} {best.value:.3f} in {best.num_cases} {part} cases, {best.guess:.3f} by {how}"
