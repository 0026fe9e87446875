"""pFedMe: the shared model follows a personal one that is held near it, a step along the Moreau envelope of the loss.

    server  sends the shared model x
    site i  from w_i = x, and theta_i = x at the round's first batch, for each batch:
                K times: theta_i = theta_i - eta_p (g(theta_i) + lambda (theta_i - w_i))
                w_i = w_i - eta lambda (w_i - theta_i)
            sends w_i - x; keeps theta_i, which it validates, tests and uses
    server  x = x + beta * sum_i p_i (w_i - x), where beta is `server_lr`

Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv:2006.08848.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from silofl.base.errors import ConfigError
from silofl.base.settings import Count, Positive
from silofl.core.algorithm_option import AlgorithmOption, SecondModel, Traits, require_sgd
from silofl.core.model_pair import ModelPair, find_personal_conflict, list_parameters, write_tensors
from silofl.core.recipe import Recipe
from silofl.core.steps import Batch, Loss, Step, plain_step, pulled_step
from silofl.study import Study


class Envelope(AlgorithmOption):
    """A personal model near the shared one, which follows it.

    Attributes:
        strength: The paper's lambda, weight of half the squared distance between the two models.
        inner_steps: The paper's K, steps of the personal model on each batch.
        inner_learning_rate: Learning rate of these steps.
    """

    section: ClassVar[str] = "pfedme"
    implementation: ClassVar[str] = "silofl.parts.personal"
    traits: ClassVar[Traits] = Traits(second_model=SecondModel.STAYS)
    strength: Positive = 15.0
    inner_steps: Count = 5
    inner_learning_rate: Positive = 0.05

    def conflict(self, recipe: Recipe) -> str | None:
        """A personal model goes with one plain model of all sites; and the steps of theta must not overshoot."""
        if self.inner_learning_rate * self.strength >= 2:
            return (
                f"pfedme.inner_learning_rate must be below 2 / strength, {2 / self.strength:g}, not "
                f"{self.inner_learning_rate:g}: the personal model's steps would diverge for any loss"
            )
        return find_personal_conflict(recipe)

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse what is not plain SGD (Algorithm 1), and a rate by which the shared model passes the personal one."""
        training = study.training
        require_sgd(self, training)
        if training.learning_rate * self.strength > 1:
            raise ConfigError(
                f"training.learning_rate must be at most 1 / algorithm.pfedme.strength, {1 / self.strength:g}, not "
                f"{training.learning_rate:g}: the shared model would pass the personal one"
            )

    def begin(self, shared: nn.Module, personal: nn.Module, kept: Mapping[str, float]) -> ModelPair:
        """Return how theta and w learn; until the round's first batch theta is the one that the site kept."""
        follow = _Following(self, shared, personal)
        return ModelPair(follow.step, lambda step: forward_step, memory=follow.memory)

    def sentence(self) -> str:
        """Describe the answer for the report."""
        return (
            f"Each site's own is held near the shared one, which follows it (pFedMe), lambda = {self.strength:g}, "
            f"{self.inner_steps} steps a batch."
        )


# The paper averages sites uniformly, the authors' code by examples; its beta is `server_lr`.
PRESETS = {
    "paper": Recipe(parts=(Envelope(),), weights="uniform"),
    "reference": Recipe(parts=(Envelope(),)),
    "recommended": Recipe(parts=(Envelope(),)),
}


def follow_personal(shared: Sequence[Tensor], personal: Sequence[Tensor], amount: float) -> list[Tensor]:
    """Return ``w - amount (w - theta)``, the shared model's step on one batch; the amount is eta lambda."""
    return [w - amount * (w - theta) for w, theta in zip(shared, personal, strict=True)]


@torch.no_grad()
def forward_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
    """Return a batch's loss; of the model only the running statistics move, which no gradient step would move here."""
    inputs, targets = batch
    return loss(model(inputs), targets)


class _Following:
    """One site's round."""

    def __init__(self, answer: Envelope, shared: nn.Module, personal: nn.Module) -> None:
        self._answer = answer
        self._shared = list_parameters(shared)
        self._personal = list_parameters(personal)
        # These are the very tensors of the shared model, which rest while theta steps.
        self._inner: Step = pulled_step(plain_step, dict(shared.named_parameters()), answer.strength)
        self.memory = {"has_begun": False}

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        """Step theta K times on a batch, then w towards it; returns theta's loss before."""
        if not self.memory["has_begun"]:
            # theta begins each round as the received model, and each further batch as the last theta (authors' code).
            write_tensors(self._personal, self._shared)
            self.memory["has_begun"] = True
        (group,) = optimizer.param_groups
        rate = group["lr"]
        group["lr"] = self._answer.inner_learning_rate
        try:
            losses = [self._inner(model, optimizer, loss, batch) for _ in range(self._answer.inner_steps)]
        finally:
            group["lr"] = rate
        with torch.no_grad():
            write_tensors(self._shared, follow_personal(self._shared, self._personal, rate * self._answer.strength))
        return losses[0]
