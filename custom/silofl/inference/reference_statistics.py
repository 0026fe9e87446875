"""What is usual of a super model's answers to its hospitals' own cases, and what of a new answer is not.

Each hospital gives means and deviations: of the size of each label and of the selector's score over its validation
cases, as models are surer of cases that they learnt; of a network's features over its training cases too. A new answer
is unusual where such a number lies further from the mean than the deviations explain. Single cases' numbers are nowhere
in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, quote_value
from silofl.base.schema import declare_optional, dump_record, read_record
from silofl.core.spread import Moments, Spread, bound_moments, count_digits_apart, pool_spreads
from silofl.inference.prediction import CaseAnswer
from silofl.study import Study

# This share of right cases would be called unusual if their numbers followed bell curves, all checks together. Real
# numbers have more far from the mean: of simulated cases at most 5 % are called unusual.
FALSE_ALARMS = 0.01
# The log-odds of a probability of 0 or 1 would be infinite.
LEAST_PROBABILITY = 1e-6
# Some features are always 0: each counts with at least this share of the mean variance, as nothing divides by 0.
LEAST_VARIANCE = 0.05
FEATURES = ("mean", "variance")


@dataclass(frozen=True)
class FeatureSpread:
    """A network's features over a hospital's cases: means and variances alone, no covariances.

    Attributes:
        mean: Of each feature.
        variance: Of each feature.
        distance: Of the cases' `measure_distance` to these.

    Raises:
        ConfigError: They are not as many, or a variance is below 0.
    """

    mean: tuple[float, ...]
    variance: tuple[float, ...]
    distance: Spread

    def __post_init__(self) -> None:
        """Refuse what no features have."""
        if len(self.mean) != len(self.variance) or min(self.variance, default=0) < 0:
            raise ConfigError("features have unlike numbers of means and variances, or a variance below 0")

    @classmethod
    def of(cls, features: NDArray[np.float64]) -> FeatureSpread:
        """Measure it of the features of at least two cases, (cases, features)."""
        mean = features.mean(axis=0)
        variance = features.var(axis=0, ddof=1)
        distances = [measure_distance(case, mean, variance) for case in features]
        return cls(tuple(mean.tolist()), tuple(variance.tolist()), Spread.of(distances))


@dataclass(frozen=True)
class ReferenceStatistics:
    """What is usual at one hospital; what is empty is not known.

    Attributes:
        roots_ml: Label -> spread of the cube root of its size in millilitres, which is nearer to a bell curve than the
            size, and 0 where there is none.
        score: Spread of the log-odds of the selector's score for the hospital.
        features: Model -> its features.
        codes: What DICOM files state -> the codes that enough patients have.
    """

    # Version 0.4 also compared shares of the pixels.
    FORMER_KEYS: ClassVar = ("roots",)
    roots_ml: Mapping[str, Spread] | None = declare_optional()
    score: Spread | None = declare_optional()
    features: Mapping[str, FeatureSpread] | None = declare_optional()
    codes: Mapping[str, tuple[str, ...]] | None = declare_optional()


@dataclass(frozen=True)
class Comparison:
    """What of an answer is unusual.

    Attributes:
        sentences: One for each check that found something.
        unchecked: The checks that could not be made.
        deviations: What was compared -> how many deviations it lies above the mean.
    """

    sentences: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    deviations: Mapping[str, float] = field(default_factory=dict)


def bound_reference_statistics(
    reference_statistics: Mapping[str, ReferenceStatistics], min_sites: int
) -> dict[str, ReferenceStatistics]:
    """Bound what each hospital says is usual: by deviations without end no answer would be unusual.

    Args:
        reference_statistics: Hospital -> what it says.
        min_sites: With fewer hospitals that say a number, it is not bounded.

    Returns:
        Hospital -> what counts of it.
    """
    moments_by_site = {site: _list_moments(stated) for site, stated in reference_statistics.items()}
    moments_by_number: dict[tuple[str, str], dict[str, Moments]] = {}
    for site, site_moments in moments_by_site.items():
        for number, moments in site_moments.items():
            moments_by_number.setdefault(number, {})[site] = moments
    changed = set()
    for number, stated in moments_by_number.items():
        # Of two hospitals nobody knows which one is odd.
        if len(stated) < min_sites:
            continue
        for site, moments in bound_moments(stated).items():
            moments_by_site[site][number] = moments
            changed.add(site)
    bounded = dict(reference_statistics)
    for site in changed:
        bounded[site] = _put_moments(bounded[site], moments_by_site[site])
    return bounded


def _list_moments(reference_statistics: ReferenceStatistics) -> dict[tuple[str, str], Moments]:
    # A spread is bounded like the features: by its mean and its variance.
    spreads = {("roots_ml", label): spread for label, spread in (reference_statistics.roots_ml or {}).items()}
    moments = {}
    for model, features in (reference_statistics.features or {}).items():
        spreads["distance", model] = features.distance
        moments["features", model] = (np.array(features.mean), np.array(features.variance))
    for number, spread in spreads.items():
        moments[number] = (np.array([spread.mean]), np.array([spread.deviation**2]))
    return moments


def _put_moments(
    reference_statistics: ReferenceStatistics, moments: Mapping[tuple[str, str], Moments]
) -> ReferenceStatistics:
    roots_ml = {}
    for label, spread in (reference_statistics.roots_ml or {}).items():
        roots_ml[label] = _put_spread(spread, moments["roots_ml", label])
    features = {}
    for model, measured in (reference_statistics.features or {}).items():
        mean, variance = moments["features", model]
        distance = _put_spread(measured.distance, moments["distance", model])
        features[model] = FeatureSpread(tuple(mean.tolist()), tuple(variance.tolist()), distance)
    return replace(reference_statistics, roots_ml=roots_ml or None, features=features or None)


def _put_spread(spread: Spread, moments: Moments) -> Spread:
    means, variances = moments
    return replace(spread, mean=float(means[0]), deviation=math.sqrt(variances[0]))


def measure_distance(features: NDArray[Any], mean: NDArray[Any], variance: NDArray[Any]) -> float:
    """Return the logarithm of the mean over features of ``(x - mean)^2 / variance``: about 0 of usual cases.

    That is Mahalanobis' distance with a diagonal covariance. Of a feature that hardly varies the variance is
    `LEAST_VARIANCE` of the mean one.
    """
    floor = LEAST_VARIANCE * np.mean(variance) + np.finfo(np.float64).tiny
    return float(np.log(np.mean(np.square(features - mean) / (variance + floor)) + np.finfo(np.float64).tiny))


def root_sizes(sizes: Mapping[str, float]) -> dict[str, float]:
    """Return the cube roots of labels' sizes."""
    return {name: math.cbrt(size) for name, size in sizes.items()}


