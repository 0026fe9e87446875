"""FedRep: in every round a site trains its head first, then with the new head the body, which all sites share.

    server  sends the body of the model, all layers but the last
    site i  puts its own head on it
            in all epochs but the last `body_epochs`: steps of the head alone, BatchNorm's statistics fixed
            in the last `body_epochs`: steps of the body alone, with the new head
            sends the change of the body; keeps the head
    server  takes the weighted mean of the bodies, as in FedAvg

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, arXiv:2102.07078,
Algorithm 1. The head stays at home as in FedPer.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from silofl.base.errors import ConfigError
from silofl.base.settings import Count
from silofl.core.algorithm_option import AlgorithmOption
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.core.steps import Batch, Loss, Step, frozen_statistics
from silofl.data.parts import Examples
from silofl.models.names import head_names
from silofl.parts.work import SitePart, Work
from silofl.study import Study

ROLE = "head_then_body"


class HeadThenBody(AlgorithmOption):
    """A round trains first the head, then the body.

    Attributes:
        body_epochs: Number of last epochs of a round that train the body; earlier ones train the head.
    """

    section: ClassVar[str] = "fedrep"
    implementation: ClassVar[str] = __name__
    body_epochs: Count = 1

    def conflict(self, recipe: Recipe) -> str | None:
        """A head that is averaged would be no site's own; and a round's steps are not all the body's."""
        if recipe.stays != "head":
            return f"stays must be head where sites train it before the body, not {recipe.stays}"
        if part := recipe.counting_steps:
            return f"{part} counts all steps, and here the body takes only the last ones; leave {part} out of parts"
        return None

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse a round without an epoch for the head."""
        training = study.training
        if training.local_epochs <= self.body_epochs:
            raise ConfigError(
                f"training.local_epochs must be above fedrep.body_epochs, {self.body_epochs}, the rest of them "
                f"being the head's, not {training.local_epochs}; give more of them"
            )

    def sentence(self) -> str:
        """Describe the answer for the report."""
        ending = "epoch trains" if self.body_epochs == 1 else f"{self.body_epochs} epochs train"
        return f"Head, then body (FedRep): a round's last {ending} the body alone, all before the head alone."


def head_or_body_step(step: Step, head: Collection[str], is_of_head: Callable[[], bool]) -> Step:
    """Return a step of the head alone or of the body alone; BatchNorm's statistics move with the body only.

    Args:
        step: The step that computes the gradient and moves the parameters.
        head: Names of the head's parameters.
        is_of_head: Whether the head is being trained now.
    """

    def half_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        trains_head = is_of_head()
        resting = [parameter for name, parameter in model.named_parameters() if (name in head) != trains_head]
        # BatchNorm belongs to the body, so its statistics rest while the head learns.
        statistics = frozen_statistics(model) if trains_head else nullcontext()
        with _freeze_parameters(resting), statistics:
            return step(model, optimizer, loss, batch)

    return half_step


@contextmanager
def _freeze_parameters(parameters: Collection[nn.Parameter]) -> Iterator[None]:
    """Let an optimiser pass over parameters for a while: without a gradient neither decay nor momentum moves them."""
    before = [parameter.requires_grad for parameter in parameters]
    for parameter in parameters:
        parameter.requires_grad_(False)
        # A gradient of the phase before would be taken for this step's.
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, required in zip(parameters, before, strict=True):
            parameter.requires_grad_(required)


class SiteHeadThenBody(SitePart):
    """The phase that a round is in."""

    name = ROLE

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._epoch = 0

    def step(self, role: str, step: Step) -> Step:
        """Let every step move what its epoch is for."""
        study = self.work.study
        head_epochs = study.training.local_epochs - study.recipe.option("fedrep").body_epochs
        return head_or_body_step(step, head_names(self.work.models[role]), lambda: self._epoch <= head_epochs)

    def epoch(self, examples: Examples) -> None:
        """Count the epochs."""
        self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch."""
        return {"epoch": self._epoch}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take it back."""
        self._epoch = saved["epoch"]


PART, SITE = None, SiteHeadThenBody
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(step=HeadThenBody(), stays="head"))
