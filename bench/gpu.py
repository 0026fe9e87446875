"""Times and memory on a GPU, in float32 and bfloat16: amplitude normalisation, the perturbed step, whole epochs.

    python bench/gpu.py [--device cpu --short]

Every row trains through the one loop of the package. ``same twice`` says whether a second epoch from the same seed ends
with the same bits. Where there is no GPU nothing is measured; ``--device cpu --short`` only tries the script out.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from measured import REPEATS

from silofl.algorithms.harmofl import AmplitudeNorm
from silofl.base.settings import parse
from silofl.core.steps import plain_step
from silofl.data.batches import training_batches
from silofl.data.parts import Examples
from silofl.data.volumes import Volumes
from silofl.models import build_plain_model
from silofl.study import Study
from silofl.training.loop import Learner, make_optimizer, train
from silofl.training.losses import make_loss

PRECISIONS = ("float32", "bfloat16")
SEED, GIB = 0, 2**30


@dataclass(frozen=True)
class Work:
    """An epoch of one network.

    Attributes:
        name: Of the row.
        model: Section ``model`` of the study, without precision.
        task: Of the study.
        count: Images or volumes.
        size: Of each.
        channels: Of each.
        batch_size: Images or patches a step.
        patches: How volumes are cut; None of images.
    """

    name: str
    model: dict[str, Any]
    task: str
    count: int
    size: tuple[int, ...]
    channels: int
    batch_size: int
    patches: dict[str, Any] | None = None

    def study(self, precision: str, algorithm: str) -> Study:
        """Return a study that trains it."""
        is_classification = self.task == "classification"
        patches = {"dimensions": 3, "patches": self.patches} if self.patches else {}
        values = {
            "name": "gpu",
            "task": self.task,
            "labels": {0: "normal", 1: "tumour"} if is_classification else {1: "organ"},
            "metric": "accuracy" if is_classification else "dice",
            "rounds": 1,
            "data": {"channels": self.channels} | patches,
            "model": self.model | {"precision": precision},
            "training": {"loss": "cross_entropy" if is_classification else "dice_ce"},
            "algorithm": {"name": algorithm, "preset": "paper"} if algorithm == "harmofl" else {"name": algorithm},
        }
        return parse(Study, values, "bench")

    def examples(self, study: Study) -> Examples:
        """Draw the images, with a box or a class to find in them."""
        random = np.random.default_rng(SEED)
        images = random.random((self.count, self.channels, *self.size), np.float32)
        targets = random.integers(0, 2, self.count)
        if study.task == "segmentation":
            targets = np.zeros((self.count, *self.size), np.uint8)
            targets[(slice(None), *(slice(side // 3, side // 2) for side in self.size))] = 1
            images[:, 0] += targets
        names = tuple(map(str, range(self.count)))
        arrays = (Volumes(tuple(images)), Volumes(tuple(targets))) if self.patches else (images, targets)
        return Examples(*arrays, names, (None,) * self.count, names, patches=study.data.patches)


UNET, UNET_3D = {"name": "unet", "normalization": "batch"}, {"name": "unet", "normalization": "instance"}
DYN_UNET = {
    "network": "monai.networks.nets.DynUNet",
    "arguments": {
        "kernel_size": [3, 3, 3, 3],
        "strides": [1, 2, 2, 2],
        "upsample_kernel_size": [2, 2, 2],
        "filters": [32, 64, 128, 256],
    },
    "normalization": "instance",
}
DENSENET = {"name": "densenet121", "normalization": "batch"}


def works(is_short: bool) -> list[Work]:
    """Return the epochs; short ones are small enough for a CPU."""
    images, volumes, side, cube = (4, 1, 32, 64) if is_short else (256, 8, 256, 128)
    patches = {"size": [cube // 2] * 3 if is_short else [96, 96, 96], "per_volume": 4}
    return [
        Work(f"DenseNet-121, {images} of {side} x {side}", DENSENET, "classification", images, (side, side), 3, 32),
        Work(f"U-Net, {images} of {side} x {side}", UNET, "segmentation", images, (side, side), 3, 16),
        Work(f"3D U-Net, patches of {volumes} volumes", UNET_3D, "segmentation", volumes, (cube,) * 3, 1, 2, patches),
        Work(
            f"3D DynUNet, patches of {volumes} volumes", DYN_UNET, "segmentation", volumes, (cube,) * 3, 1, 2, patches
        ),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU here: nothing was measured")
        return
    device = torch.device(options.device)
    repeats = 1 if options.short else REPEATS
    print(torch.cuda.get_device_name() if device.type == "cuda" else "CPU", f"torch {torch.__version__}", sep=", ")
    print("| what | precision | median | most memory | same twice |\n|---|---|---|---|---|")
    for cells in rows(device, repeats, options.short):
        print("| " + " | ".join(cells) + " |", flush=True)


def rows(device: torch.device, repeats: int, is_short: bool) -> Iterator[Sequence[str]]:
    """Yield the cells of each row as it is measured."""
    side = 32 if is_short else 256
    images = torch.rand(8 if is_short else 128, 3, side, side, device=device)
    learning, fixed = AmplitudeNorm((3, side, side)).to(device), AmplitudeNorm((3, side, side)).to(device)
    learning(images)
    fixed.fix(learning.running_amplitude)
    shape = " x ".join(map(str, images.shape))
    for name, layer in (("learning", learning), ("fixed", fixed)):
        yield (
            f"AmpNorm of {shape}, {name}",
            "float32",
            *measured(lambda layer=layer: layer(images), device, repeats),
            "-",
        )
    for work in works(is_short):
        for precision in PRECISIONS:
            yield epoch(work, precision, device, repeats)
    for work in works(is_short)[:2]:
        for precision in PRECISIONS:
            yield perturbed(work, precision, device, repeats)


def epoch(work: Work, precision: str, device: torch.device, repeats: int) -> Sequence[str]:
    """Measure an epoch, and see whether a second one from the same seed has the same bits."""
    study = work.study(precision, "fedavg")
    part, loss = work.examples(study), make_loss(study)

    def built() -> Learner:
        model = build_plain_model(study, SEED).to(device)
        return Learner(model, make_optimizer(study.training, model), loss, plain_step)

    def trained(learner: Learner) -> dict[str, torch.Tensor]:
        torch.manual_seed(SEED)
        train({"model": learner}, [training_batches(part, work.batch_size, None, SEED, device)])
        return learner.model.state_dict()

    one, other = trained(built()), trained(built())
    is_same = all(torch.equal(one[name], other[name]) for name in one)
    del one, other
    learner = built()
    times = measured(lambda: trained(learner), device, repeats)
    return f"an epoch of {work.name}", precision, *times, "yes" if is_same else "no"


def perturbed(work: Work, precision: str, device: torch.device, repeats: int) -> Sequence[str]:
    """Measure HarmoFL's step on one batch."""
    study = work.study(precision, "harmofl")
    part, loss = work.examples(study), make_loss(study)
    model = build_plain_model(study, SEED).to(device).train()
    optimizer, step = make_optimizer(study.training, model), study.recipe.step.make_step()
    batch = next(training_batches(part, work.batch_size, None, SEED, device))
    name = work.name.partition(",")[0]
    times = measured(lambda: step(model, optimizer, loss, batch), device, repeats)
    return f"perturbed step, {name}, {len(batch[0])} images", precision, *times, "-"


def measured(action: Callable[[], object], device: torch.device, repeats: int) -> tuple[str, str]:
    """Return the median time after one turn that does not count, and the most memory on the GPU."""
    is_gpu, seconds = device.type == "cuda", []
    for turn in range(repeats + 1):
        if is_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        action()
        if is_gpu:
            torch.cuda.synchronize()
        if turn:
            seconds.append(time.perf_counter() - started)
    memory = f"{torch.cuda.max_memory_allocated() / GIB:.2f} GiB" if is_gpu else "-"
    return f"{1000 * np.median(seconds):.1f} ms", memory


if __name__ == "__main__":
    main()
