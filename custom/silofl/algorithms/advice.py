"""Advise the answers of a recipe from what the sites' training data look like, before any round.

A distance between two sites says little by itself: two groups of patients of one site differ too. Each site's patients
are therefore cut into two halves, again and again, and sites are compared by the ratio of the distance between halves
of two sites to the distance between the two halves of one. Sites that differ in nothing have a ratio of about 1,
whatever the unit, the network and the number of patients. All that is needed of a site is one portrait and the
distances between its halves, so that sites in a network can be compared like those of a simulation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from silofl.algorithms.adafed import Statistics, distances
from silofl.algorithms.recipe import PRESET_NAMES, WITHOUT, Answer, Recipe
from silofl.errors import ConfigError

# What sites are compared by: name -> in words.
KINDS = {
    "amplitude": "amplitudes of the images",
    "features": "features of a fixed network",
    "labels": "shares of the labels",
}
# Ratios above which sites count as different. Each is the geometric mean of the largest ratio of phantoms that do not
# differ in the kind and the smallest of those that do, on the seeds 1 to 3 of bench/advise.py: amplitudes 1.17 (other
# shares of the labels) and 2.67 (zoom and direction), labels 1.20 and 3.75; features, which follow from both, 1.14 (no
# difference) and 1.53 (other shares of the labels).
FAR = {"amplitude": 1.8, "features": 1.3, "labels": 2.1}
# Above this quotient of the ratios of amplitudes and features, images differ in where things are and not in their look:
# means over the features do not see zoom and direction as amplitudes do. Likewise between 1.15 (look) and 1.32.
STRUCTURE = 1.2
# A distance of 0 within all sites is less than can be measured; no ratio counts for more.
LARGEST_RATIO = 1000.0
HOME_IS_ENOUGH = " BatchNorm at home takes the look of the images out, so that no amplitude need leave."
BY_STATISTICS = "Where BatchNorm stays at home, sites whose statistics are alike listen to each other more. "
# Fewer patients can be cut into halves in few ways only.
FEW_GROUPS = 4


class Comparison(Answer):
    """A comparison of the sites' training data before the first round."""

    section: ClassVar[str] = "advice"
    method: ClassVar[str] = "advice"

    def check_images(self, shape: Sequence[int]) -> None:
        """Refuse volumes."""
        check_dimensions(len(shape) - 1)

    def sentence(self) -> str:
        """Return what a report says of it."""
        return "Once, what compares the sites' images and labels, and advises an algorithm."


PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(Comparison(),)))


@dataclass(frozen=True)
class Portrait:
    """Means over some training images of a site.

    Attributes:
        count: Images.
        amplitude: Mean Fourier amplitude, as HarmoFL's, shape (C, H, W // 2 + 1).
        features: Mean and variance of each BatchNorm layer's inputs, as AdaFed's.
        labels: Share of each label: of the images, or of their pixels; shape (L,).
    """

    count: int
    amplitude: NDArray[np.float64]
    features: Statistics
    labels: NDArray[np.float64]


@dataclass(frozen=True)
class Sketch:
    """What a site says of its training data.

    Attributes:
        portrait: Of all its images.
        within: By the names of `KINDS`, the distance between two halves in each cut, shape (S,).
        cases: Training cases.
        unit: What the halves are of: patients, or cases where fewer than 2 patients are known.
        groups: Groups of these that halves are made of.
    """

    portrait: Portrait
    within: Mapping[str, NDArray[np.float64]]
    cases: int
    unit: Literal["patient", "case"]
    groups: int


@dataclass(frozen=True)
class Ratio:
    """How many times as far apart two sites are as two halves of one site.

    Attributes:
        value: Median over the random halves.
        splits: The ratio of each of them.
        pairs: Mean of each pair of sites, shape (K, K), in units of the distance within sites; zero on the diagonal.
    """

    value: float
    splits: tuple[float, ...]
    pairs: NDArray[np.float64]

    @property
    def range(self) -> tuple[float, float]:
        """The 5th and the 95th percentile over the random halves."""
        low, high = np.percentile(self.splits, (5, 95))
        return float(low), float(high)


