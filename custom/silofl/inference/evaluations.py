"""The record of a model's evaluation at several hospitals, ``evaluations.json``, and a hospital's scores on their way.

A hospital sends one array of float64, a row for each score that the study names: value, low and high end of its
interval, and the number of cases that count. Nothing else fits into it: no text, no case, no further number.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import AggregationError
from silofl.base.schema import declare_optional
from silofl.core.heterogeneity import PooledEstimate, pool_estimates
from silofl.core.intervals import ROUNDING, Estimate
from silofl.data.groups import list_groups
from silofl.inference.evaluation import (
    ALL,
    MISSING,
    Evaluation,
    Scores,
    TestedCases,
    list_compared_classes,
    name_labels,
)
from silofl.study import Study
from silofl.study.sections import CLASS_MEANS
from silofl.training.small_cells import DECIMALS, round_significant

FILE = "evaluations.json"
ECE, CALIBRATED, SIZE_ERROR, HD95 = "ece", "ece_calibrated", "size_error", "hd95"
SPECIFICITY = "specificity"
OF_LABELS = ("dice", "lesion_sensitivity", "false_lesions", SIZE_ERROR, HD95, "surface_dice")
OF_CLASSES = ("recall", "auroc", "average_precision")
OF_ALL = ("accuracy", "balanced_accuracy", "auroc", ECE, CALIBRATED)
# A group of cases has none of these scores, which are of one label.
OF_ONE_LABEL = {"recall", *OF_LABELS[1:]}
NO_SHARES = ("false_lesions", SIZE_ERROR, HD95)
UNIT_OF = {SIZE_ERROR: "size_unit", HD95: "distance_unit"}
# The interval of a size error is of single cases, and a calibration error depends on the number of cases: no mean over
# hospitals says anything.
NOT_POOLED = (SIZE_ERROR, ECE, CALIBRATED)
COLUMNS = 4
# It stands in place of a number of cases: the hospital does not say the score, which would be of too few patients.
NOT_SAID = -1


@dataclass(frozen=True, kw_only=True)
class HospitalEvaluation(TestedCases):
    """What one hospital says of a model.

    Attributes:
        is_checked: Whether it could compare its test images with those that the model learnt from there.
        scores: Its scores.
        not_said: Group -> names of the scores that it withholds; null where it says all.
    """

    is_checked: bool = declare_optional(False)
    scores: Scores
    not_said: Mapping[str, tuple[str, ...]] | None = declare_optional()


@dataclass(frozen=True)
class Evaluations:
    """The content of evaluations.json.

    Attributes:
        fingerprint: Of the model.
        model: Name of the study that trained it.
        sites: Hospital -> what it says.
        pooled: Group -> score -> over all hospitals; null where fewer than two have an interval.
        temperature: Classification: what divided the model's logits.
        decision_thresholds: Class, or finding -> the probability from which a case is called so, where it has one.
        quality: What the model's own test said; empty where not known.
    """

    RENAMED_KEYS: ClassVar = {"called_from": "decision_thresholds"}
    FORMER_KEYS: ClassVar = ("specificity",)
    fingerprint: str
    model: str
    sites: Mapping[str, HospitalEvaluation]
    pooled: Mapping[str, Mapping[str, PooledEstimate | None]]
    temperature: float = declare_optional(1.0)
    decision_thresholds: Mapping[str, float] | None = declare_optional()
    quality: str = declare_optional("")

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, classes or findings that have scores."""
        return tuple(group for group in self.pooled if group not in (ALL, *self.divided))

    @property
    def divided(self) -> tuple[str, ...]:
        """The groups of cases that have scores."""
        return tuple(
            group for group, scores in self.pooled.items() if group != ALL and not scores.keys() & OF_ONE_LABEL
        )


def list_scores(study: Study) -> list[tuple[str, str]]:
    """Return group and name of each score that a hospital sends in a study, in the order of the rows."""
    if study.task == "segmentation":
        groups = [study.name_label(key) for key in study.scored]
        of_all: Sequence[str] = (study.metric,)
        of_groups: Sequence[str] = OF_LABELS
    else:
        groups = [study.labels[label] for label in list_compared_classes(study)]
        of_all = [*dict.fromkeys((study.metric, *OF_ALL))]
        of_groups = OF_CLASSES
        if study.is_multilabel or study.operating_point is not None:
            of_groups = (OF_CLASSES[0], SPECIFICITY, *OF_CLASSES[1:])
    scores = [(ALL, name) for name in of_all]
    for group in groups:
        scores += [(group, name) for name in of_groups]
    # The order is that of the rows that travel: server and hospital derive it from the same study.
    of_subgroups = (study.metric, *name_labels(study).values())
    for division, wanted in study.subgroups.items():
        for group in list_groups(wanted):
            scores += [(f"{division}: {group}", name) for name in of_subgroups]
    return scores


