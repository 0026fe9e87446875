"""The personal models as only their sites have them, sent once in the end: the super model hands them out.

FedSM with another personalisation in SoftPull's place (Xu et al., CVPR 2022, arXiv:2203.10144, Table 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from silofl.core.mixing import Arrays
from silofl.models import build_plain_model
from silofl.models.names import read_arrays, traveling_names
from silofl.models.roles import add_role
from silofl.parts.part import END, OutboundPayload, Part, Run, WeightsOf
from silofl.parts.task import COLLECT, ArraySpec, Exchange, Message, PayloadSpec, SiteResults
from silofl.parts.work import SitePart
from silofl.study import Study

ROLE = "collected"
PURPOSE = "the site's whole personal model, sent once after the last round, for the super model that every site gets"
RISK = (
    "whoever has the super model has a model that was trained mostly on this site's images, and may rebuild rough "
    "images from it; may_leave without personal_model: the global model answers in its place"
)


@dataclass(frozen=True)
class CollectedPart(Part):
    """The personal models at the server.

    Attributes:
        shapes: An array of each name and shape that a model has.
        received: Site -> its model; not in the checkpoint, so a resumed run asks for them once more.
        missing: Site -> why it has none.
    """

    shapes: Arrays
    received: dict[str, Arrays] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    role: str = ROLE
    outbound = (OutboundPayload("personal_model", PURPOSE, RISK, ROLE, is_mixed=False),)
    # A site has let its own leave by sending it.
    stays: ClassVar[bool] = False

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before any model has come."""
        model = build_plain_model(study, study.seed)
        return [cls(read_arrays(model.state_dict(), traveling_names(model, study.recipe)))]

    def of(self, site: str) -> Arrays:
        """Return a site's model; nothing where it did not come."""
        return self.received.get(site, {})

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Ask in the end for the models of the reported round."""
        if moment != END:
            return ()
        reported = run.reported.round
        # A site that sends none keeps no run from ending: the global model answers for it.
        return (Exchange(COLLECT, reported, is_needed=False, models_round=reported),)

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return the arrays of a whole model."""
        if exchange.task != COLLECT:
            return PayloadSpec()
        return PayloadSpec(ArraySpec.whole_model(add_role(ROLE, self.shapes)))

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> CollectedPart:
        """Take the models."""
        if exchange.task != COLLECT:
            return self
        # They are asked for once, so that these are all.
        received = {site: answer.of(ROLE) for site, answer in site_results.accepted.items()}
        return replace(self, received=received, missing=site_results.missing | site_results.refused)

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return whose models did not come, and why."""
        if exchange.task != COLLECT:
            return ()
        return [
            f"site {site!r} sent no personal model, and the global one answers in its place: {why}"
            for site, why in sorted(self.missing.items())
        ]


class SiteCollected(SitePart):
    """A site's answer: its personal model as it is deployed."""

    name = ROLE
    tasks = (COLLECT,)

    def answer(self, task: str) -> Message:
        """Return every array of the model, not a difference: the server has none."""
        recipe = self.work.study.recipe
        model = self.work.learnt_models()[recipe.roles[-1]]
        return Message(add_role(ROLE, read_arrays(model.state_dict(), traveling_names(model, recipe))))


PART, SITE = CollectedPart, SiteCollected
