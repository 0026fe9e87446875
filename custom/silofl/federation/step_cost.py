"""The cost of one training step on this machine, with the study's own learners."""

import math
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from silofl.core.steps import Batch
from silofl.data.batches import training_batches
from silofl.data.transforms import build_augmentation
from silofl.parts.work import Work
from silofl.training.device import keep_freed_memory, set_threads
from silofl.training.evaluation import evaluate
from silofl.training.loop import train

# One more than are timed: the first also sets everything up.
STEPS = 4


@dataclass(frozen=True)
class StepCost:
    """The cost of one step on one batch.

    Attributes:
        seconds: Mean over the steps after the first, loading of the batch included.
        seconds_beside: What the parts do before and after a round's epochs, as another pass over the data, divided by
            the steps of one epoch.
        peak_bytes: The most memory in use: of the GPU where there is one, else of this process since it began.
    """

    seconds: float
    seconds_beside: float
    peak_bytes: int

    def of_round(self, steps: int, epochs: int) -> float:
        """Return the seconds of a round of so many epochs, of so many steps each."""
        return steps * (epochs * self.seconds + self.seconds_beside)


def measure_cost(work: Work, steps: int = STEPS) -> StepCost:
    """Train a few steps from where a training task begins, and measure them and what the parts do beside.

    Args:
        work: A training task at a site, of whose training examples the first few batches are taken.
        steps: The most steps.

    Raises:
        TrainingError: The loss is not finite.
    """
    study = work.study
    part = work.data.training
    device = work.device
    set_threads(study.torch_threads)
    keep_freed_memory()
    # Making the models takes as long for however many examples.
    work.models  # noqa: B018
    began = time.perf_counter()
    learners = work.learners()
    beside = time.perf_counter() - began
    shown = part.patches.per_volume if part.patches else 1
    part = part.select_rows(range(min(len(part), math.ceil(steps * study.training.batch_size / shown))))
    augment = build_augmentation(study, part.targets.ndim > 1)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    marks: list[float] = []
    batches = training_batches(part, study.training.batch_size, augment, study.seed, device)
    with work.spread():
        results = train(learners, [_time_batches(batches, marks)])
    lasted = [after - before for before, after in zip(marks, marks[1:], strict=False)]
    # The first step also sets everything up.
    timed = lasted[1:] or lasted
    ended = time.perf_counter()
    for site_part in work.parts:
        site_part.finish(results)
    beside += time.perf_counter() - ended
    an_epoch = study.steps_an_epoch(len(work.data.training))
    return StepCost(sum(timed) / len(timed), beside / an_epoch, _peak_bytes(device))


def measure_validation(work: Work) -> tuple[float, int]:
    """Evaluate the site's model on its validation data; returns the seconds, and the most memory as `StepCost` has it.

    Args:
        work: A task at a site.
    """
    began = time.perf_counter()
    examples = work.data.validation
    if len(examples):
        evaluate(work.deployed[work.study.recipe.roles[-1]], examples, work.study, work.device)
    return time.perf_counter() - began, _peak_bytes(work.device)


def _time_batches(batches: Iterable[Batch], marks: list[float]) -> Iterator[Batch]:
    """Yield the batches, and record when each step begins and the last one ends."""
    for batch in batches:
        marks.append(time.perf_counter())
        yield batch
    marks.append(time.perf_counter())


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # macOS counts bytes, Linux KiB.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