@dataclass(frozen=True)
class AdvisedAnswer:
    """One advised answer.

    Attributes:
        question: The answer's key in a study: ``input``, ``stays_home`` or ``mixing``.
        answer: Its value there.
        reason: Why, with the numbers.
        sureness: Share of the random cuts into halves that give the same answer: how steady it is, not how right.
    """

    question: str
    answer: str
    reason: str
    sureness: float


@dataclass(frozen=True)
class Advice:
    """What was measured, and what follows.

    Attributes:
        ratios: By the names of `KINDS`.
        choices: The advised answers.
        algorithm: They as the ``algorithm`` section of a study.
        cases: Site -> its training cases.
        notes: What makes the numbers less sure.
    """

    ratios: Mapping[str, Ratio]
    choices: tuple[AdvisedAnswer, ...]
    algorithm: dict[str, str]
    cases: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        sites = list(self.cases)
        return {
            "cases": dict(self.cases),
            "ratios": {
                kind: {
                    "value": ratio.value,
                    "range": list(ratio.range),
                    "pairs": {
                        site: dict(zip(sites, row, strict=True))
                        for site, row in zip(sites, ratio.pairs.tolist(), strict=True)
                    },
                }
                for kind, ratio in self.ratios.items()
            },
            "choices": {
                one.question: {"answer": one.answer, "reason": one.reason, "sureness": one.sureness}
                for one in self.choices
            },
            "algorithm": self.algorithm,
            "notes": list(self.notes),
        }

    def sentences(self) -> list[str]:
        """Return each advised answer with its reason, and the notes."""
        cuts = len(next(iter(self.ratios.values())).splits)
        advised = [
            f"{one.question}: {one.answer} (by {round(one.sureness * cuts)} of {cuts} random cuts of the sites' cases "
            f"into halves). {one.reason}"
            for one in self.choices
        ]
        return advised + [f"note: {note}" for note in self.notes]


def check_dimensions(dimensions: int) -> None:
    """Refuse volumes, whose sizes differ: amplitudes of one size are compared.

    Raises:
        ConfigError: There are 3 dimensions.
    """
    if dimensions == 3:
        raise ConfigError(
            "data.dimensions must be 2 to compare sites, by amplitudes of images of one size, not 3; give a study of "
            "slices of the same data"
        )


def advise(sketches: Mapping[str, Sketch], has_batchnorm: bool) -> Advice:
    """Compare sites by what they say of their training data, and advise the answers of an algorithm.

    Args:
        sketches: By site.
        has_batchnorm: Whether the study's network has BatchNorm, which can stay at home.

    Raises:
        ConfigError: There are fewer than 2 sites.
    """
    ratios = site_ratios(list(sketches.values()))
    cases = {site: sketch.cases for site, sketch in sketches.items()}
    choices = explain_answers(ratios, cases, has_batchnorm)
    return Advice(ratios, tuple(choices), build_algorithm(choices), cases, tuple(_notes(sketches)))


def explain_answers(ratios: Mapping[str, Ratio], cases: Mapping[str, int], has_batchnorm: bool) -> list[AdvisedAnswer]:
    """Return the advised input normalisation, what stays at home, and the mixing.

    Args:
        ratios: By the names of `KINDS`.
        cases: Site -> its training cases.
        has_batchnorm: Whether the study's network has BatchNorm, which can stay at home.
    """
    found = answers({kind: ratio.value for kind, ratio in ratios.items()}, has_batchnorm)
    # What each cut into halves would have advised by itself.
    each = [
        answers(dict(zip(ratios, values, strict=True)), has_batchnorm)
        for values in zip(*(ratio.splits for ratio in ratios.values()), strict=True)
    ]
    statistics = BY_STATISTICS * (found["mixing"] == "adafed")
    reasons = {
        "input": _describe_ratio(ratios, "amplitude") + HOME_IS_ENOUGH * (found["stays_home"] == "batchnorm"),
        "stays_home": _describe_home(ratios, has_batchnorm),
        "mixing": f"{_describe_ratio(ratios, 'labels')} {statistics}{_describe_sizes(cases)}",
    }
    return [
        AdvisedAnswer(question, answer, reasons[question], float(np.mean([one[question] == answer for one in each])))
        for question, answer in found.items()
    ]


