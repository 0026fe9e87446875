"""A site's score of a model on one part of its data: numbers over all its cases, and no case's name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, Strict, with_config

from silofl.base.errors import ConfigError
from silofl.base.schema import declare_optional
from silofl.core.operating_point import LEAST_TEMPERATURE, MOST_TEMPERATURE
from silofl.training.metrics import mean_of_known, pool_values

# The ranges hold where a score arrives from a site (`silofl.parts.answer`); a file of our own is read by its types.
Value = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
Sum = Annotated[float, Strict(), Field(ge=0, le=10**7, allow_inf_nan=False)]
Cases = Annotated[int, Strict(), Field(ge=0, le=10**7)]
Key = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,100}$")]
# In pixels or mm; no image has a longer side.
Distance = Annotated[float, Strict(), Field(ge=0, le=10**5, allow_inf_nan=False)]
Temperature = Annotated[float, Strict(), Field(ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE, allow_inf_nan=False)]
Counts = Annotated[Mapping[Key, Cases], Field(max_length=1000)]
Shares = Annotated[Mapping[Key, Value], Field(max_length=1000)]
Counted = Annotated[tuple[tuple[Sum, Cases], ...], Field(max_length=100)]
Values = Annotated[Mapping[Key, Value | None], Field(max_length=1000)]

only_known_keys = with_config(ConfigDict(extra="forbid"))


@only_known_keys
@dataclass(frozen=True)
class SelectorCounts:
    """The outputs that FedSM's selector gives a site's test data to.

    Attributes:
        cases: Output of the selector -> number of cases, each by the mean over its slices.
    """

    FORMER_KEYS: ClassVar = ("slices",)
    cases: Counts


@only_known_keys
@dataclass(frozen=True)
class SurfaceScore:
    """The surface distances of a site's test.

    Attributes:
        hd95: The 95th percentile of the distances between both surfaces, the larger of both directions; mean over
            labels or regions, then over cases.
        surface_dice: Share of both surfaces within 2 mm, or 2 pixels, of the other; the same means.
        num_cases: Cases that count.
        num_undefined: Cases in which truth, prediction or both lack a label.
        unit: mm if all files state the size of their voxels; else pixels of the prepared images.
    """

    hd95: Distance | None
    surface_dice: Value | None
    num_cases: Cases
    num_undefined: Cases
    unit: Literal["mm", "pixels"] = declare_optional("pixels")

    def __post_init__(self) -> None:
        """Refuse distances without cases, and cases without distances."""
        if {self.hd95 is None, self.surface_dice is None} != {self.num_cases == 0}:
            raise ConfigError(
                "hd95 and surface_dice must be null where no case counts and only there, not "
                f"{self.hd95} and {self.surface_dice} of {self.num_cases}"
            )


@only_known_keys
@dataclass(frozen=True)
class ExtraScore:
    """A package's metric in a site's test.

    Attributes:
        value: Mean over labels or regions, then over cases; null if no case counts.
        num_cases: Cases in which it is defined.
        has_failed: Whether the package failed; the site's log says how.
    """

    value: Value | None
    num_cases: Cases
    has_failed: Annotated[bool, Strict()] = declare_optional(False)

    def __post_init__(self) -> None:
        """Refuse a value without cases, cases without a value, and either of a metric that has failed."""
        if (self.value is None) != (self.num_cases == 0) or (self.has_failed and self.num_cases):
            raise ConfigError(
                "value must be null where no case counts or the metric has failed, and only there, not "
                f"{self.value} of {self.num_cases}"
            )


@only_known_keys
@dataclass(frozen=True)
class OperatingPointScore:
    """A classification's temperature and thresholds, chosen on a site's validation data, and how they do in its test.

    Attributes:
        temperature: Divides the logits; 1 changes nothing.
        thresholds: Number of a class, or finding -> its decision threshold: a probability before the temperature.
        num_units: Validation patients (if unknown: recordings, or cases) of the choice.
        error: Expected calibration error in the test, without the temperature; 0 is perfect.
        error_after: The error with the temperature.
        calibrated: The error that a perfectly calibrated model would show in as many cases.
        calibrated_after: The error of that model with the temperature.
        sensitivity: Class, or finding -> share of its test cases at or above the threshold.
        specificity: Class, or finding -> share of the other test cases below it.
    """

    temperature: Temperature
    thresholds: Shares
    num_units: Cases
    error: Value
    error_after: Value
    sensitivity: Shares
    specificity: Shares
    calibrated: Value | None = declare_optional()
    calibrated_after: Value | None = declare_optional()


@only_known_keys
@dataclass(frozen=True)
class WithheldNumbers:
    """Numbers of a score that a site withholds, because they are of too few patients.

    Attributes:
        least: The site's minimum number of patients.
        names: Label's number, region, finding or measure; none if the whole score is withheld.
    """

    least: Cases
    names: Annotated[tuple[Key, ...], Field(max_length=1000)] = declare_optional(())


@only_known_keys
@dataclass(frozen=True, kw_only=True)
class SiteScore:
    """One site's score on its validation or test data.

    Attributes:
        value: The study's metric, mean over the cases that count; null if none counts.
        num_cases: Cases that count.
        num_excluded: Cases left out: truth and prediction are both empty.
        num_patients: Test: patients of the cases that count; null if one is unknown.
        labels: Label's number, or region -> its mean value; for a class, a finding or its absence: the recall.
        also: Classification: accuracy, balanced_accuracy and, if defined, auroc.
        label_cases: Classification: label's number -> cases in which it counts.
        areas: Number of a class, or finding -> its area under the curve.
        mean_over: If the metric is a mean over the classes: whether of labels or of areas.
        models: Model, ``ensemble`` or ``super`` -> its value on the same cases.
        choices: Super model: model -> number of cases for which it is chosen.
        selector: Super model.
        selector_accuracy: Share of the validation slices that FedSM's selector takes for this site's.
        num_empty: Segmentation: cases without any label in truth; null if there are none.
        num_false_positive: Empty cases in which a label is predicted; they count as 0.
        value_with_truth: Mean over the other cases; null without them, or without empty ones.
        surface: Segmentation, in the test.
        extra_metrics: Segmentation, in the test: a package's metric -> its score.
        operating_point: Classification, in the test: temperature and thresholds.
        withheld: The withheld numbers; a wholly withheld score has no value and no vote.
    """

    # Release 0.4 wrote the key on the left.
    RENAMED_KEYS: ClassVar = {"calling": "operating_point"}
    value: Value | None
    num_cases: Cases
    num_excluded: Cases
    num_patients: Cases | None = declare_optional()
    labels: Shares | None = declare_optional()
    also: Shares | None = declare_optional()
    label_cases: Counts | None = declare_optional()
    areas: Shares | None = declare_optional()
    mean_over: Literal["labels", "areas"] | None = declare_optional()
    models: Values | None = declare_optional()
    choices: Counts | None = declare_optional()
    selector: SelectorCounts | None = declare_optional()
    selector_accuracy: Value | None = declare_optional()
    num_empty: Cases | None = declare_optional()
    num_false_positive: Cases | None = declare_optional()
    value_with_truth: Value | None = declare_optional()
    surface: SurfaceScore | None = declare_optional()
    extra_metrics: Mapping[str, ExtraScore] | None = declare_optional()
    operating_point: OperatingPointScore | None = declare_optional()
    withheld: WithheldNumbers | None = declare_optional()

    def __post_init__(self) -> None:
        """Refuse a value without cases or cases without one, more patients than cases, and other labels by case."""
        if (self.value is None) != (self.num_cases == 0):
            raise ConfigError(
                f"value must be null where no case counts and only there, not {self.value} of {self.num_cases}"
            )
        if (self.num_patients or 0) > self.num_cases:
            raise ConfigError(
                f"num_patients must be at most num_cases, {self.num_cases}, not {self.num_patients}: a case has one"
            )
        if self.label_cases is not None and self.label_cases.keys() != (self.labels or {}).keys():
            labels = list(self.labels or ())
            raise ConfigError(f"label_cases must be given for the labels {labels}, not for {list(self.label_cases)}")

    @property
    def is_withheld(self) -> bool:
        """Whether all of it is withheld, the number of cases too."""
        return self.withheld is not None and self.value is None

    @property
    def by_class(self) -> Mapping[str, float] | None:
        """The classes' values that the value is the mean of; None where it is the mean over cases."""
        tables = {"labels": self.labels, "areas": self.areas}
        return (tables[self.mean_over] or {}) if self.mean_over else None


