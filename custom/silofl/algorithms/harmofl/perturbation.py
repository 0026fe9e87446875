"""The step along the gradient at perturbed weights (HarmoFL, Eqs. 6-7), and the drift that it is to lower (Eq. 9)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from silofl.base.errors import ConfigError
from silofl.base.settings import Positive
from silofl.core.algorithm_option import AlgorithmOption
from silofl.core.steps import (
    Batch,
    Loss,
    Step,
    frozen_statistics,
    full_precision,
    move_parameters,
    random_state,
    set_random_state,
)
from silofl.study import Study


class Perturbation(AlgorithmOption):
    """A step along the gradient at perturbed weights.

    Attributes:
        alpha: Length of the weight perturbation.
        follows_rate: Whether alpha falls with the learning rate.
    """

    section: ClassVar[str] = "perturbation"
    alpha: Positive = 0.05
    follows_rate: bool = False

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse to follow a rate that does not fall."""
        if self.follows_rate and not study.training.has_falling_rate:
            raise ConfigError(
                f"{self.section}.follows_rate has no effect with a constant training.schedule, along which alpha would "
                "not fall; set training.schedule: poly, or follows_rate: false"
            )

    def make_step(self) -> Step:
        """Return `perturbed_step` with alpha."""
        return perturbed_step(self.alpha, self.follows_rate)

    def sentence(self) -> str:
        """Describe the answer for the report."""
        falling = ", which falls with the learning rate" if self.follows_rate else ""
        return f"Perturbed: the gradient is taken at weights moved by alpha = {self.alpha:g} uphill (HarmoFL){falling}."


def perturbed_step(alpha: float, follows_rate: bool = False) -> Step:
    """Return the step that follows the gradient at perturbed weights (Eqs. 6-7).

    With g the gradient at theta and ``delta = alpha * g / ||g||_2`` over all parameters together, the base optimiser
    steps from theta with the gradient at ``theta + delta``. Running statistics move in the first pass only, and both
    passes draw the same dropout. A zero gradient means no perturbation. The first pass is in full precision:
    in bfloat16 it would find another direction.

    Args:
        alpha: Length of the perturbation, above 0.
        follows_rate: Whether it is multiplied by the optimiser's learning rate over the one that it was made with.

    Returns:
        ``step(model, optimizer, loss, batch)``, which returns the loss at theta, detached.
    """

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        inputs, targets = batch
        device = inputs.device
        optimizer.zero_grad(set_to_none=True)
        # Both passes must draw the same dropout, or the second gradient is that of another network.
        drawn = random_state(device)
        with full_precision(model):
            value = loss(model(inputs), targets)
        torch.autograd.backward(value)
        length = alpha
        if follows_rate:
            length = alpha * optimizer.param_groups[0]["lr"] / optimizer.defaults["lr"]
        with frozen_statistics(model), _perturb_parameters(model, length):
            # Only now: `_perturb_parameters` needed the first gradients to move along.
            optimizer.zero_grad(set_to_none=True)
            set_random_state(device, drawn)
            torch.autograd.backward(loss(model(inputs), targets))
        optimizer.step()
        return value.detach()

    return step


def _perturb_parameters(model: nn.Module, alpha: float) -> AbstractContextManager[None]:
    """Move the parameters by alpha along their gradient for a while."""
    parameters = []
    gradients = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameters.append(parameter)
            gradients.append(parameter.grad)
    # One norm over all parameters together: Eq. 6 normalises the gradient, not each layer's.
    norm = torch.nn.utils.get_total_norm(gradients)
    scale = torch.where(norm > 0, alpha / norm, torch.zeros_like(norm))
    return move_parameters(parameters, torch._foreach_mul(gradients, scale))


def drift(trajectory: ArrayLike, start: ArrayLike) -> float:
    """Return the drift of Eq. 9: the mean over sites and steps of ``||theta_{i,k} - theta^t||^2``.

    Args:
        trajectory: Parameters of every site after every step, shape (K, S, P).
        start: Parameters that all sites started from, shape (P,).
    """
    difference = np.asarray(trajectory, np.float64) - np.asarray(start, np.float64)
    return float(np.mean(np.sum(difference**2, axis=-1)))
