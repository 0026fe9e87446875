"""FedRep's phases of a round at a site: first the head's epochs, then the body's; nothing travels for them."""

from silofl.algorithms.fedrep import head_or_body_step
from silofl.core.steps import Step
from silofl.methods.work import SitePart, Work
from silofl.models.names import head_names

ROLE = "head_then_body"


class SiteHeadThenBody(SitePart):
    """The phase that a round is in."""

    name = ROLE

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._epoch = 0

    def step(self, role: str, step: Step) -> Step:
        """Let every step move what its epoch is for."""
        study = self.work.study
        head_epochs = study.training.local_epochs - study.recipe.answer(ROLE).body_epochs
        return head_or_body_step(step, head_names(self.work.models[role]), lambda: self._epoch <= head_epochs)

    def epoch(self) -> None:
        """Count the epochs."""
        self._epoch += 1


PART, SITE = None, SiteHeadThenBody