def log_odds(score: float) -> float:
    """Return the log-odds of a probability."""
    score = min(max(score, LEAST_PROBABILITY), 1 - LEAST_PROBABILITY)
    return math.log(score / (1 - score))


@dataclass(frozen=True)
class Check:
    """A number of an answer beside those that are usual.

    Attributes:
        what: What it is, for people.
        value: The number.
        spread: Of usual ones.
        show: Puts such a number into words, with so many digits more than the least.
        remedy: What to look at where it is unusual.
        has_low: Whether a number may be too low.
        has_high: Whether it may be too high.
    """

    what: str
    value: float
    spread: Spread
    show: Callable[[float, int], str]
    remedy: str
    has_low: bool = True
    has_high: bool = True

    @property
    def deviations(self) -> float:
        """How many deviations the number lies above the mean; without a deviation, how far."""
        return (self.value - self.spread.mean) / (self.spread.deviation or 1)

    def describe(self, false_alarms: float) -> str | None:
        """Return a sentence where the number is too far from the mean; else None.

        Args:
            false_alarms: Share of usual numbers, as of a bell curve, that may be called unusual.
        """
        low, high = self.spread.range(false_alarms / (self.has_low + self.has_high))
        is_low = self.has_low and self.value < low
        if not is_low and not (self.has_high and self.value > high):
            return None
        # With too few digits a number just beyond the edge would read as the edge itself.
        more = count_digits_apart(self.value, low if is_low else high, 0, self.show)
        usual_range = f"{self.show(low, more)} to {self.show(high, more)}"
        if not self.has_high:
            usual_range = f"{self.show(low, more)} or more"
        elif not self.has_low:
            usual_range = f"up to {self.show(high, more)}"
        value = self.show(self.value, more)
        mean = self.show(self.spread.mean, more)
        return f"{self.what} is unusual: {value} where {usual_range} is usual (mean {mean}); {self.remedy}"


def compare_answer(
    reference_statistics: Mapping[str, ReferenceStatistics],
    answer: CaseAnswer,
    sizes_ml: Mapping[str, float] | None,
    study: Study,
    codes: Mapping[str, str],
) -> Comparison:
    """Compare an answer with what is usual.

    Args:
        reference_statistics: Hospital -> what is usual there.
        sizes_ml: Label -> its size in millilitres; None where voxels' sizes are not known.
        codes: What the file states, by `silofl.reading.dicom_codes.read_codes`.
    """
    checks = {}
    # A hospital that took no part has no class: nobody knows how its cases score, only that it is less.
    if answer.scores and len(reference_statistics) <= 1:
        checks["the selector's score"] = _check_score(reference_statistics, answer)
    checks["the look of the image to the network"] = _check_features(reference_statistics, answer)
    if study.task == "segmentation":
        checks["the size of the answer"] = _check_sizes(reference_statistics, sizes_ml)
    # Each check gets the same share of the false alarms.
    share = FALSE_ALARMS / max(1, sum(map(len, checks.values())))
    sentences = []
    unchecked = []
    deviations = {}
    for name, made in checks.items():
        if not made:
            unchecked.append(name)
        for check in made:
            if sentence := check.describe(share):
                sentences.append(sentence)
            if check.spread.deviation:
                deviations[check.what] = check.deviations
    for name, code in codes.items():
        theirs: set[str] = set()
        for stated in reference_statistics.values():
            theirs.update((stated.codes or {}).get(name, ()))
        if not theirs:
            unchecked.append(f"the stated {name}")
        elif code not in theirs:
            sentences.append(
                f"the file states another {name} than training's files: {code}, theirs {' or '.join(sorted(theirs))}; "
                "see that it is the image that the models are for"
            )
    return Comparison(tuple(sentences), tuple(unchecked), deviations)