def answers(ratios: Mapping[str, float], has_batchnorm: bool) -> dict[str, str]:
    """Return the advised answers to three of a recipe's questions, by their keys in a study.

    Args:
        ratios: Between and within sites, by the names of `KINDS`.
        has_batchnorm: Whether the network has BatchNorm, which can stay at home.
    """
    is_far = {kind: ratios[kind] > threshold for kind, threshold in FAR.items()}
    if is_far["amplitude"] and ratios["amplitude"] > STRUCTURE * ratios["features"]:
        # On the phantoms neither a shared model nor AdaFed's came near local training there.
        return {"input": "none", "stays_home": "everything", "mixing": "shared"}
    if not has_batchnorm:
        mixing = "softpull" if is_far["labels"] else "shared"
        return {"input": "harmofl" if is_far["amplitude"] else "none", "stays_home": "nothing", "mixing": mixing}
    # BatchNorm at home takes the look out already: on seven phantoms that differ in it (bench/README.md) AmpNorm on top
    # changed FedBN by -0.11 to +0.06, on average by nothing, and AdaFed's mixing by +0.01 to +0.05.
    is_any = any(is_far.values())
    return {
        "input": "none",
        "stays_home": "batchnorm" if is_any else "nothing",
        "mixing": "adafed" if is_any else "shared",
    }


def build_algorithm(choices: Sequence[AdvisedAnswer]) -> dict[str, str]:
    """Return the ``algorithm`` section of a study with the advised answers: FedAvg with what is changed in it."""
    plain = WITHOUT | {"stays_home": "nothing"}
    return {"name": "fedavg"} | {one.question: one.answer for one in choices if one.answer != plain[one.question]}


def merge_portraits(portraits: Sequence[Portrait]) -> Portrait:
    """Return the means over the images of several portraits, exactly."""
    counts = np.array([portrait.count for portrait in portraits], dtype=np.float64)
    weights = counts / counts.sum()

    def mean(values: Sequence[NDArray]) -> NDArray:
        return np.tensordot(weights, np.stack(values), axes=1)

    features = []
    for layer in zip(*(portrait.features for portrait in portraits), strict=True):
        means, variances = zip(*layer, strict=True)
        centre = mean(means)
        # The variance of all is that within the groups and that between their means.
        features.append((centre, mean([v + (m - centre) ** 2 for m, v in zip(means, variances, strict=True)])))
    amplitude, labels = (mean([getattr(p, key) for p in portraits]) for key in ("amplitude", "labels"))
    return Portrait(int(counts.sum()), amplitude, features, labels)


def distances_between(portraits: Sequence[Portrait]) -> dict[str, NDArray[np.float64]]:
    """Return the distances between portraits by each of `KINDS`, each of shape (N, N), zero on the diagonal.

    Amplitudes: root mean square of the differences of their logarithms, so that a brighter scanner is one step away at
    every frequency. Features: AdaFed's distance (Eqs. 5-6). Shares of the labels: Hellinger's distance.
    """
    # An empty frequency has amplitude 0; below this share of the mean it is rounding. Blank images have a mean of 0.
    logarithms = [np.log(p.amplitude + 1e-6 * p.amplitude.mean() + 1e-12) for p in portraits]
    return {
        "amplitude": _measure_distances(logarithms) / np.sqrt(logarithms[0].size),
        "features": distances([portrait.features for portrait in portraits]),
        "labels": _measure_distances([np.sqrt(portrait.labels) for portrait in portraits]) / np.sqrt(2),
    }


