"""Volumes: an epoch of patches beside a plain MONAI loop, and the memory of a site with few volumes and with many.

python bench/volumes.py [FOLDER]

FOLDER holds the cache of the memory's volumes, 256 x 256 x 100 voxels each; by default a temporary one.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import torch
from monai.data import DataLoader, Dataset
from monai.transforms import Compose, RandCropByPosNegLabeld

from silofl.base.settings import parse
from silofl.core.steps import plain_step
from silofl.data.batches import training_batches
from silofl.data.cache import load_or_prepare
from silofl.data.cache_entries import CacheSource
from silofl.data.parts import Examples, PreparedCase
from silofl.data.volumes import Volumes
from silofl.models import build_plain_model
from silofl.study import Study
from silofl.training.loop import Learner, make_optimizer, train
from silofl.training.losses import make_loss

REPEATS, MIB = 5, 2**20
# Of an epoch, against a plain loop over the same volumes with the same transforms and network.
SLOWEST = 1.1
# Of a site's own memory with 100 volumes, beyond that with 4.
MOST_BYTES = 2 << 30
SIZE = (256, 256, 100)


def main() -> int:
    """Print each promise with what was measured; the exit code is 1 where one is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ours, plain = epochs()
    is_fast = ours / plain <= SLOWEST
    print(f"{word(is_fast)} an epoch of patches of 4 volumes: {ours:.2f} s, a plain MONAI loop {plain:.2f} s: ", end="")
    print(f"{ours / plain:.2f} x, at most {SLOWEST} x")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        few, many = (memory(folder, count) for count in (4, 100))
    is_flat = many - few <= MOST_BYTES
    print(
        f"{word(is_flat)} memory of its own in an epoch of patches: {few / MIB:.0f} MiB with 4 volumes of 256 x 256 x ",
        end="",
    )
    print(f"100, {many / MIB:.0f} MiB with 100; at most {MOST_BYTES / MIB:.0f} MiB more")
    return int(not (is_fast and is_flat))


def word(is_kept: bool) -> str:
    return "kept  " if is_kept else "BROKEN"


def study() -> Study:
    """Return a study in 3D whose epoch has 4 patches of each volume."""
    patches = {"size": (48, 48, 32), "per_volume": 4}
    settings = {
        "name": "bench",
        "task": "segmentation",
        "labels": {1: "organ"},
        "rounds": 1,
        "data": {"dimensions": 3, "patches": patches},
        "model": {"features": (8, 8, 16, 32, 64, 8), "normalization": "instance", "precision": "float32"},
        "training": {"batch_size": 2},
        "algorithm": {"name": "fedavg"},
    }
    return parse(Study, settings, "study.yaml")


def volume(number: int, size: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return an image (1, *size) of noise with a bright box, and the label map of the box."""
    random = np.random.default_rng(number)
    target = np.zeros(size, np.uint8)
    target[tuple(slice(side // 3, side // 2) for side in size)] = 1
    return random.random((1, *size), np.float32) + target, target


def epochs() -> tuple[float, float]:
    """Return the median seconds of an epoch by the one training loop, and by a plain loop with MONAI's loader."""
    settings = study()
    pairs = [volume(number, (128, 128, 64)) for number in range(4)]
    images, targets = (Volumes(tuple(arrays)) for arrays in zip(*pairs, strict=True))
    names = tuple(map(str, range(4)))
    part = Examples(images, targets, names, (None,) * 4, names, patches=settings.data.patches)
    loss = make_loss(settings)
    model = build_plain_model(settings, 0)
    learner = Learner(model, make_optimizer(settings.training, model), loss, plain_step)
    crop = RandCropByPosNegLabeld(
        keys=("image", "label"), label_key="label", spatial_size=settings.data.patches.size, num_samples=4
    )
    cases = [{"image": image, "label": target[None]} for image, target in pairs]
    loader = DataLoader(Dataset(cases, Compose([crop])), batch_size=1, shuffle=True)
    rival = build_plain_model(settings, 0).train()
    optimizer = make_optimizer(settings.training, rival)

    def own(seed: int) -> None:
        train({"model": learner}, [training_batches(part, 2, None, seed, "cpu")])

    def plain(seed: int) -> None:
        for batch in loader:
            # Four patches of one volume come at once; two are a batch.
            for start in (0, 2):
                image, label = (batch[key][start : start + 2].as_tensor() for key in ("image", "label"))
                optimizer.zero_grad()
                loss(rival(image), label[:, 0].long()).backward()
                optimizer.step()

    seconds: dict[str, list[float]] = {"own": [], "plain": []}
    for seed in range(REPEATS + 1):
        for name, run in (("own", own), ("plain", plain)):
            begin = time.perf_counter()
            run(seed)
            seconds[name].append(time.perf_counter() - begin)
    # The first of each also sets everything up.
    return tuple(statistics.median(seconds[name][1:]) for name in ("own", "plain"))


def memory(folder: Path, count: int) -> int:
    """Return the most memory in an epoch of patches of so many volumes, without the pages that the cache maps."""

    def cases() -> Iterator[tuple[str, PreparedCase]]:
        for number in range(count):
            image, target = volume(number, SIZE)
            yield "training", PreparedCase(str(number), str(number), image[None], target[None], (None,))

    part = load_or_prepare(folder, f"volumes{count}", cases, CacheSource(str(folder), ""))["training"]
    part = Examples(part.images, part.targets, part.cases, part.slices, part.patients, patches=study().data.patches)
    process, most = psutil.Process(), 0
    for _ in training_batches(part, 2, None, 0, "cpu"):
        found = process.memory_info()
        most = max(most, found.rss - found.shared)
    return most


if __name__ == "__main__":
    sys.exit(main())
