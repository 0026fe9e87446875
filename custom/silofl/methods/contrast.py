"""MOON's last own model: it stays at its site, and only the server knows which round's it must be."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from silofl.algorithms.mixing import Arrays
from silofl.algorithms.moon import contrastive_step
from silofl.algorithms.steps import Step
from silofl.errors import TrainingError
from silofl.methods.part import Part, Run, SitePart, WeightsOf
from silofl.methods.task import TRAIN, Exchange, Message, Replies
from silofl.models import build_plain_model
from silofl.models.features import feature_layer
from silofl.study import Study
from silofl.training.local_model import copy_state

ROLE = "contrast"


@dataclass(frozen=True)
class ContrastPart(Part):
    """The rounds after which the sites keep their last models.

    Attributes:
        study: The study.
        holds: Site -> the last round that it trained in; of those that ever answered.
    """

    study: Study
    holds: dict[str, int] = field(default_factory=dict)
    role: str = ROLE
    saved = ("holds",)

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

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Say which round's model the site must hold."""
        return Message(meta={ROLE: {"holds": self.holds.get(site, 0)}}) if exchange.task == TRAIN else Message()

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> ContrastPart:
        """Take note of who has trained."""
        if exchange.task != TRAIN:
            return self
        return replace(self, holds=self.holds | dict.fromkeys(replies.accepted, exchange.round))


class SiteContrast(SitePart):
    """A site's own model at the end of the last round that it trained in."""

    name = ROLE

    def step(self, role: str, step: Step) -> Step:
        """Contrast the model in training with the received and the last one; in the first round there is no last."""
        self._model = self.work.models[role]
        holds, kept = self.work.message.find_entry(ROLE)["holds"], self.work.kept.get(self.name)
        # A later round than that is one whose answer the server did not get; it was trained all the same.
        if holds > (kept["round"] if kept else 0):
            raise TrainingError(
                f"site {self.work.site!r} must hold its own model of round {holds}, which is not in its state; restore "
                "its state folder, or start the study anew"
            )
        # The paper's start of the last model is the received one: a loss of log 2 for all weights, without a gradient.
        if not kept:
            return step
        received, last = self._copy_frozen(), self._copy_frozen()
        last.load_state_dict(kept["state"])
        constants = self.work.study.recipe.answer(ROLE)
        return contrastive_step(step, (received, last), feature_layer, constants.mu, constants.temperature)

    def kept(self) -> dict[str, Any]:
        """Return the trained model, BatchNorm's statistics too."""
        return {"round": self.work.number, "state": copy_state(self._model)}

    def _copy_frozen(self) -> nn.Module:
        # A copy, because training changes the model in place.
        return copy.deepcopy(self._model).eval().requires_grad_(False)


PART, SITE = ContrastPart, SiteContrast
