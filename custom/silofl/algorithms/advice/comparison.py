"""From the sites' portraits and their halves to ratios, and from these to two answers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from silofl.algorithms.adafed import Statistics, distances
from silofl.core.ingredient import Ingredient
from silofl.errors import ConfigError

# What sites are compared by: name -> in words.
KINDS = {
    "amplitude": "amplitudes of the images",
    "features": "features of a fixed network",
    "labels": "shares of the labels",
}
# The questions, and the ratio above which the answer is yes: the geometric mean of the largest ratio of phantoms that
# do not differ in the kind and the smallest of those that do, on the seeds 1 to 3 of bench/advise.py: amplitudes 1.17
# and 2.67, labels 1.20 and 3.75. Features follow from both, so that they answer neither.
QUESTIONS = {
    "amplitude": ("Do the images look different from site to site?", 1.8),
    "labels": ("Do the shares of the labels differ from site to site?", 2.1),
}
# A distance of 0 within all sites is less than can be measured; no ratio counts for more.
LARGEST_RATIO = 1000.0
# Fewer patients can be cut into halves in few ways only.
FEW_GROUPS = 4


class Comparison(Ingredient):
    """A comparison of the sites' training data before the first round."""

    section: ClassVar[str] = "advice"
    halves: ClassVar[str] = "silofl.algorithms.advice.exchange"

    def check_data(self, shape: Sequence[int], missing: Sequence[str]) -> None:
        """Refuse volumes."""
        check_dimensions(len(shape) - 1)

    def sentence(self) -> str:
        """Return what a report says of it."""
        return "Once, what compares the sites' images and labels."


@dataclass(frozen=True)
class Portrait:
    """Means over some training images of a site.

    Attributes:
        count: Images.
        amplitude: Mean Fourier amplitude, as HarmoFL's, shape (C, H, W // 2 + 1).
        features: Mean and variance of each BatchNorm layer's inputs, as AdaFed's.
        labels: Share of each label: of the images, or of their pixels; shape (L,). Of findings the share of the images
            with each, and of those without each, over the number of findings: they too add up to 1.
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
        within: By the names of `KINDS`, the distance between two halves in each cut, shape (S,); of labels in each
            alone, (S, L).
        cases: Training cases.
        unit: What the halves are of: patients, or cases where fewer than 2 patients are known.
        groups: Groups of these that halves are made of.
        annotated: The labels that its label maps show; None for all.
    """

    portrait: Portrait
    within: Mapping[str, NDArray[np.float64]]
    cases: int
    unit: Literal["patient", "case"]
    groups: int
    annotated: tuple[int, ...] | None = None


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
class Finding:
    """The answer to one of `QUESTIONS`.

    Attributes:
        question: Its words.
        is_yes: Whether the ratio is above the threshold.
        reason: The ratio beside its threshold.
        agreeing: Random halvings whose own ratio gives the same answer.
        halvings: All of them.
    """

    question: str
    is_yes: bool
    reason: str
    agreeing: int
    halvings: int

    def sentence(self) -> str:
        """Return question, answer and reason."""
        answer = "Yes" if self.is_yes else "No"
        return f"{self.question} {answer}, in {self.agreeing} of {self.halvings} halvings. {self.reason}"


@dataclass(frozen=True)
class Advice:
    """What was measured, and the two questions that it answers.

    Attributes:
        ratios: By the names of `KINDS`, without labels where no label is annotated at all sites.
        findings: By the names of `QUESTIONS`, without that on labels too.
        cases: Site -> its training cases.
        notes: What makes the numbers less sure.
    """

    ratios: Mapping[str, Ratio]
    findings: Mapping[str, Finding]
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
            "findings": {kind: asdict(one) for kind, one in self.findings.items()},
            "notes": list(self.notes),
        }

    def sentences(self) -> list[str]:
        """Return both answers, and the notes."""
        return [one.sentence() for one in self.findings.values()] + [f"note: {note}" for note in self.notes]


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


