"""The record of a model's evaluation on labelled cases of a site, ``evaluation.json``: it names no case or patient."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from silofl.base.schema import declare_optional
from silofl.base.settings import Natural
from silofl.core.intervals import Estimate
from silofl.study import Study
from silofl.training.metrics import Label
from silofl.training.site_score import Counts, only_known_keys

FILE = "evaluation.json"
# This group has the scores of all cases; no label has an empty name.
ALL = ""
MISSING = Estimate(None, None, 0)
# Group, the name of a label or class, or empty -> score -> estimate.
Scores = Mapping[str, Mapping[str, Estimate]]


@only_known_keys
@dataclass(frozen=True, kw_only=True)
class TestedCases:
    """The test cases of a site that a model was given, and how they are counted: what may leave the site of them.

    Attributes:
        num_cases: Cases that were answered.
        num_refused: Cases that were not, as `predict` would refuse them.
        unit: What counts once in an interval: patient, recording or case.
        num_units: How many of them were answered.
        distance_unit: Segmentation: of HD95.
        size_unit: Segmentation: of sizes.
        least: The fewest patients of a number that is not withheld; 0 where none is.
    """

    num_cases: Natural = 0
    num_refused: Natural = 0
    unit: Literal["patient", "recording", "case"] = "case"
    num_units: Natural = 0
    distance_unit: Literal["mm", "pixels"] | None = declare_optional()
    size_unit: Literal["ml", "pixels"] | None = declare_optional()
    least: Natural = declare_optional(0)


@dataclass(frozen=True)
class Subgroup:
    """A group of cases, as those of one scanner.

    Attributes:
        num_cases: How many were answered; null where too few patients are in it, or would follow from it.
        num_units: What counts once in an interval, of them.
        scores: Score -> estimate: the study's metric, what else is of all cases, and each label, class or finding.
        withheld: Names of the scores that are of too few patients.
    """

    FORMER_KEYS: ClassVar = ("differences", "p_values")
    num_cases: int | None
    num_units: int | None
    scores: Mapping[str, Estimate]
    withheld: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Evaluation(TestedCases):
    """The content of evaluation.json.

    Attributes:
        fingerprint: Of the model.
        study: Name of the study that trained it.
        task: The study's.
        metric: The study's.
        rule: Whose model answers.
        quality: What the model's own test said; empty where not known.
        parts: Parts of the site's data whose cases are counted.
        scores: Of all cases under an empty name: the study's metric; of a classification ``accuracy``, the means over
            the classes that there are, ``balanced_accuracy`` and ``auroc``, and the expected calibration error of the
            answers over ten bins, ``ece``, with what a perfectly calibrated model has, ``ece_calibrated``. Of a label:
            ``dice``, mean over the cases in which truth or prediction has it; ``hd95`` and ``surface_dice``, of those
            in which both have it; ``lesion_sensitivity``, the share of the components of which a voxel is predicted;
            ``false_lesions``, predicted ones without a voxel of a true one, per case; ``size_error``, predicted minus
            true size with its limits of agreement. Of a class, of two the second alone: ``recall``; ``specificity``;
            ``auroc`` with DeLong's interval; ``average_precision``.
        num_excluded: Cases that do not count: a segmentation's without any label in truth and prediction.
        num_empty: Segmentation: cases without any label in truth.
        num_false_positive: Those of them in which a label is predicted.
        answers: Name of a model, or of several together -> cases that it answered.
        warnings: What `predict` warns of -> cases.
        lesions: Segmentation: label, or region -> connected components in truth.
        decision_thresholds: Class, or finding -> the probability from which the model calls a case so, chosen on
            validation data; null where it has none.
        confusion: Classification, not multilabel: true class -> answered class -> cases.
        temperature: What divided the model's logits; 1 where nothing did.
        versions: Library -> its version.
        subgroups: What the cases are divided by -> group -> its scores, where that was asked for.
        prevalence: The share of patients with a class, or finding, for which predictive values are asked.
    """

    RENAMED_KEYS: ClassVar = {"called_from": "decision_thresholds"}
    FORMER_KEYS: ClassVar = ("cut", "against", "calibration", "specificity", "withheld")
    fingerprint: str
    study: str
    task: str
    metric: str
    rule: str
    quality: str
    parts: tuple[str, ...]
    scores: Scores
    num_excluded: int
    answers: Counts
    warnings: Counts
    versions: Mapping[str, str]
    num_empty: int | None = declare_optional()
    num_false_positive: int | None = declare_optional()
    lesions: Mapping[str, int] | None = declare_optional()
    decision_thresholds: Mapping[str, float] | None = declare_optional()
    confusion: Mapping[str, Mapping[str, int]] | None = declare_optional()
    temperature: float = declare_optional(1.0)
    subgroups: Mapping[str, Mapping[str, Subgroup]] | None = declare_optional()
    prevalence: float | None = declare_optional()

    @property
    def has_findings(self) -> bool:
        """Whether a case may have any number of findings."""
        return self.task == "multilabel"

    @property
    def is_segmentation(self) -> bool:
        """Whether label maps are answered."""
        return self.task == "segmentation"

    @property
    def value(self) -> Estimate:
        """The study's metric."""
        return self.scores[ALL][self.metric]

    @property
    def groups(self) -> Scores:
        """The scores of each label, or class, by its name."""
        return {group: scores for group, scores in self.scores.items() if group != ALL}

    @property
    def divided(self) -> list[tuple[str, str, Subgroup]]:
        """What cases are divided by, group, and its scores, of all groups."""
        divided = []
        for division, groups in (self.subgroups or {}).items():
            divided += [(division, group, subgroup) for group, subgroup in groups.items()]
        return divided


def list_compared_classes(study: Study) -> list[int]:
    """Return the classes that are each compared with all others, or findings; none of a segmentation.

    Of two classes that is the second alone.
    """
    if study.task == "segmentation":
        return []
    # Of two classes each one's scores follow from the other's.
    labels = sorted(study.labels)
    return labels[1:] if len(labels) == 2 and not study.is_multilabel else labels


def name_labels(study: Study) -> dict[Label, str]:
    """Return label, class or finding -> what the mean over its cases is called; absences of findings too."""
    measure = "sensitivity" if study.is_multilabel else "recall"
    if study.task == "segmentation":
        measure = "Dice"
    names: dict[Label, str] = {}
    for key in study.scored:
        # A region is named in the study, not numbered; another name is that of a finding's absence.
        if isinstance(key, int) or study.task == "segmentation":
            names[key] = f"{measure} of {study.name_label(key)}"
        else:
            names[key] = f"specificity: {key}"
    return names
