"""Membership: can a case be known to have been in training by how surely the model knows its label?

Yeom et al., Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting, CSF 2018, arXiv:1709.01604: the
attacker says yes where the loss is low. The loss of a case is the mean of -log p(true label) over its pixels, or over
its findings; of a patient the mean over the cases.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import DataError
from silofl.core.findings import unpack_findings
from silofl.core.intervals import LEAST_UNITS
from silofl.core.roc import Area, measure_auroc
from silofl.data.parts import Examples
from silofl.data.targets import IGNORED
from silofl.data.units import find_units
from silofl.inference.super_model import SuperModel
from silofl.study import Study
from silofl.training.metrics import average_by_unit, group_positions

# Of a probability that is rounded to 0.
LEAST = 1e-12


@dataclass(frozen=True)
class Membership:
    """An attack on one model.

    Attributes:
        unit: What counts once: ``patient`` or ``case``.
        members: Loss of each unit that the model learnt from, ascending.
        others: Loss of each other unit, ascending.
    """

    unit: str
    members: tuple[float, ...]
    others: tuple[float, ...]

    @property
    def area(self) -> Area:
        """How often a member's loss is below another's, with its 95 % interval; 0.5 is a guess."""
        is_member = np.arange(len(self.members) + len(self.others)) < len(self.members)
        return measure_auroc(-np.array([*self.members, *self.others]), is_member)


def attack_membership(model: SuperModel, name: str, members: Examples, others: Examples) -> Membership:
    """Attack one of a super model's models.

    Args:
        members: Cases that it learnt from.
        others: Cases that it did not learn from.

    Raises:
        DataError: There are too few patients of one kind.
    """
    units, found = find_units({**members.patient_of, **others.patient_of}), []
    for kind, part in (("in training", members), ("in test", others)):
        unit_of = {case: units.unit_of[case] for case in part.patient_of}
        if (count := len({*unit_of.values()})) < LEAST_UNITS:
            raise DataError(f"the attack must have at least {LEAST_UNITS} {units.name}s {kind}, not {count}")
        found.append(average_by_unit(measure_losses(model, name, part), unit_of))
    return Membership(units.name, *(tuple(sorted(losses.tolist())) for losses in found))


def measure_losses(model: SuperModel, name: str, part: Examples) -> Mapping[str, float]:
    """Return case -> its loss by one of a super model's models."""
    found, study = {}, model.contents.study
    for case, rows in group_positions(part.cases).items():
        some = part.select_rows(rows)
        images = np.asarray(some.images)
        model.check_is_not_alone(images)
        said = model.probabilities(name, images, study.training.batch_size)
        found[case] = compute_loss(said, np.asarray(some.targets), study)
    return found


def compute_loss(probabilities: NDArray, targets: NDArray, study: Study) -> float:
    """Return the mean of -log p(true label).

    Args:
        probabilities: (n, outputs, *spatial), as `SuperModel.probabilities` gives them.
        targets: Label maps (n, *spatial), classes (n,) or sets of findings (n,).
    """
    if study.is_multilabel:
        is_found = unpack_findings(targets, probabilities.shape[1])
        true = np.where(is_found, probabilities, 1 - probabilities)
    elif probabilities.shape[1] == 1:
        true = np.where(targets == 1, probabilities[:, 0], 1 - probabilities[:, 0])
    else:
        places = np.where(targets == IGNORED, 0, targets)[:, None].astype(np.int64)
        true = np.take_along_axis(probabilities, places, axis=1)[:, 0]
    if study.task == "segmentation":
        true = true[targets != IGNORED]
    return float(-np.log(np.clip(true, LEAST, 1)).mean()) if true.size else 0.0
