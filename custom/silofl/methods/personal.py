"""A personal model beside the shared one: it stays at home, and its site validates, tests and keeps it.

The shared model travels as if there were no other. Which step the personal one takes is the answer's matter. Without an
answer it is the shared one, fine-tuned in the extra rounds; before them it is the received one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from silofl.algorithms.steps import OwnDraws, Step
from silofl.errors import TrainingError
from silofl.methods.model import SiteModels
from silofl.methods.part import Part, Run, SitePart, WeightsOf
from silofl.methods.task import TRAIN, Exchange, Message, Replies
from silofl.methods.work import Work
from silofl.models.roles import GLOBAL, PERSONAL
from silofl.study import Study

ROLE = PERSONAL


@dataclass(frozen=True)
class PersonalPart(Part):
    """What the server knows of the personal models: which sites have one.

    Attributes:
        study: The study.
        since: Site -> the first round in which its personal model learnt.
    """

    study: Study
    since: dict[str, int] = field(default_factory=dict)
    role: str = ROLE
    saved = ("since",)

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Tell the site whether it has a personal model after the round that the task begins from."""
        if not exchange.is_of_models:
            return Message()
        has_one = site in self.since and self.since[site] <= exchange.models_round
        return Message(meta={ROLE: {"has_one": has_one}})

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> PersonalPart:
        """Take note of the sites that trained one."""
        if exchange.task != TRAIN or PERSONAL not in self.study.learning_roles(exchange.round):
            return self
        return replace(self, since=dict.fromkeys(replies.sites, exchange.round) | self.since)


class SitePersonal(SitePart):
    """A site's personal model; its arrays and its optimiser are kept with those of the other models."""

    name = ROLE

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._draws = OwnDraws(work.device)

    def prepare(self) -> None:
        """Begin with the received model, once, and bring the personal one to where the site uses it.

        Raises:
            TrainingError: The site has trained one, which is not in its state.
        """
        work = self.work
        shared, personal = work.models[GLOBAL], work.models[PERSONAL]
        has_learnt = SiteModels.name in work.kept and PERSONAL in work.study.learning_roles(work.held)
        if not has_learnt:
            if work.message.find_entry(ROLE).get("has_one"):
                raise TrainingError(
                    f"site {work.site!r} must hold its personal model, which is not in its state; restore its state "
                    "folder, or start the study anew"
                )
            personal.load_state_dict(shared.state_dict())
        answer = work.study.recipe.personal
        self._pair = answer.begin(shared, personal, work.kept.get(self.name) or {}) if answer else None

    def step(self, role: str, step: Step) -> Step:
        """Return the steps of the two models; of one that is only fine-tuned the recipe's."""
        # The shared model draws its dropout as if it were alone, and so does the personal one.
        if role == PERSONAL:
            return self._draws.step(self._pair.personal if self._pair else step)
        return self._pair.shared(step) if self._pair else step

    def epoch(self) -> None:
        """Let the personal model begin an epoch with the random numbers that the shared one begins it with."""
        self._draws.begin()

    def kept(self) -> dict[str, Any]:
        """Return the numbers beside the personal model."""
        return self._pair.kept() if self._pair else {}


PART, SITE = PersonalPart, SitePersonal
