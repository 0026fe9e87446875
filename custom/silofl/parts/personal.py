"""A personal model beside the shared one: it stays at home, and its site validates, tests and keeps it.

The shared model travels as if there were no other. Which step the personal one takes is the answer's matter. Without an
answer it is the shared one, fine-tuned in the extra rounds; before them it is the received one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from silofl.core.steps import OwnDraws, Step
from silofl.data.parts import Examples
from silofl.models.roles import GLOBAL, PERSONAL
from silofl.parts.model import SiteModels
from silofl.parts.part import ClientState
from silofl.parts.work import SitePart, Work
from silofl.study import Study

ROLE = PERSONAL


class SitePersonal(SitePart):
    """A site's personal model; its arrays and its optimiser are kept with those of the other models."""

    name = ROLE

    @classmethod
    def list_client_state(cls, study: Study, number: int) -> Sequence[ClientState]:
        """Return the personal model, once it has learnt."""
        model = ClientState("its personal model", is_required=True, is_of_model=True)
        return [model] if PERSONAL in study.learning_roles(number) else []

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._draws = OwnDraws(work.device)

    def prepare(self) -> None:
        """Begin with the received model, once, and bring the personal one to where the site uses it."""
        work = self.work
        shared = work.models[GLOBAL]
        personal = work.models[PERSONAL]
        has_learnt = SiteModels.name in work.kept and PERSONAL in work.study.learning_roles(work.held)
        # Until it has learnt it follows the received model, also at a site that comes late.
        if not has_learnt:
            personal.load_state_dict(shared.state_dict())
        algorithm = work.study.recipe.personal
        self._pair = None
        if algorithm:
            self._pair = algorithm.begin(shared, personal, work.kept.get(self.name) or {})

    def step(self, role: str, step: Step) -> Step:
        """Return the steps of the two models; of one that is only fine-tuned the recipe's."""
        # The shared model draws its dropout as if it were alone, and so does the personal one.
        if role == PERSONAL:
            return self._draws.step(self._pair.personal if self._pair else step)
        return self._pair.shared(step) if self._pair else step

    def epoch(self, examples: Examples) -> None:
        """Let the personal model begin an epoch with the random numbers that the shared one begins it with."""
        self._draws.begin()

    def state_dict(self) -> dict[str, Any]:
        """Return its random numbers, and what its steps remember."""
        return {"draws": self._draws.state, "memory": self._pair.memory if self._pair else {}}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take both back."""
        self._draws.state = saved["draws"]
        if self._pair:
            self._pair.memory.update(saved["memory"])

    def kept(self) -> dict[str, Any]:
        """Return the numbers beside the personal model."""
        return self._pair.kept() if self._pair else {}


PART, SITE = None, SitePersonal
