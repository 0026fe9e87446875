"""The one training loop: an algorithm supplies the step, the study everything else."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from silofl.base.errors import TrainingError
from silofl.core.steps import Batch, Loss, Step, squared_distance
from silofl.study.sections import TrainingSettings


@dataclass(frozen=True)
class Learner:
    """A model in training, and how it learns from a batch.

    Attributes:
        model: The model.
        optimizer: Holds the model's parameters; None where the step needs none.
        loss: Takes the model's output and the targets, returns a scalar.
        step: The algorithm's step on one batch.
        has_drift: Whether the distance to the parameters at the start is measured at every step.
        stays: Whether its loss is the site's own matter.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    loss: Loss
    step: Step
    has_drift: bool = False
    stays: bool = False


@dataclass(frozen=True)
class TrainingResult:
    """A learner's round: mean loss over its steps, and where measured its part of the drift (HarmoFL, Eq. 9)."""

    loss: float
    steps: int
    drift: float | None = None
    stays: bool = False


class Training:
    """A training in one pass over the data, of which another process may go on with what `state_dict` says.

    Args:
        learners: By role, which names the model in an error.

    Attributes:
        roles: Those that learn.
        epoch: The epoch that it is in, from 1; 0 before the first.
        batch: The batches of the epoch that are learnt.
    """

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self._progress = {role: _Progress(role, learner) for role, learner in learners.items()}
        self.roles = learners.keys()
        self.epoch = 0
        self.batch = 0

    def run(self, epochs: Iterable[Iterable[Batch]]) -> dict[str, TrainingResult]:
        """Learn from the rest of the epoch that it is in, and from all others; as `train` has it."""
        where = ""
        for number, batches in enumerate(epochs, start=self.epoch or 1):
            self.epoch = number
            for batch in batches:
                self.batch += 1
                where = f"epoch {self.epoch}, batch {self.batch}"
                # All models learn from a batch before the next one is read: they see the same augmented images.
                for progress in self._progress.values():
                    progress.learn(batch, f"in {where}")
            self.batch = 0
        return {role: progress.result(f"after {where}") for role, progress in self._progress.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return where it is between two batches: plain values, and the learners' own tensors."""
        learners = {role: progress.state_dict() for role, progress in self._progress.items()}
        return {"epoch": self.epoch, "batch": self.batch, "learners": learners}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from where a training of the same learners was."""
        self.epoch = saved["epoch"]
        self.batch = saved["batch"]
        for role, progress in self._progress.items():
            progress.load_state_dict(saved["learners"][role])


def train(learners: Mapping[str, Learner], epochs: Iterable[Iterable[Batch]]) -> dict[str, TrainingResult]:
    """Train all learners in one pass over the data: each batch of each epoch goes to one learner after the other.

    Args:
        learners: By role, which names the model in an error.
        epochs: Batches of inputs and targets.

    Returns:
        For each role the mean loss at the parameters before each step, and for those that measure drift the mean over
        the steps of the squared distance to the parameters at the start.

    Raises:
        TrainingError: The loss of a batch, or the parameters at the end, are not finite; names epoch and batch.
    """
    return Training(learners).run(epochs)


class _Progress:
    def __init__(self, role: str, learner: Learner) -> None:
        self._whose = role if role == "model" else f"{role} model"
        self._learner = learner
        # A validation before, as a training task brings one, has left it in evaluation mode.
        learner.model.train()
        self._parameters = [p for p in learner.model.parameters() if p.requires_grad]
        self._start = [p.detach().clone() for p in self._parameters] if learner.has_drift else []
        self._losses: list[float] = []
        self._distances: list[Tensor] = []

    def learn(self, batch: Batch, where: str) -> None:
        learner = self._learner
        # A step that needs no optimiser is given None.
        optimizer: Any = learner.optimizer
        # float() waits for the GPU at every step; in return the error names the very batch.
        value = float(learner.step(learner.model, optimizer, learner.loss, batch))
        if not math.isfinite(value):
            raise TrainingError(f"the loss of the {self._whose} must be finite, not {value}, {where}")
        self._losses.append(value)
        if learner.has_drift:
            self._distances.append(squared_distance(self._parameters, self._start))

    def state_dict(self) -> dict[str, Any]:
        learner = self._learner
        return {
            "model": learner.model.state_dict(),
            "optimizer": learner.optimizer.state_dict() if learner.optimizer else None,
            "losses": self._losses,
            "distances": self._distances,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        learner = self._learner
        learner.model.load_state_dict(saved["model"])
        if learner.optimizer:
            learner.optimizer.load_state_dict(saved["optimizer"])
        self._losses = saved["losses"]
        self._distances = [distance.to(self._parameters[0].device) for distance in saved["distances"]]

    def result(self, where: str) -> TrainingResult:
        # Each loss is that before its step, so the last step's damage shows in the parameters only.
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self._parameters):
            raise TrainingError(f"the parameters of the {self._whose} became NaN or infinity {where}")
        drift = float(torch.stack(self._distances).mean()) if self._distances else None
        return TrainingResult(sum(self._losses) / len(self._losses), len(self._losses), drift, self._learner.stays)


def make_optimizer(settings: TrainingSettings, model: nn.Module) -> torch.optim.Optimizer:
    """Return the study's optimiser over the model's parameters."""
    rate = settings.learning_rate
    decay = settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            model.parameters(), rate, momentum=settings.momentum, weight_decay=decay, nesterov=settings.nesterov
        )
    kinds: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[settings.optimizer](model.parameters(), rate, betas=settings.betas, weight_decay=decay)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all the optimiser's parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate
