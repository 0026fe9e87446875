"""MOON's last own model, which stays at its site."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from silofl.algorithms.moon import contrastive_step
from silofl.core.mixing import Arrays
from silofl.core.steps import Step
from silofl.methods.part import Kept, Part
from silofl.methods.work import SitePart
from silofl.models import build_plain_model
from silofl.models.features import feature_layer
from silofl.study import Study
from silofl.training.local_model import copy_state

ROLE = "contrast"


@dataclass(frozen=True)
class ContrastPart(Part):
    """The server half, through which nothing travels.

    Attributes:
        study: The study.
    """

    study: Study
    role: str = ROLE

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before the first round; the errors of `feature_layer`."""
        # Here and not at the sites, which need it in their second round. The network may be a package's.
        feature_layer(build_plain_model(study, study.seed))
        return [cls(study)]

    @property
    def home_bytes(self) -> int:
        """Bytes of a site's last model."""
        return sum(value.nbytes for value in build_plain_model(self.study, 0).state_dict().values())


class SiteContrast(SitePart):
    """A site's own model at the end of the last round that its update went into."""

    name = ROLE
    stays = (Kept("its own model", is_vital=True, is_for_training=True),)

    def step(self, role: str, step: Step) -> Step:
        """Contrast the model in training with the received and the last one; in the first round there is no last."""
        self._model = self.work.models[role]
        kept = self.work.kept.get(self.name)
        # The paper's start of the last model is the received one: a loss of log 2 for all weights, without a gradient.
        if not kept:
            return step
        received, last = self._copy_frozen(), self._copy_frozen()
        last.load_state_dict(kept["state"])
        constants = self.work.study.recipe.answer(ROLE)
        return contrastive_step(step, (received, last), feature_layer, constants.mu, constants.temperature)

    def kept(self) -> dict[str, Any]:
        """Return the trained model, BatchNorm's statistics too."""
        return {"state": copy_state(self._model)}

    def _copy_frozen(self) -> nn.Module:
        # A copy, because training changes the model in place.
        return copy.deepcopy(self._model).eval().requires_grad_(False)


PART, SITE = ContrastPart, SiteContrast
