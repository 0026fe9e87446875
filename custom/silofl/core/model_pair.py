"""A personal model that stays at home beside the shared one, which travels as in FedAvg: what such algorithms share.

Both learn from the same batches, the shared model first. The personal one has its own BatchNorm statistics and is the
model that the site validates, tests and keeps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from silofl.core.algorithm_option import SecondModel
from silofl.core.recipe import Recipe
from silofl.core.steps import Step


@dataclass(frozen=True)
class ModelPair:
    """How a site's two models learn in one round.

    Attributes:
        personal: The personal model's step, after the shared one's on the same batch.
        shared: Returns the shared model's step from the plain one.
        kept: Returns the numbers that stay at home until the next round.
        memory: What the steps remember from one batch to the next beside the models; they change this very dictionary.
    """

    personal: Step
    shared: Callable[[Step], Step] = lambda step: step
    kept: Callable[[], dict[str, float]] = dict
    memory: dict[str, Any] = field(default_factory=dict)


def find_personal_conflict(recipe: Recipe) -> str | None:
    """Return why a recipe has no place for a personal model beside the shared one; None where it has."""
    if [traits.second_model for traits in recipe.traits].count(SecondModel.STAYS) > 1:
        return "parts must hold one algorithm with a personal model, not more; leave the others out"
    if recipe.mixing is not None:
        return "mixing must be shared with a personal model, which stays at home; leave it out"
    if recipe.stays != "nothing":
        return f"stays must be nothing with a personal model, which is whole, not {recipe.stays!r}"
    if recipe.input is not None or recipe.step is not None:
        return "input must be none, and step plain, with a personal model, which steps by its own rule; leave them out"
    if recipe.extra_rounds:
        return f"extra_rounds must be 0 with a personal model, not {recipe.extra_rounds}; it is the site's own already"
    return None


def list_parameters(model: nn.Module) -> list[Tensor]:
    """Return the trained parameters: the formulas act on them and on no buffer."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def copy_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies that no training changes."""
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def write_tensors(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write values into a model's tensors in place."""
    torch._foreach_copy_(list(tensors), list(values))
