"""The record of a model's evaluation at several hospitals, ``evaluations.json``, and a hospital's scores on their way.

A hospital sends one array of float64, a row for each score that the study names: value, low and high end of its
interval, and the number of cases that count. Nothing else fits into it: no text, no case, no further number.
"""

from collections.abc import Collection, Mapping
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
from silofl.training.floor import DECIMALS, round_significant

FILE = "evaluations.json"
ECE, CALIBRATED, SIZE_ERROR, HD95 = "ece", "ece_calibrated", "size_error", "hd95"
SPECIFICITY = "specificity"
OF_LABELS = ("dice", "lesion_sensitivity", "false_lesions", SIZE_ERROR, HD95, "surface_dice")
OF_CLASSES = ("recall", "auroc", "average_precision")
OF_ALL = ("accuracy", "balanced_accuracy", "auroc", ECE, CALIBRATED)
# No group of cases has these.
OF_ONE_LABEL = {"recall", *OF_LABELS[1:]}
NO_SHARES = ("false_lesions", SIZE_ERROR, HD95)
UNIT_OF = {SIZE_ERROR: "size_unit", HD95: "distance_unit"}
# The interval of a size error is of single cases. A calibration error depends on the number of cases.
NOT_POOLED = (SIZE_ERROR, ECE, CALIBRATED)
COLUMNS = 4
# In place of a number of cases: the hospital does not say the score, which would be of too few patients.
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
        called_from: Class, or finding -> the probability from which the model calls a case so, where it has one.
        quality: What the model's own test said; empty where not known.
    """

    FORMER_KEYS: ClassVar = ("specificity",)
    fingerprint: str
    model: str
    sites: Mapping[str, HospitalEvaluation]
    pooled: Mapping[str, Mapping[str, PooledEstimate | None]]
    temperature: float = declare_optional(1.0)
    called_from: Mapping[str, float] | None = declare_optional()
    quality: str = declare_optional("")

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, classes or findings that have scores."""
        return tuple(group for group in self.pooled if group not in (ALL, *self.divided))

    @property
    def divided(self) -> tuple[str, ...]:
        """The groups of cases that have scores."""
        return tuple(group for group, one in self.pooled.items() if group != ALL and not one.keys() & OF_ONE_LABEL)


def list_scores(study: Study) -> list[tuple[str, str]]:
    """Return group and name of each score that a hospital sends in a study, in the order of the rows."""
    if study.task == "segmentation":
        groups = [study.labels.get(key, key) if isinstance(key, int) else key for key in study.scored]
        own, scores = [study.metric], OF_LABELS
    else:
        groups = [study.labels[label] for label in list_compared_classes(study)]
        is_called = study.is_multilabel or study.operating_point is not None
        own = [*dict.fromkeys((study.metric, *OF_ALL))]
        scores = (OF_CLASSES[0], SPECIFICITY, *OF_CLASSES[1:]) if is_called else OF_CLASSES
    divided = [f"{by}: {group}" for by, wanted in study.subgroups.items() for group in list_groups(wanted)]
    measured = [*name_labels(study).values()]
    of_groups = (study.metric, *measured)
    return [
        *((ALL, name) for name in own),
        *((group, name) for group in groups for name in scores),
        *((group, name) for group in divided for name in of_groups),
    ]


def pack_scores(record: Evaluation, study: Study, few: Collection[str] = (), least: int = 0) -> NDArray[np.float64]:
    """Return a hospital's scores as they travel, rounded, shape (scores, 4).

    Args:
        few: Names of the labels or classes that too few patients have.
        least: Patients that each score must be of.
    """
    found, rows = _collect_scores(record), []
    # Of groups of cases those that are of too few patients.
    withheld = {(f"{by}: {group}", name) for by, group, one in record.divided for name in one.withheld}
    for group, name in list_scores(study):
        one = found.get(group, {}).get(name, MISSING)
        # Means over the classes have those of few in them.
        is_few = group in few or (group == ALL and few and name in CLASS_MEANS)
        is_said = one.value is None or not (is_few or 0 < one.num_cases < least)
        is_said = is_said and (group, name) not in withheld
        row = (0.0,) * (COLUMNS - 1) + (0.0 if is_said else float(NOT_SAID),)
        if is_said and one.value is not None:
            # No interval is as wide as nothing.
            numbers = (one.value, *(one.interval or (one.value, one.value)))
            rounded = [round_significant(n) if name == SIZE_ERROR else round(n, DECIMALS) for n in numbers]
            row = (*rounded, one.num_cases)
        rows.append(row)
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
    found: dict[str, dict[str, Estimate]] = {}
    not_said: dict[str, tuple[str, ...]] = {}
    for (group, name), row in zip(list_scores(study), rows.tolist(), strict=True):
        value, low, high, cases = row
        is_possible = not _is_share(name) or (min(row) >= 0 and max(value, low, high) <= 1 + ROUNDING)
        if row == [0, 0, 0, NOT_SAID]:
            found.setdefault(group, {})[name] = MISSING
            not_said[group] = (*not_said.get(group, ()), name)
            continue
        if cases != int(cases) or cases < 0 or low > high or not is_possible:
            raise AggregationError(
                f"site {site!r} must send {name} with a share, or a size, the ends of its interval and a number of "
                f"cases, not {row}"
            )
        # Narrower than numbers of so many digits tell, it is none; a hospital's score would count alone by it.
        interval = (low, high) if high - low > ROUNDING else None
        found.setdefault(group, {})[name] = Estimate(value, interval, int(cases)) if cases else MISSING
    return found, not_said


def pool_hospitals(
    sites: Mapping[str, HospitalEvaluation], study: Study
) -> dict[str, dict[str, PooledEstimate | None]]:
    """Return each score over all hospitals; None of one that has no mean, or is of other units or classes at some."""
    pooled: dict[str, dict[str, PooledEstimate | None]] = {}
    for group, name in list_scores(study):
        units = {getattr(one, UNIT_OF[name]) for one in sites.values()} if name in UNIT_OF else ()
        has_mean = name not in NOT_POOLED and len(units) < 2 and not (group == ALL and has_unlike_classes(sites, name))
        found = pool_estimates({site: one.scores[group][name] for site, one in sites.items()}) if has_mean else None
        if found is not None and _is_share(name):
            found = replace(found, interval=(max(found.interval[0], 0.0), min(found.interval[1], 1.0)))
        pooled.setdefault(group, {})[name] = found
    return pooled


def has_unlike_classes(sites: Mapping[str, HospitalEvaluation], name: str) -> bool:
    """Return whether a score of all cases is a mean over classes, of which hospitals that have it have other ones."""
    if name not in CLASS_MEANS:
        return False
    tested = [one.scores for one in sites.values() if one.scores[ALL][name].value is not None]
    groups = [[one for one in scores.values() if "recall" in one] for scores in tested]
    # Without an area there are no other cases, or none of the class.
    return len({tuple((one["recall"].value, one["auroc"].value).count(None) for one in g) for g in groups}) > 1


def _is_share(name: str) -> bool:
    return name not in NO_SHARES


def _collect_scores(record: Evaluation) -> dict[str, dict[str, Estimate]]:
    found = {group: dict(scores) for group, scores in record.scores.items()}
    for by, group, one in record.divided:
        found[f"{by}: {group}"] = dict(one.scores)
    return found
