"""The one training loop: an algorithm supplies the step, the study everything else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from silofl.algorithms.harmofl import squared_distance
from silofl.algorithms.steps import Batch, Loss, Step
from silofl.config import TrainingSettings
from silofl.errors import TrainingError


@dataclass(frozen=True)
class TrainingResult:
    """A site's round: mean loss over its steps, and its part of the drift (HarmoFL, Eq. 9)."""

    loss: float
    drift: float
    steps: int


def train(
    model: nn.Module, epochs: Iterable[Iterable[Batch]], optimizer: torch.optim.Optimizer, loss: Loss, step: Step
) -> TrainingResult:
    """Train on every batch of every epoch.

    Returns:
        The mean loss at the parameters before each step, and the mean over the steps of the squared distance to the
        parameters at the start.

    Raises:
        TrainingError: The loss of a batch, or the parameters at the end, are not finite; names epoch and batch.
    """
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in parameters]
    losses, distances = [], []
    for epoch, batches in enumerate(epochs, start=1):
        for number, batch in enumerate(batches, start=1):
            value = float(step(model, optimizer, loss, batch))
            if not math.isfinite(value):
                raise TrainingError(f"the loss must be finite, not {value}, in epoch {epoch}, batch {number}")
            losses.append(value)
            distances.append(squared_distance(parameters, start))
    drift = float(torch.stack(distances).mean())
    if not math.isfinite(drift):
        raise TrainingError(f"the parameters must stay finite; they are not after epoch {epoch}, batch {number}")
    return TrainingResult(sum(losses) / len(losses), drift, len(losses))


def make_optimizer(settings: TrainingSettings, model: nn.Module) -> torch.optim.Optimizer:
    """Return the study's optimiser over the model's parameters."""
    parameters, lr, decay = model.parameters(), settings.learning_rate, settings.weight_decay
    makers = {
        "adam": lambda: torch.optim.Adam(parameters, lr, betas=settings.betas, weight_decay=decay),
        "adamw": lambda: torch.optim.AdamW(parameters, lr, betas=settings.betas, weight_decay=decay),
        "sgd": lambda: torch.optim.SGD(parameters, lr, momentum=settings.momentum, weight_decay=decay),
    }
    return makers[settings.optimizer]()