def advise(sketches: Mapping[str, Sketch]) -> Advice:
    """Compare sites by what they say of their training data.

    Args:
        sketches: By site.

    Raises:
        ConfigError: There are fewer than 2 sites.
    """
    ratios = site_ratios(list(sketches.values()))
    findings = {kind: answer_question(kind, ratios[kind]) for kind in QUESTIONS if kind in ratios}
    cases = {site: sketch.cases for site, sketch in sketches.items()}
    return Advice(ratios, findings, cases, tuple(_notes(sketches)))


def answer_question(kind: str, ratio: Ratio) -> Finding:
    """Return the answer to one of `QUESTIONS`, and in how many halvings it is the same."""
    question, threshold = QUESTIONS[kind]
    is_yes, (low, high) = ratio.value > threshold, ratio.range
    reason = (
        f"In the {KINDS[kind]} two sites are {ratio.value:.1f} times ({low:.1f} to {high:.1f}) as far apart as two "
        f"halves of one site; above {threshold:g} means yes."
    )
    agreeing = sum((one > threshold) == is_yes for one in ratio.splits)
    return Finding(question, is_yes, reason, agreeing, len(ratio.splits))


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
    every frequency. Features: AdaFed's distance (Eqs. 5-6). Shares of the labels: Hellinger's distance in each label
    alone, shape (N, N, L); over all labels it is the norm along the last axis.
    """
    # An empty frequency has amplitude 0; below this share of the mean it is rounding. Blank images have a mean of 0.
    logarithms = [np.log(p.amplitude + 1e-6 * p.amplitude.mean() + 1e-12) for p in portraits]
    roots = np.sqrt([portrait.labels for portrait in portraits])
    return {
        "amplitude": _measure_distances(logarithms) / np.sqrt(logarithms[0].size),
        "features": distances([portrait.features for portrait in portraits]),
        "labels": np.abs(roots[:, None] - roots) / np.sqrt(2),
    }


def site_ratios(sketches: Sequence[Sketch]) -> dict[str, Ratio]:
    """Return by each of `KINDS` the ratio of the distances between halves of two sites to those within one.

    Each half is ``w / 2`` away from its site's mean, with w the distance between the two, so that halves of sites i and
    j are ``sqrt(d_ij^2 + (w_i^2 + w_j^2) / 4)`` apart: the root mean square over the four pairs of halves, exact for
    equal halves and Euclidean distances. Of the labels those count that all sites annotate; where there are none, the
    labels have no ratio.

    Raises:
        ConfigError: There are fewer than 2 sites.
    """
    if len(sketches) < 2:
        raise ConfigError(f"at least 2 sites must be there to be compared, not {len(sketches)}")
    between = distances_between([sketch.portrait for sketch in sketches])
    within = {kind: np.stack([one.within[kind] for one in sketches], axis=1) for kind in KINDS}
    common = _find_common_labels(sketches)
    for found in (between, within):
        found["labels"] = np.linalg.norm(found["labels"] if common is None else found["labels"][..., common], axis=-1)
    return {kind: _ratio(between[kind], within[kind]) for kind in KINDS if kind != "labels" or common != []}


def _find_common_labels(sketches: Sequence[Sketch]) -> list[int] | None:
    """Return the labels that all sites annotate; None where all annotate the same ones."""
    annotated = {sketch.annotated for sketch in sketches}
    if len(annotated) == 1:
        return None
    return sorted(set(range(1, len(sketches[0].portrait.labels))).intersection(*filter(None, annotated)))


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
    notes, common = [], _find_common_labels(list(sketches.values()))
    if common is not None:
        compared = ", ".join(map(str, common)) or "none"
        notes.append(f"the sites annotate different labels; those are compared that all annotate: {compared}")
    if by_case:
        notes.append(
            f"{', '.join(by_case)}: fewer than 2 patients known, so that halves are of cases; one person's images are "
            "alike, which makes the ratios too large"
        )
    if few:
        notes.append(f"{', '.join(few)}: fewer than {FEW_GROUPS} patients, so that there are few ways to halve them")
    return notes


def _measure_distances(points: Sequence[NDArray]) -> NDArray[np.float64]:
    flat = np.stack([point.ravel() for point in points])
    return np.stack([np.linalg.norm(flat - one, axis=1) for one in flat])
