"""What is usual of a super model's answers to its hospitals' own cases, and what of a new answer is not.

Each hospital gives means and deviations: of the size of each label and of the selector's score over its validation
cases, as models are surer of cases that they learnt; of a network's features over its training cases too. A new answer
is unusual where such a number lies further from the mean than the deviations explain. Single cases' numbers are nowhere
in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silofl.base.errors import ConfigError, quote_value
from silofl.base.schema import declare_optional, dump_record, read_record
from silofl.core.spread import Moments, Spread, bound_moments, count_digits_apart, pool_spreads
from silofl.inference.prediction import CaseAnswer
from silofl.study import Study

# Of right cases, all checks together, if their numbers followed bell curves. Real ones have more far from the mean: of
# simulated ones at most 5 % are called unusual.
FALSE_ALARMS = 0.01
# Of a probability, so that its log-odds are finite.
LEAST_PROBABILITY = 1e-6
# Share of a feature's mean variance that every feature has at least: some are always 0.
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
            raise ConfigError("features must have as many means as variances, none of them below 0")

    @classmethod
    def of(cls, features: NDArray[np.float64]) -> FeatureSpread:
        """Measure it of the features of at least two cases, (cases, features)."""
        mean, variance = features.mean(axis=0), features.var(axis=0, ddof=1)
        distances = [measure_distance(one, mean, variance) for one in features]
        return cls(tuple(mean.tolist()), tuple(variance.tolist()), Spread.of(distances))


@dataclass(frozen=True)
class Usual:
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


def bound_usual(usual: Mapping[str, Usual], min_sites: int) -> dict[str, Usual]:
    """Bound what each hospital says is usual: by deviations without end no answer would be unusual.

    Args:
        usual: Hospital -> what it says.
        min_sites: With fewer hospitals that say a number, it is not bounded.

    Returns:
        Hospital -> what counts of it.
    """
    listed = {site: _list_moments(one) for site, one in usual.items()}
    changed = set()
    for place in dict.fromkeys(place for moments in listed.values() for place in moments):
        known = {site: moments[place] for site, moments in listed.items() if place in moments}
        if len(known) >= min_sites:
            for site, bounded in bound_moments(known).items():
                listed[site][place] = bounded
                changed.add(site)
    return {site: _put_moments(one, listed[site]) if site in changed else one for site, one in usual.items()}


def _list_moments(usual: Usual) -> dict[tuple[str, str], Moments]:
    spreads = {("roots_ml", label): one for label, one in (usual.roots_ml or {}).items()}
    spreads |= {("distance", model): one.distance for model, one in (usual.features or {}).items()}
    moments = {place: (np.array([one.mean]), np.array([one.deviation**2])) for place, one in spreads.items()}
    return moments | {
        ("features", model): (np.array(one.mean), np.array(one.variance))
        for model, one in (usual.features or {}).items()
    }


def _put_moments(usual: Usual, moments: Mapping[tuple[str, str], Moments]) -> Usual:
    def put(spread: Spread, what: str, name: str) -> Spread:
        means, variances = moments[what, name]
        return replace(spread, mean=float(means[0]), deviation=math.sqrt(variances[0]))

    roots_ml = {label: put(one, "roots_ml", label) for label, one in (usual.roots_ml or {}).items()}
    features = {}
    for model, one in (usual.features or {}).items():
        mean, variance = (tuple(values.tolist()) for values in moments["features", model])
        features[model] = FeatureSpread(mean, variance, put(one.distance, "distance", model))
    return replace(usual, roots_ml=roots_ml or None, features=features or None)


def measure_distance(features: NDArray, mean: ArrayLike, variance: ArrayLike) -> float:
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

    def describe(self, false_alarms: float) -> str | None:
        """Return a sentence where the number is too far from the mean; else None.

        Args:
            false_alarms: Share of usual numbers, as of a bell curve, that may be called unusual.
        """
        sides = self.has_low + self.has_high
        low, high = self.spread.range(false_alarms / sides)
        if not (self.has_low and self.value < low) and not (self.has_high and self.value > high):
            return None
        edge = low if self.has_low and self.value < low else high
        more = count_digits_apart(self.value, edge, 0, self.show)
        value, mean, low_end, high_end = (self.show(one, more) for one in (self.value, self.spread.mean, low, high))
        ends = {(True, True): f"{low_end} to {high_end}", (True, False): f"{low_end} or more"}
        usual = ends.get((self.has_low, self.has_high), f"up to {high_end}")
        return f"{self.what} is unusual: {value} where {usual} is usual (mean {mean}); {self.remedy}"


def compare_answer(
    usual: Mapping[str, Usual],
    answer: CaseAnswer,
    sizes_ml: Mapping[str, float] | None,
    study: Study,
    codes: Mapping[str, str],
) -> Comparison:
    """Compare an answer with what is usual.

    Args:
        usual: Hospital -> what is usual there.
        sizes_ml: Label -> its size in millilitres; None where voxels' sizes are not known.
        codes: What the file states, by `silofl.reading.dicom_codes.read_codes`.
    """
    checks = {
        "the selector's score": _check_score(usual, answer),
        "the look of the image to the network": _check_features(usual, answer),
    }
    if study.task == "segmentation":
        checks["the size of the answer"] = _check_sizes(usual, sizes_ml)
    # A hospital that took no part has no class: nobody knows how its cases score, only that it is less.
    if not answer.scores or len(usual) > 1:
        del checks["the selector's score"]
    # Each gets the same share of the false alarms.
    share = FALSE_ALARMS / max(1, sum(map(len, checks.values())))
    found = [sentence for some in checks.values() for one in some if (sentence := one.describe(share))]
    unchecked = [what for what, some in checks.items() if not some]
    known = {what for one in usual.values() for what in one.codes or ()}
    unchecked += [f"the stated {what}" for what in codes if what not in known]
    deviations = {
        one.what: (one.value - one.spread.mean) / one.spread.deviation
        for some in checks.values()
        for one in some
        if one.spread.deviation
    }
    return Comparison((*found, *_compare_codes(usual, codes)), tuple(unchecked), deviations)


def _check_sizes(usual: Mapping[str, Usual], sizes_ml: Mapping[str, float] | None) -> list[Check]:
    remedy = "look at the answer, at what the image shows, and at the size of its voxels"
    tables = [one.roots_ml or {} for one in usual.values()]
    found = []
    for label, value in root_sizes(sizes_ml or {}).items():
        if known := [table[label] for table in tables if label in table]:
            found.append(Check(f"the size of {label}", value, pool_spreads(known), _show_size, remedy))
    return found


def _check_score(usual: Mapping[str, Usual], answer: CaseAnswer) -> list[Check]:
    """Compare the highest score with those of the only hospital's own cases."""
    known = [one.score for one in usual.values() if one.score]
    if not known or not answer.scores:
        return []
    remedy = "see that the image shows the same body part, taken the same way"
    value = log_odds(max(answer.scores.values()))
    return [Check("the selector's score", value, pool_spreads(known), _show_probability, remedy, has_high=False)]


