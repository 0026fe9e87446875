"""The one training loop: an algorithm supplies the step, the study everything else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from silofl.algorithms.harmofl import squared_distance
from silofl.algorithms.steps import Batch, Loss, Step
from silofl.errors import TrainingError
from silofl.study import TrainingSettings


@dataclass(frozen=True)
class Learner:
    """A model in training, and how it learns from a batch.

    Attributes:
        model: The model.
        optimizer: Holds the model's parameters; None where the step needs none.
        loss: Takes the model's output and the targets, returns a scalar.
        step: The algorithm's step on one batch.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    loss: Loss
    step: Step


@dataclass(frozen=True)
class TrainingResult:
    """A model's round: mean loss over its steps, and its part of the drift (HarmoFL, Eq. 9)."""

    loss: float
    drift: float
    steps: int


def train(learners: Mapping[str, Learner], epochs: Iterable[Iterable[Batch]]) -> dict[str, TrainingResult]:
    """Train on every batch of every epoch: one pass over the data feeds all learners, each batch one after the other.

    Args:
        learners: By role; the role names the model in an error, and is empty where there is only one.
        epochs: Batches of inputs and targets.

    Returns:
        For each role the mean loss at the parameters before each step, and the mean over the steps of the squared
        distance to the parameters at the start.

    Raises:
        TrainingError: The loss of a batch, or the parameters at the end, are not finite; names epoch and batch.
    """
    courses = {role: _Course(role, learner) for role, learner in learners.items()}
    for epoch, batches in enumerate(epochs, start=1):
        for number, batch in enumerate(batches, start=1):
            for course in courses.values():
                course.learn(batch, f"in epoch {epoch}, batch {number}")
    return {role: course.result(f"after epoch {epoch}, batch {number}") for role, course in courses.items()}


class _Course:
    """What a learner has done so far."""

    def __init__(self, role: str, learner: Learner) -> None:
        self._whose = f" of the {role} model" if role else ""
        self._learner = learner
        learner.model.train()
        self._parameters = [p for p in learner.model.parameters() if p.requires_grad]
        self._start = [p.detach().clone() for p in self._parameters]
        self._losses: list[float] = []
        self._distances: list[Tensor] = []

    def learn(self, batch: Batch, where: str) -> None:
        learner = self._learner
        value = float(learner.step(learner.model, learner.optimizer, learner.loss, batch))
        if not math.isfinite(value):
            raise TrainingError(f"the loss{self._whose} must be finite, not {value}, {where}")
        self._losses.append(value)
        self._distances.append(squared_distance(self._parameters, self._start))

    def result(self, where: str) -> TrainingResult:
        drift = float(torch.stack(self._distances).mean())
        if not math.isfinite(drift):
            raise TrainingError(f"the parameters{self._whose} must stay finite; they are not {where}")
        return TrainingResult(sum(self._losses) / len(self._losses), drift, len(self._losses))


def make_optimizer(settings: TrainingSettings, model: nn.Module) -> torch.optim.Optimizer:
    """Return the study's optimiser over the model's parameters."""
    parameters, lr, decay = model.parameters(), settings.learning_rate, settings.weight_decay
    makers = {
        "adam": lambda: torch.optim.Adam(parameters, lr, betas=settings.betas, weight_decay=decay),
        "adamw": lambda: torch.optim.AdamW(parameters, lr, betas=settings.betas, weight_decay=decay),
        "sgd": lambda: torch.optim.SGD(parameters, lr, momentum=settings.momentum, weight_decay=decay),
    }
    return makers[settings.optimizer]()
