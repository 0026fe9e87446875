"""The promises of speed, each measured against its reference: one thread, taking turns, median of 20.

python bench/speed.py
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from silofl.algorithms.harmofl import AmplitudeNorm
from silofl.algorithms.steps import plain_step
from silofl.models import build_model
from silofl.settings import parse
from silofl.study import Study
from silofl.training.device import keep_freed_memory
from silofl.training.local_model import LocalModel
from silofl.training.loop import Learner, make_optimizer, train
from silofl.training.losses import make_loss

REPEATS = 20


def main() -> int:
    """Print each promise with its measured ratio; the exit code is 1 where one is not kept."""
    torch.set_num_threads(1)
    keep_freed_memory()
    promises = [*amplitude_norm(), *steps(), *guard()]
    for name, ratio, limit in promises:
        print(f"{'kept  ' if ratio <= limit else 'BROKEN'} {name}: {ratio:.2f} x, at most {limit:.2f} x")
    return int(any(ratio > limit for _, ratio, limit in promises))


def amplitude_norm() -> list[tuple[str, float, float]]:
    """Compare amplitude normalisation of a batch with a bare rfft2 and irfft2 of the same batch."""
    images = torch.rand(128, 3, 96, 96)
    learning, fixed = AmplitudeNorm((3, 96, 96)), AmplitudeNorm((3, 96, 96))
    learning(images)
    fixed.fix(learning.running_amplitude)
    bare, training, known = medians(
        lambda: torch.fft.irfft2(torch.fft.rfft2(images), s=(96, 96)), lambda: learning(images), lambda: fixed(images)
    )
    against = f"against rfft2 + irfft2 ({1000 * bare:.1f} ms)"
    return [
        (f"AmplitudeNorm in training ({1000 * training:.1f} ms) {against}", training / bare, 1.8),
        (f"AmplitudeNorm when fixed ({1000 * known:.1f} ms) {against}", known / bare, 1.4),
    ]


def steps() -> list[tuple[str, float, float]]:
    """Compare the perturbed step with two plain passes forward and backward of the same model."""
    study = study_of("harmofl", preset="paper")
    model, loss = build_model(study, (3, 128, 128), seed=0).train(), make_loss(study)
    batch = tiles()
    optimizer, step = make_optimizer(study.training, model), study.recipe.step.make_step()

    def two_passes() -> None:
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            forward_backward(model, loss, batch)

    plain, perturbed = medians(two_passes, lambda: step(model, optimizer, loss, batch))
    name = f"perturbed step ({1000 * perturbed:.0f} ms) against two forward-backward passes ({1000 * plain:.0f} ms)"
    return [(name, perturbed / plain, 1.05)]


def guard() -> list[tuple[str, float, float]]:
    """Compare a round of the federated and the guard's local model with a round of FedAvg and one of local training."""
    study, rate, batches = study_of("fedavg"), 0.001, [tiles(), tiles()]
    local = LocalModel(study, torch.device("cpu"), {}, None)
    federated, alone = plain_learner(study), plain_learner(study)
    beside = {"model": plain_learner(study), "local": local.learner(rate, 1)}

    def one_after_the_other() -> None:
        train({"model": federated}, [batches])
        train({"model": alone}, [batches])

    apart, together = medians(one_after_the_other, lambda: train(beside, [batches]))
    name = f"a guarded step ({500 * together:.0f} ms) against a federated and a local step ({500 * apart:.0f} ms)"
    return [(name, together / apart, 1.1)]


def study_of(algorithm: str, **options: str) -> Study:
    """Return a study of segmentation with a U-Net of six stages."""
    base = {"name": "speed", "task": "segmentation", "labels": {1: "nucleus"}, "rounds": 1}
    model = {"features": [16, 16, 32, 64, 128, 16]}
    algorithm = {"name": algorithm, **options}
    return parse(Study, base | {"model": model, "data": {"channels": 3}, "algorithm": algorithm}, "bench")


def tiles() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of images and label maps."""
    return torch.rand(8, 3, 128, 128), (torch.rand(8, 128, 128) > 0.7).long()


def plain_learner(study: Study) -> Learner:
    """Return a model that learns by plain steps."""
    model = build_model(study, (3, 128, 128), seed=0)
    return Learner(model, make_optimizer(study.training, model), make_loss(study), plain_step)


def forward_backward(model: nn.Module, loss: Callable, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Run one plain pass."""
    loss(model(batch[0]), batch[1]).backward()


def medians(*actions: Callable[[], object]) -> list[float]:
    """Return each action's median time in seconds; the actions take turns."""
    times: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()
    for _ in range(REPEATS):
        for action, measured in zip(actions, times, strict=True):
            started = time.perf_counter()
            action()
            measured.append(time.perf_counter() - started)
    return [statistics.median(measured) for measured in times]


if __name__ == "__main__":
    sys.exit(main())
