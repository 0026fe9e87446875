"""APFL: a personal model that is mixed with the shared one, weights and not outputs.

    server  sends the shared model w
    site i  from w_i = w, its own v_i and alpha_i, for each batch:
                m = alpha_i v_i + (1 - alpha_i) w_i, with w_i as it is before its own step on this batch
                w_i = w_i - eta g(w_i)
                at the round's first batch: alpha_i = clip(alpha_i - eta_alpha <v_i - w_i, g(m)>, 0, 1)
                v_i = v_i - eta alpha_i g(m), with alpha_i as it was before this batch
            sends w_i - w; keeps v_i and alpha_i, whose mixture m it validates, tests and uses
    server  takes the mean of the w_i, as in FedAvg

Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, 2020, arXiv:2003.13461.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.base.settings import Fraction, NotNegative
from silofl.core.algorithm_option import AlgorithmOption, SecondModel, Traits, require_sgd
from silofl.core.model_pair import ModelPair, copy_tensors, find_personal_conflict, list_parameters, write_tensors
from silofl.core.recipe import Recipe
from silofl.core.steps import Batch, Loss, Step
from silofl.study import Study


class Mixture(AlgorithmOption):
    """A shared and a personal model; the site uses a mixture of both.

    Attributes:
        alpha: The personal model's share of the mixture in a site's first round.
        learning_rate: The paper's eta_alpha, for alpha's one step per round: ``same`` as the models', or a number; 0
            keeps alpha.
    """

    section: ClassVar[str] = "apfl"
    implementation: ClassVar[str] = "silofl.parts.personal"
    traits: ClassVar[Traits] = Traits(second_model=SecondModel.STAYS)
    alpha: Fraction = 0.5
    learning_rate: Literal["same"] | NotNegative = "same"

    def conflict(self, recipe: Recipe) -> str | None:
        """A personal model goes with one plain model of all sites."""
        return find_personal_conflict(recipe)

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse what is not plain SGD (Algorithm 1): others divide the chain rule's alpha out, or add steps before."""
        require_sgd(self, study.training)

    def begin(self, shared: nn.Module, personal: nn.Module, kept: Mapping[str, float]) -> ModelPair:
        """Write the mixture into the personal model, and return how v and alpha learn."""
        mixing = _Mixing(shared, personal, kept.get("alpha", self.alpha), self.learning_rate)
        return ModelPair(mixing.step, mixing.watch_step, mixing.kept, mixing.memory)

    def sentence(self) -> str:
        """Describe the answer for the report."""
        how = "at first, then each site's own" if self.learning_rate else "for all and always"
        return f"Each site's own is mixed with the shared one (APFL), alpha = {self.alpha:g} {how}."


# The paper averages sites uniformly; alpha's start is the released code's.
PRESETS = {
    "paper": Recipe(parts=(Mixture(),), weights="uniform"),
    "reference": Recipe(parts=(Mixture(),), weights="uniform"),
    "recommended": Recipe(parts=(Mixture(),)),
}


def mix_parameters(personal: Sequence[Tensor], shared: Sequence[Tensor], alpha: float) -> list[Tensor]:
    """Return ``alpha v + (1 - alpha) w``, the mixture of two models' parameters."""
    return [alpha * v + (1 - alpha) * w for v, w in zip(personal, shared, strict=True)]


def new_alpha(
    alpha: float,
    personal: Sequence[Tensor | NDArray[Any]],
    shared: Sequence[Tensor | NDArray[Any]],
    gradient: Sequence[Tensor | NDArray[Any]],
    learning_rate: float,
) -> float:
    """Return ``clip(alpha - eta_alpha <v - w, g(mixture)>, 0, 1)``: a step of alpha down the mixture's loss.

    Args:
        alpha: Before the step.
        personal: v, one array a parameter.
        shared: w, in the same order.
        gradient: Of the loss at the mixture, likewise.
        learning_rate: eta_alpha.
    """
    slope = 0.0
    for v, w, g in zip(personal, shared, gradient, strict=True):
        # This sums millions of products, most of them near 0, so it needs float64.
        slope += float(((torch.as_tensor(v) - torch.as_tensor(w)).double() * torch.as_tensor(g).double()).sum())
    return min(1.0, max(0.0, alpha - learning_rate * slope))


class _Mixing:
    """One site's round: between steps the personal model's parameters are v, in a step the mixture."""

    def __init__(self, shared: nn.Module, personal: nn.Module, alpha: float, rate: Literal["same"] | float) -> None:
        self.memory = {"alpha": alpha, "has_begun": False}
        self._rate = rate
        self._personal = list_parameters(personal)
        self._start = copy_tensors(self._personal)
        self._shared = list_parameters(shared)
        self._w = copy_tensors(self._shared)
        # Until the site trains, it validates and tests this mixture with the newest shared model.
        write_tensors(self._personal, mix_parameters(self._start, self._w, alpha))

    def watch_step(self, step: Step) -> Step:
        """Return the shared model's step, before which its parameters are copied: both models step from one state."""

        def watched_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
            write_tensors(self._w, self._shared)
            return step(model, optimizer, loss, batch)

        return watched_step

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        """Step v along ``alpha g(mixture)``; returns the mixture's loss."""
        is_first = not self.memory["has_begun"]
        alpha = self.memory["alpha"]
        # Before a round's first step the personal model's parameters are the mixture, and not v.
        v = self._start if is_first else copy_tensors(self._personal)
        self.memory["has_begun"] = True
        write_tensors(self._personal, mix_parameters(v, self._w, alpha))
        optimizer.zero_grad(set_to_none=True)
        inputs, targets = batch
        value = loss(model(inputs), targets)
        torch.autograd.backward(value)
        gradient = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._personal]
        if is_first:
            rate = optimizer.param_groups[0]["lr"] if self._rate == "same" else self._rate
            self.memory["alpha"] = new_alpha(alpha, v, self._w, gradient, rate)
        # In place, because these are the parameters' own gradients, along which the optimiser steps.
        torch._foreach_mul_(gradient, alpha)
        write_tensors(self._personal, v)
        optimizer.step()
        return value.detach()

    def kept(self) -> dict[str, float]:
        """Return alpha."""
        return {"alpha": self.memory["alpha"]}