@only_known_keys
@dataclass(frozen=True, kw_only=True)
class SuperScore(SiteScore):
    """One site's test of a super model, which must have its models' values and its selector's choices."""

    models: Values = field()
    choices: Counts = field()
    selector: SelectorCounts = field()


def have_same_classes(scores: Iterable[SiteScore]) -> bool:
    """Return whether values can be compared and averaged: no mean over classes is over others than another one."""
    tables = [score.by_class for score in scores if score.value is not None]
    return len({None if table is None else frozenset(table) for table in tables}) < 2


def mean_of_scores(scores: Iterable[SiteScore]) -> float | None:
    """Return the mean over the sites that have a value, or over all cases where their classes differ; None without."""
    known = [score for score in scores if score.value is not None]
    if have_same_classes(known):
        return mean_of_known(score.value for score in known)
    return pool_scores(known)


def pool_scores(scores: Iterable[SiteScore]) -> float | None:
    """Return the metric over all sites' cases.

    A mean over classes is pooled class by class: over the sites that have it, each weighted by its cases of it. Of
    areas under curves that is a mean, as only a site knows its cases' scores.
    """
    values: list[tuple[float, int]] = []
    by_class: dict[str, list[tuple[float, int]]] = {}
    has_classes = False
    for score in scores:
        if score.by_class is not None:
            has_classes = True
            label_cases = score.label_cases or {}
            for label, value in score.by_class.items():
                by_class.setdefault(label, []).append((value, label_cases.get(label, 0)))
        elif score.value is not None:
            values.append((score.value, score.num_cases))
    if has_classes:
        # A site may name a class of which no case counts.
        return mean_of_known(map(pool_values, by_class.values()))
    return pool_values(values)


def measure_rise(new: Sequence[SiteScore], old: Sequence[SiteScore]) -> float:
    """Return the median of the sites' changes; of two sites that is the mean.

    Of means over different classes it is the mean over the classes, each of which has the median of the changes of the
    sites that have it. Cases do not weigh: a site could invent them.

    Args:
        new: Scores with a value, at least one.
        old: Of the same sites, in the same order.
    """
    is_plain = have_same_classes([*new, *old])

    def list_values(score: SiteScore) -> Mapping[str, Any]:
        # Where classes do not differ, the value itself is the only class.
        return {"": score.value} if is_plain else score.by_class or {}

    changes: dict[str, list[float]] = {}
    for after, before in zip(new, old, strict=True):
        values_before = list_values(before)
        for label, value in list_values(after).items():
            if label in values_before:
                changes.setdefault(label, []).append(value - values_before[label])
    rises = [median(of_class) for of_class in changes.values()]
    return sum(rises) / max(len(rises), 1)
