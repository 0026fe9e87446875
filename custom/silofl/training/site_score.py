"""A site's score of a model on one part of its data: numbers over all its cases, and no case's name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, Strict, with_config

from silofl.core.calling import LEAST_TEMPERATURE, MOST_TEMPERATURE
from silofl.errors import ConfigError
from silofl.schema import declare_optional

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
MaybeCounts = Annotated[Mapping[Key, Cases | None], Field(max_length=1000)]
Values = Annotated[Mapping[Key, Value | None], Field(max_length=1000)]

only_known_keys = with_config(ConfigDict(extra="forbid"))


@only_known_keys
@dataclass(frozen=True)
class SelectorCounts:
    """The outputs that FedSM's selector gives a site's test data to.

    Attributes:
        cases: Output of the selector -> number of cases, each by the mean over its slices.
        slices: Output of the selector -> number of slices.
    """

    cases: Counts
    slices: Counts


@only_known_keys
@dataclass(frozen=True)
class SurfaceScore:
    """The surface distances of a site's test.

    Attributes:
        hd95: The 95th percentile of the distances between both surfaces, the larger of both directions; mean over
            labels or regions, then over cases. Null without cases.
        surface_dice: Share of both surfaces within 2 mm, or 2 pixels, of the other; the same means.
        num_cases: Cases that count.
        num_undefined: Cases in which truth, prediction or both lack a label.
        unit: mm where all files state their voxels' size; else pixels of the prepared images.
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
        value: Mean over labels or regions, then over cases; null where no case counts.
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
class CallingScore:
    """How a classification's probabilities are read, by a site's validation, and what that comes to in its test.

    Attributes:
        temperature: Divides the logits; 1 changes nothing.
        thresholds: Number of a class, or finding -> the probability, before the temperature, from which it is called.
        num_units: Validation patients, recordings or cases that it was chosen by.
        error: Expected calibration error in the test, without the temperature.
        error_after: The same with it.
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

    @property
    def helps(self) -> bool:
        """Whether the temperature brings the probabilities nearer to the shares of right answers."""
        return self.error_after < self.error


@only_known_keys
@dataclass(frozen=True, kw_only=True)
class SiteScore:
    """One site's score on its validation or test data.

    Attributes:
        value: The study's metric, mean over the cases that count; null where none counts.
        num_cases: Cases that count.
        num_excluded: Cases left out: truth and prediction are both empty.
        num_patients: Test: patients of the cases that count; null where one is not known.
        labels: Label's number, or region -> its mean value; the recall of a class. Of findings, and of their absence.
        also: Classification: accuracy, balanced_accuracy and, where defined, auroc.
        label_cases: Classification: label's number -> cases in which it counts.
        areas: Multilabel: finding's number -> area, as in the results.
        models: Model, of several -> its value on the same cases.
        selector_accuracy: Share of the validation slices that FedSM's selector takes for this site's.
        num_empty: Segmentation: cases without any label in truth; null where there is none.
        num_false_positive: Empty cases in which a label is predicted; they count as 0.
        value_with_truth: Mean over the other cases; null without them, or without empty ones.
        surface: Segmentation, in the test.
        extra_metrics: Segmentation, in the test: a package's metric -> its score.
        calling: Classification, in the test: how the probabilities are read.
    """

    value: Value | None
    num_cases: Cases
    num_excluded: Cases
    num_patients: Cases | None = declare_optional()
    labels: Shares | None = declare_optional()
    also: Shares | None = declare_optional()
    label_cases: Counts | None = declare_optional()
    areas: Shares | None = declare_optional()
    models: Values | None = declare_optional()
    selector_accuracy: Value | None = declare_optional()
    num_empty: Cases | None = declare_optional()
    num_false_positive: Cases | None = declare_optional()
    value_with_truth: Value | None = declare_optional()
    surface: SurfaceScore | None = declare_optional()
    extra_metrics: Mapping[str, ExtraScore] | None = declare_optional()
    calling: CallingScore | None = declare_optional()

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


@only_known_keys
@dataclass(frozen=True, kw_only=True)
class SuperScore(SiteScore):
    """One site's test of a super model: its value, its models' values, and its selector's choices.

    Attributes:
        models: Name of a model, ``ensemble`` or ``super`` -> its value on the same cases.
        choices: Model -> number of cases for which it is chosen.
        selector: The outputs that the selector gives cases and slices to.
        by_threshold: For each candidate of the threshold the sum of the cases' values and their number.
        temperatures: Classification: the global model and the site's own -> what divides the logits where it answers
            alone, by the site's validation cases.
    """

    models: Values
    choices: Counts
    selector: SelectorCounts
    by_threshold: Counted
    temperatures: Annotated[Mapping[Key, Temperature], Field(max_length=2)] | None = declare_optional()
