"""The record of a model's evaluation on labelled cases of a site, ``evaluation.json``: it names no case or patient."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from silofl.core.calibration import ReliabilityBin
from silofl.core.intervals import Estimate
from silofl.core.lesions import Agreement
from silofl.core.roc import AreaDifference
from silofl.schema import declare_optional
from silofl.training.site_score import Counts

FILE = "evaluation.json"
# Among the main numbers, where a class's name alone is its recall.
SPECIFICITY_OF = "specificity of {}"


@dataclass(frozen=True)
class LabelScore:
    """How well a model segments one label, or region, on the grids of the images' files.

    Attributes:
        dice: Mean over the cases in which truth or prediction has it.
        hd95: 95th percentile of the distances between both surfaces, mean over the cases in which both have it.
        surface_dice: Share of both surfaces within 2 mm, or 2 pixels, of the other; the same mean.
        num_lesions: Connected components in truth.
        lesion_sensitivity: Share of them of which at least one voxel is predicted.
        false_lesions: Predicted components without a voxel of a true one, per case.
        size_error: Predicted minus true size of each case, in `size_unit`; null where no case has it.
        num_cut: Cases of whose true voxels the study crops some away, so that no answer can find them.
        cut_away: The share of them there, mean over these cases.
    """

    dice: Estimate
    hd95: Estimate
    surface_dice: Estimate
    num_lesions: int
    lesion_sensitivity: Estimate
    false_lesions: Estimate
    size_error: Agreement | None
    num_cut: int = declare_optional(0)
    cut_away: float | None = declare_optional()


@dataclass(frozen=True)
class ClassScore:
    """How well a model tells one class from all others.

    Attributes:
        recall: Share of its cases that are called so; where the model has a threshold, its sensitivity.
        auroc: Area under the ROC curve, with an interval of DeLong's variance.
        average_precision: Area under the precision-recall curve.
        sensitivity: Share of its cases with at least the threshold's probability.
        threshold: The probability that gives the most sensitivity at the specificity, chosen on these very cases; null
            where none is high enough.
        called_from: The probability from which the model calls a case so, chosen on validation data.
        specificity: Share of the other cases that are not called so; of a finding, or where there is such a threshold.
    """

    recall: Estimate
    auroc: Estimate
    average_precision: Estimate
    sensitivity: Estimate
    threshold: float | None
    called_from: float | None = declare_optional()
    specificity: Estimate | None = declare_optional()


@dataclass(frozen=True)
class Calibration:
    """Whether a model is as often right as it is sure.

    Attributes:
        error: Expected calibration error of the class that is answered, or of all answers to findings, over ten bins.
        bins: Those with a case.
        calibrated: The error that a perfectly calibrated model with these probabilities shows in as many cases, and
            the range of 95 % of such models.
        temperature: What divided the logits; 1 where nothing did, or each model's own.
        error_before: The error without the temperature, where there is one.
        temperatures: Those of the models that answered, where they differ; the least first.
        calibrated_before: The same without the temperature, where there is one.
    """

    error: Estimate
    bins: tuple[ReliabilityBin, ...]
    calibrated: Estimate
    temperature: float = declare_optional(1.0)
    error_before: Estimate | None = declare_optional()
    temperatures: tuple[float, ...] | None = declare_optional()
    calibrated_before: Estimate | None = declare_optional()


@dataclass(frozen=True)
class Comparison:
    """A model beside another one, on the cases that both answered.

    Attributes:
        fingerprint: Of the other model.
        num_cases: These cases.
        difference: The model's metric minus the other's, mean over the cases; null of a metric that no single case has.
        aurocs: Classification: class -> the model's area under the ROC curve minus the other's, with DeLong's test;
            without a class of which all cases are, or none.
    """

    fingerprint: str
    num_cases: int
    difference: Estimate
    aurocs: Mapping[str, AreaDifference]


@dataclass(frozen=True)
class Withheld:
    """The answers that the study's rule, ``do_not_use``, forbids to use.

    Attributes:
        num_cases: How many.
        reasons: Why -> cases.
        used: Number of all answers, as the study's metric, or a label's Dice -> the same over the other answers.
    """

    num_cases: int
    reasons: Counts
    used: Mapping[str, Estimate]


@dataclass(frozen=True)
class Evaluation:
    """The content of evaluation.json.

    Attributes:
        fingerprint: Of the model.
        study: Name of the study that trained it.
        task: The study's.
        metric: The study's.
        rule: Whose model answers.
        quality: What the model's own test said; empty where not known.
        parts: Parts of the site's data whose cases are counted.
        num_cases: Cases that were answered.
        num_refused: Cases that were not, as `predict` would refuse them.
        unit: What counts once in an interval: patient, recording or case.
        num_units: How many of them were answered.
        value: The study's metric.
        num_excluded: Cases that do not count: a segmentation's without any label in truth and prediction.
        num_empty: Segmentation: cases without any label in truth.
        num_false_positive: Those of them in which a label is predicted.
        answers: Name of a model, or of several together -> cases that it answered.
        warnings: What `predict` warns of -> cases.
        labels: Segmentation: label, or region -> its scores.
        distance_unit: Of HD95.
        size_unit: Of sizes.
        classes: Classification: class, or finding -> its scores; of two classes the second alone.
        also: Classification: accuracy; over the classes that there are the means balanced_accuracy and auroc, and the
            study's metric where it is such a mean.
        specificity: Classification: the one that thresholds are chosen for.
        confusion: Classification, not multilabel: true class -> answered class -> cases.
        calibration: Classification: of the probabilities.
        versions: Library -> its version.
        against: Beside another model, where one was given.
        withheld: What the study's rule forbids to use, where it states one.
    """

    fingerprint: str
    study: str
    task: str
    metric: str
    rule: str
    quality: str
    parts: tuple[str, ...]
    num_cases: int
    num_refused: int
    unit: str
    num_units: int
    value: Estimate
    num_excluded: int
    answers: Counts
    warnings: Counts
    versions: Mapping[str, str]
    num_empty: int | None = declare_optional()
    num_false_positive: int | None = declare_optional()
    labels: Mapping[str, LabelScore] | None = declare_optional()
    distance_unit: Literal["mm", "pixels"] | None = declare_optional()
    size_unit: Literal["ml", "pixels"] | None = declare_optional()
    classes: Mapping[str, ClassScore] | None = declare_optional()
    also: Mapping[str, Estimate] | None = declare_optional()
    specificity: float | None = declare_optional()
    confusion: Mapping[str, Mapping[str, int]] | None = declare_optional()
    calibration: Calibration | None = declare_optional()
    against: Comparison | None = declare_optional()
    withheld: Withheld | None = declare_optional()

    @property
    def has_findings(self) -> bool:
        """Whether a case may have any number of findings."""
        return self.task == "multilabel"

    @property
    def numbers(self) -> dict[str, Estimate]:
        """The study's metric, what else is of all cases, and by its name each label's Dice, or class's two shares."""
        of_labels = {name: one.dice for name, one in (self.labels or {}).items()}
        of_classes = {name: one.recall for name, one in (self.classes or {}).items()}
        spared = {SPECIFICITY_OF.format(name): one.specificity for name, one in (self.classes or {}).items()}
        known = {name: one for name, one in spared.items() if one is not None}
        return {self.metric: self.value} | dict(self.also or {}) | of_labels | of_classes | known