def site_ratios(sketches: Sequence[Sketch]) -> dict[str, Ratio]:
    """Return by each of `KINDS` the ratio of the distances between halves of two sites to those within one.

    Each half is ``w / 2`` away from its site's mean, with w the distance between the two, so that halves of sites i and
    j are ``sqrt(d_ij^2 + (w_i^2 + w_j^2) / 4)`` apart: the root mean square over the four pairs of halves, exact for
    equal halves and Euclidean distances.

    Raises:
        ConfigError: There are fewer than 2 sites.
    """
    if len(sketches) < 2:
        raise ConfigError(f"at least 2 sites must be there to be compared, not {len(sketches)}")
    between = distances_between([sketch.portrait for sketch in sketches])
    return {kind: _ratio(between[kind], np.stack([one.within[kind] for one in sketches], axis=1)) for kind in KINDS}


def _ratio(between: NDArray[np.float64], within: NDArray[np.float64]) -> Ratio:
    """Return the ratio from the distances of sites, shape (K, K), and within them in each cut, shape (S, K)."""
    squares = within**2 / 4
    halves = np.sqrt(between**2 + squares[:, :, None] + squares[:, None, :])
    units = within.mean(axis=1)[:, None, None]
    scaled = np.full_like(halves, LARGEST_RATIO)
    np.divide(halves, units, out=scaled, where=units > 0)
    # Where nothing differs, neither between sites nor within them, the ratio is 0.
    scaled = np.where((units == 0) & (halves == 0), 0, np.minimum(scaled, LARGEST_RATIO))
    scaled *= 1 - np.eye(len(between))
    count = len(between)
    splits = scaled.sum(axis=(1, 2)) / (count * (count - 1))
    return Ratio(float(np.median(splits)), tuple(splits.tolist()), scaled.mean(axis=0))


def _notes(sketches: Mapping[str, Sketch]) -> list[str]:
    by_case = [site for site, sketch in sketches.items() if sketch.unit == "case"]
    few = [site for site, one in sketches.items() if one.groups < FEW_GROUPS and site not in by_case]
    notes = []
    if by_case:
        notes.append(
            f"{', '.join(by_case)}: fewer than 2 patients known, so that halves are of cases; one person's images are "
            "alike, which makes the ratios too large"
        )
    if few:
        notes.append(f"{', '.join(few)}: fewer than {FEW_GROUPS} patients, so that there are few ways to halve them")
    return notes


def _describe_ratio(ratios: Mapping[str, Ratio], kind: str) -> str:
    """Say how far apart the sites are by a kind of distance, against its threshold."""
    value, (low, high) = ratios[kind].value, ratios[kind].range
    side = "above" if value > FAR[kind] else "not above"
    return (
        f"In the {KINDS[kind]} two sites are {value:.1f} times ({low:.1f} to {high:.1f}) as far apart as two halves of "
        f"one, {side} {FAR[kind]:g}."
    )


def _describe_home(ratios: Mapping[str, Ratio], has_batchnorm: bool) -> str:
    # The ratio of features is 0 where they differ in nothing.
    quotient = ratios["amplitude"].value / max(ratios["features"].value, 1 / LARGEST_RATIO)
    side = "above" if quotient > STRUCTURE else "not above"
    without = "" if has_batchnorm else " The network has no BatchNorm that could stay at home."
    return (
        f"{_describe_ratio(ratios, 'amplitude')} {_describe_ratio(ratios, 'features')} The first is {quotient:.1f} "
        f"times the second, {side} {STRUCTURE:g}, where zoom or direction differ rather than the look.{without}"
    )


def _describe_sizes(cases: Mapping[str, int]) -> str:
    smallest, largest = min(cases, key=cases.get), max(cases, key=cases.get)
    if cases[smallest] == cases[largest]:
        return f"Each site has {cases[smallest]} training cases."
    return f"Sites have {cases[smallest]} ({smallest}) to {cases[largest]} ({largest}) training cases."


def _measure_distances(points: Sequence[NDArray]) -> NDArray[np.float64]:
    flat = np.stack([point.ravel() for point in points])
    return np.stack([np.linalg.norm(flat - one, axis=1) for one in flat])