def pack_scores(record: Evaluation, study: Study, few: Collection[str] = (), least: int = 0) -> NDArray[np.float64]:
    """Return a hospital's scores as they travel, rounded, shape (scores, 4).

    Args:
        few: Names of the labels or classes that too few patients have.
        least: Patients that each score must be of.
    """
    scores: dict[str, Mapping[str, Estimate]] = dict(record.scores)
    withheld = set()
    for division, group, subgroup in record.divided:
        key = f"{division}: {group}"
        scores[key] = subgroup.scores
        withheld |= {(key, name) for name in subgroup.withheld}
    rows: list[tuple[float, ...]] = []
    for group, name in list_scores(study):
        estimate = scores.get(group, {}).get(name, MISSING)
        # Means over the classes have those of few in them.
        is_few = group in few or bool(group == ALL and few and name in CLASS_MEANS)
        is_withheld = estimate.value is not None and (is_few or 0 < estimate.num_cases < least)
        if is_withheld or (group, name) in withheld:
            rows.append((0.0, 0.0, 0.0, float(NOT_SAID)))
        elif estimate.value is None:
            rows.append((0.0,) * COLUMNS)
        else:
            # Without an interval both ends are the value: no interval is as narrow.
            numbers = (estimate.value, *(estimate.interval or (estimate.value, estimate.value)))
            # A size has no digits that are too many whatever its unit is: the first ones count.
            rounded = [round_significant(n) if name == SIZE_ERROR else round(n, DECIMALS) for n in numbers]
            rows.append((*rounded, estimate.num_cases))
    return np.array(rows, np.float64)


def unpack_scores(
    site: str, rows: NDArray[np.float64], study: Study
) -> tuple[dict[str, dict[str, Estimate]], dict[str, tuple[str, ...]]]:
    """Return the scores that a hospital sent, and group -> names of those that it withholds.

    Args:
        rows: Shape (scores, 4).

    Raises:
        AggregationError: A number of cases is none, an interval is turned round, or a share is not one.
    """
    scores: dict[str, dict[str, Estimate]] = {}
    not_said: dict[str, tuple[str, ...]] = {}
    for (group, name), row in zip(list_scores(study), rows.tolist(), strict=True):
        value, low, high, cases = row
        estimate = MISSING
        is_possible = name in NO_SHARES or (min(row) >= 0 and max(value, low, high) <= 1 + ROUNDING)
        # The one negative number of cases that means something; every other one is refused.
        if row == [0, 0, 0, NOT_SAID]:
            not_said[group] = (*not_said.get(group, ()), name)
        elif cases != int(cases) or cases < 0 or low > high or not is_possible:
            raise AggregationError(
                f"site {site!r} sent {row} as {name}, in place of a share, or a size, the ends of its interval and a "
                "number of cases"
            )
        elif cases:
            # Narrower than numbers of so many digits tell, it is none; a hospital's score would count alone by it.
            interval = (low, high) if high - low > ROUNDING else None
            estimate = Estimate(value, interval, int(cases))
        scores.setdefault(group, {})[name] = estimate
    return scores, not_said


def pool_hospitals(
    sites: Mapping[str, HospitalEvaluation], study: Study
) -> dict[str, dict[str, PooledEstimate | None]]:
    """Return each score over all hospitals; None of one that has no mean, or is of other units or classes at some."""
    pooled: dict[str, dict[str, PooledEstimate | None]] = {}
    for group, name in list_scores(study):
        mean = None
        if _has_mean(sites, group, name):
            mean = pool_estimates({site: record.scores[group][name] for site, record in sites.items()})
        if mean is not None and name not in NO_SHARES:
            # The interval of the mean is that of a bell curve, which knows no ends of a share.
            low, high = mean.interval
            mean = replace(mean, interval=(max(low, 0.0), min(high, 1.0)))
        pooled.setdefault(group, {})[name] = mean
    return pooled


def _has_mean(sites: Mapping[str, HospitalEvaluation], group: str, name: str) -> bool:
    if name in UNIT_OF and len({getattr(record, UNIT_OF[name]) for record in sites.values()}) > 1:
        return False
    return name not in NOT_POOLED and not (group == ALL and has_different_classes(sites, name))


def has_different_classes(sites: Mapping[str, HospitalEvaluation], name: str) -> bool:
    """Return whether a score of all cases is a mean over classes, of which hospitals that have it have other ones."""
    if name not in CLASS_MEANS:
        return False
    patterns = set()
    for record in sites.values():
        if record.scores[ALL][name].value is not None:
            # Without an area there are no other cases, or none of the class.
            classes = [scores for scores in record.scores.values() if "recall" in scores]
            patterns.add(tuple((c["recall"].value is None) + (c["auroc"].value is None) for c in classes))
    return len(patterns) > 1
