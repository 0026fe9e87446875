"""FedProx: a step that is held back towards the model the server sent.

    server  sends the model x
    site i  from y_i = x, for each batch: y_i = y_i - eta g, where g is the gradient of loss(y_i) + mu / 2 ||y_i - x||^2
            sends y_i - x
    server  takes the weighted mean, as in FedAvg

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from silofl.base.settings import NotNegative
from silofl.core.algorithm_option import AlgorithmOption
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.core.steps import Batch, Loss, StatefulStep, Step, plain_step


class Proximal(AlgorithmOption):
    """A step that is held back towards the received model.

    Attributes:
        mu: Weight of the squared distance to the received model.
    """

    section: ClassVar[str] = "fedprox"
    mu: NotNegative = 0.01

    def make_step(self) -> Step:
        """Return `proximal_step` with mu."""
        return proximal_step(self.mu)

    def sentence(self) -> str:
        """Describe the answer for the report."""
        return f"Proximal: the loss plus mu / 2 times the squared distance to the received model, mu = {self.mu:g}."


PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(step=Proximal()))


def proximal_step(mu: float) -> Step:
    """Return the step down ``loss + mu / 2 * ||w - w_global||^2``, the squared norm (Algorithm 2).

    The model that a returned step sees first is the received one, so it must serve one site's one round.

    Args:
        mu: Weight of the squared distance, at least 0.
    """
    memory: dict[str, list[Tensor]] = {"received": []}

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        # Frozen parameters do not move, so their distance is 0 and needs no gradient.
        parameters = [p for p in model.parameters() if p.requires_grad]
        # At the first batch nothing has been trained yet, so these are the received parameters.
        if not memory["received"]:
            memory["received"] = [p.detach().clone() for p in parameters]

        def proximal(output: Tensor, targets: Tensor) -> Tensor:
            distance = sum(((p - start) ** 2).sum() for p, start in zip(parameters, memory["received"], strict=True))
            return loss(output, targets) + mu / 2 * distance

        return plain_step(model, optimizer, proximal, batch)

    return StatefulStep(step, memory)