def _check_sizes(
    reference_statistics: Mapping[str, ReferenceStatistics], sizes_ml: Mapping[str, float] | None
) -> list[Check]:
    remedy = "look at the answer, at what the image shows, and at the size of its voxels"
    checks = []
    for label, value in root_sizes(sizes_ml or {}).items():
        spreads = []
        for stated in reference_statistics.values():
            if stated.roots_ml and label in stated.roots_ml:
                spreads.append(stated.roots_ml[label])
        if spreads:
            checks.append(Check(f"the size of {label}", value, pool_spreads(spreads), _show_size, remedy))
    return checks


def _check_score(reference_statistics: Mapping[str, ReferenceStatistics], answer: CaseAnswer) -> list[Check]:
    """Compare the highest score with those of the only hospital's own cases."""
    spreads = [stated.score for stated in reference_statistics.values() if stated.score]
    if not spreads:
        return []
    remedy = "see that the image shows the same body part, taken the same way"
    # Log-odds are nearer to a bell curve than probabilities, which pile up at 1.
    value = log_odds(max(answer.scores.values()))
    return [Check("the selector's score", value, pool_spreads(spreads), _show_probability, remedy, has_high=False)]


def _check_features(reference_statistics: Mapping[str, ReferenceStatistics], answer: CaseAnswer) -> list[Check]:
    """Compare the features of that model to which the image looks least unlike the training images.

    Of several hospitals a model's features count that all of them have measured: one hospital's do not say how much
    another one's images differ.
    """
    what = "the look of the image to the network"
    remedy = "see that the image shows the same body part, taken the same way, and look at the answer"
    checks = []
    for model, features in answer.features.items():
        # Features of another length are those of another network.
        measured = [(stated.features or {}).get(model) for stated in reference_statistics.values()]
        spreads = [spread for spread in measured if spread and len(spread.mean) == len(features)]
        if spreads and len(spreads) == len(measured):
            means = np.array([spread.mean for spread in spreads])
            variance = np.array([spread.variance for spread in spreads]).mean(axis=0)
            if len(spreads) > 1:
                # The mean over K hospitals is itself uncertain: W + (1 + 1 / K) B, as in `pool_spreads`.
                variance += means.var(axis=0, ddof=1) * (1 + 1 / len(spreads))
            value = measure_distance(features, means.mean(axis=0), variance)
            spread = pool_spreads([spread.distance for spread in spreads])
            checks.append(Check(what, value, spread, _show_distance, remedy, has_low=False))
    return sorted(checks, key=lambda check: check.deviations)[:1]


def _show_size(root: float, more: int) -> str:
    size = max(root, 0.0) ** 3
    return f"{size:.{(size < 100) + more}f} ml"


def _show_probability(value: float, more: int) -> str:
    return f"{1 / (1 + math.exp(-value)):.{3 + more}g}"


def _show_distance(value: float, more: int) -> str:
    return f"a distance of {math.exp(value / 2):.{2 + more}g}"


def pack_reference_statistics(reference_statistics: Mapping[str, ReferenceStatistics]) -> dict[str, Any]:
    """Return what is usual as plain values."""
    packed: dict[str, Any] = dump_record(reference_statistics)
    for stated in packed.values():
        for features in stated.get("features", {}).values():
            # Features are hundreds of numbers: as one text they take one line of model.json, not one each.
            for key in FEATURES:
                features[key] = " ".join(f"{number:.5g}" for number in features[key])
    return packed


def unpack_reference_statistics(packed: Mapping[str, Any]) -> dict[str, ReferenceStatistics]:
    """Return what `pack_reference_statistics` packed.

    Raises:
        ConfigError: A value is none that is usual.
        KeyError, TypeError, AttributeError: A key is of another kind.
    """
    reference_statistics = {}
    for site, stated in packed.items():
        features = {}
        for model, texts in stated.get("features", {}).items():
            features[model] = texts | {key: _read_numbers(texts[key]) for key in FEATURES}
        reference_statistics[site] = read_record(ReferenceStatistics, {**stated, "features": features}, f"usual.{site}")
    return reference_statistics


def _read_numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split()]
    except ValueError:
        raise ConfigError(f"features must be numbers with blanks between them, not {quote_value(text)}") from None
