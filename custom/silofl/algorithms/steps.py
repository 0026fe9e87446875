"""The plain step on one batch, and the choice of a step by its name in a recipe."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from silofl.algorithms.recipe import Recipe

Loss = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]
Step = Callable[[nn.Module, torch.optim.Optimizer, Loss, Batch], Tensor]


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
    """Take one step of the optimiser down the loss of one batch.

    Args:
        model: In training mode.
        optimizer: Holds the model's parameters.
        loss: Takes the model's output and the targets, returns a scalar.
        batch: Inputs (B, C, *spatial) and targets.

    Returns:
        The loss at the parameters before the step, detached.
    """
    inputs, targets = batch
    optimizer.zero_grad(set_to_none=True)
    value = loss(model(inputs), targets)
    value.backward()
    optimizer.step()
    return value.detach()


def make_step(recipe: Recipe) -> Step:
    """Return the step that a recipe names, with its constants."""
    from silofl.algorithms import fedprox, harmofl

    makers: dict[str, Callable[[], Step]] = {
        "plain": lambda: plain_step,
        "perturbed": lambda: harmofl.perturbed_step(recipe.perturbation),
        "proximal": lambda: fedprox.proximal_step(recipe.proximal),
    }
    return makers[recipe.step]()