def _check_features(usual: Mapping[str, Usual], answer: CaseAnswer) -> list[Check]:
    """Compare the features of that model to which the image looks least unlike the training images.

    Of several hospitals a model's features count that all of them have measured: one hospital's do not say how much
    another one's images differ.
    """
    remedy = "see that the image shows the same body part, taken the same way, and look at the answer"
    found = []
    for model, features in answer.features.items():
        named = {site: one.features[model] for site, one in usual.items() if model in (one.features or ())}
        known = [one for one in named.values() if len(one.mean) == len(features)]
        if known and len(known) == len(usual):
            value, spread = _pool_distance(features, known)
            found.append(
                Check("the look of the image to the network", value, spread, _show_distance, remedy, has_low=False)
            )
    return sorted(found, key=lambda one: (one.value - one.spread.mean) / (one.spread.deviation or 1))[:1]


def _pool_distance(features: NDArray, known: Sequence[FeatureSpread]) -> tuple[float, Spread]:
    """Return an image's distance to the features of all hospitals, and the spread to be expected of it."""
    means, variances = (np.array([getattr(one, key) for one in known]) for key in ("mean", "variance"))
    between = means.var(axis=0, ddof=1) * (1 + 1 / len(known)) if len(known) > 1 else 0.0
    distance = measure_distance(features, means.mean(axis=0), variances.mean(axis=0) + between)
    return distance, pool_spreads([one.distance for one in known])


def _compare_codes(usual: Mapping[str, Usual], codes: Mapping[str, str]) -> list[str]:
    found = []
    for what, code in codes.items():
        known = sorted({one for table in usual.values() for one in (table.codes or {}).get(what, ())})
        if known and code not in known:
            found.append(
                f"the file states another {what} than training's files: {code}, theirs {' or '.join(known)}; see that "
                "it is the image that the models are for"
            )
    return found


def _show_size(root: float, more: int) -> str:
    size = max(root, 0.0) ** 3
    return f"{size:.{(size < 100) + more}f} ml"


def _show_probability(value: float, more: int) -> str:
    return f"{1 / (1 + math.exp(-value)):.{3 + more}g}"


def _show_distance(value: float, more: int) -> str:
    return f"a distance of {math.exp(value / 2):.{2 + more}g}"


def pack_usual(usual: Mapping[str, Usual]) -> dict[str, Any]:
    """Return what is usual as plain values; a network's features as one text each, which are hundreds."""
    packed: dict[str, Any] = dump_record(usual)
    for one in packed.values():
        for features in one.get("features", {}).values():
            features |= {key: " ".join(f"{number:.5g}" for number in features[key]) for key in FEATURES}
    return packed


def unpack_usual(packed: Mapping[str, Any]) -> dict[str, Usual]:
    """Return what `pack_usual` packed; of another kind, a key raises KeyError, TypeError or AttributeError.

    Raises:
        ConfigError: A value is none that is usual.
    """
    found = {}
    for site, one in packed.items():
        texts = one.get("features", {})
        features = {name: kept | {key: _read_numbers(kept[key]) for key in FEATURES} for name, kept in texts.items()}
        found[site] = read_record(Usual, {**one, "features": features}, f"usual.{site}")
    return found


def _read_numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split()]
    except ValueError:
        raise ConfigError(f"features must be numbers with blanks between them, not {quote_value(text)}") from None
