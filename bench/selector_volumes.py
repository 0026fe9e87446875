"""FedSM's selector of volumes: the light one in 3D on windows of a case, beside the light one in 2D on central slices.

python bench/selector_volumes.py [FOLDER]

Both learn which of five simulated hospitals a case is from, on all sites' training volumes in one place, by as many steps
of Adam on as many examples; FOLDER holds the phantoms, by default a temporary one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from silofl.data.phantoms import VOLUMES, make_phantoms
from silofl.data.site_data import load_site_data
from silofl.data.volumes import PatchSampler, padded, windows_of
from silofl.models.selector import SelectorNetwork
from silofl.study import Study, load_study

STEPS, BATCH, RATE, SEEDS = 150, 8, 1e-3, (0, 1, 2)
# Central slices of a case, and the size that they are padded or cut to.
SLICES, SIDE = 3, 64


def main() -> int:
    torch.set_num_threads(1)
    study = load_study(Path(__file__).parents[1] / "jobs" / "fedsm_volumes" / "app" / "config" / "study.yaml")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        make_phantoms(folder, kind=VOLUMES)
        sites = [load_site_data(folder / site, study, folder / ".silofl-cache", False) for site in VOLUMES.patients]
    training = [(image, site) for site, data in enumerate(sites) for image in data.training.images]
    test = [
        (image, site)
        for site, data in enumerate(sites)
        for part in (data.validation, data.test)
        for image in part.images
    ]
    print(f"{len(training)} training volumes of {len(sites)} hospitals, {len(test)} others; {STEPS} steps of {BATCH}")
    for name, dimensions, draw, whole in (
        ("3D windows", 3, patch_of(study), windows(study)),
        ("2D slices", 2, slice_of, slices),
    ):
        for seed in SEEDS:
            print(f"{name}, seed {seed}: {accuracy(dimensions, draw, whole, training, test, seed)}")
    return 0


def accuracy(dimensions: int, draw: Callable, whole: Callable, training: list, test: list, seed: int) -> str:
    """Train a selector and return its accuracy over cases, with the seconds of its training."""
    torch.manual_seed(seed)
    random, count = np.random.default_rng(seed), len({site for _, site in training})
    network = SelectorNetwork(training[0][0].shape[0], count, is_light=True, dimensions=dimensions)
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    start = time.process_time()
    for _ in range(STEPS):
        chosen = [training[i] for i in random.integers(0, len(training), BATCH)]
        inputs = torch.from_numpy(np.stack([draw(image, random) for image, _ in chosen]))
        loss = nn.functional.cross_entropy(network(inputs), torch.tensor([site for _, site in chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.process_time() - start
    network.eval()
    with torch.inference_mode():
        means = [network(torch.from_numpy(whole(image))).softmax(1).mean(0) for image, _ in test]
    right = sum(int(mean.argmax()) == site for mean, (_, site) in zip(means, test, strict=True))
    return f"{right} of {len(test)} cases right, {seconds:.0f} s of CPU for its steps"


def patch_of(study: Study) -> Callable[[NDArray, np.random.Generator], NDArray]:
    sampler = PatchSampler(study.data.patches, 0)
    return lambda image, random: sampler.draw(image, np.int64(0))[0]


def windows(study: Study) -> Callable[[NDArray], NDArray]:
    return lambda image: windows_of(image, study.data.patches.size)


def slices(image: NDArray) -> NDArray:
    """Return the central slices, (SLICES, C, SIDE, SIDE)."""
    middle = image.shape[-1] // 2
    chosen = image[..., middle - SLICES // 2 : middle + SLICES // 2 + 1]
    chosen = padded(np.moveaxis(chosen, -1, 0), (SIDE, SIDE))
    corner = [(length - SIDE) // 2 for length in chosen.shape[2:]]
    return np.ascontiguousarray(chosen[..., corner[0] : corner[0] + SIDE, corner[1] : corner[1] + SIDE])


def slice_of(image: NDArray, random: np.random.Generator) -> NDArray:
    return slices(image)[random.integers(SLICES)]


if __name__ == "__main__":
    sys.exit(main())
