"""FedSM's selector of volumes, which sees central slices, beside a light VGG in 3D that sees patches and windows.

python bench/selector_volumes.py [FOLDER]

Both learn which of five simulated hospitals a case is from, on all sites' training volumes in one place, by as many
steps of Adam on as many examples; FOLDER holds the phantoms, by default a temporary one.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from silofl.data.site_data import load_site_data
from silofl.data.volumes import PatchSampler, central_slices, pad_to_size
from silofl.models.normalization import GROUPS
from silofl.models.selector import LIGHT_DIVISOR, VGG11, SelectorNetwork
from silofl.study import Study, load_study
from silofl_desk.phantoms.phantoms import VOLUMES, make_phantoms

STEPS, BATCH, RATE, SEEDS = 150, 8, 1e-3, (0, 1, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    study = load_study(Path(__file__).parents[1] / "jobs" / "fedsm_volumes" / "app" / "config" / "study.yaml")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
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
    channels, count = training[0][0].shape[0], len(sites)
    rows = {
        "central slices in 2D": (lambda: SelectorNetwork(channels, count, is_light=True), a_slice, central_slices),
        "windows in 3D": (lambda: light_vgg(channels, count), patch_of(study), windows(study)),
    }
    for name, (build, draw, whole) in rows.items():
        for seed in SEEDS:
            print(f"{name}, seed {seed}: {accuracy(build, draw, whole, training, test, seed)}")
    return 0


def accuracy(build: Callable, draw: Callable, whole: Callable, training: list, test: list, seed: int) -> str:
    """Train a selector and return its accuracy over cases, with the seconds of its training."""
    torch.manual_seed(seed)
    random, network = np.random.default_rng(seed), build()
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
    return lambda image, random: sampler.draw(image, np.zeros(image.shape[1:], np.uint8))[0]


def windows(study: Study) -> Callable[[NDArray], NDArray]:
    """Return a function that covers a volume with windows of a patch's size, as few as can be."""
    size = study.data.patches.size

    def cover(image: NDArray) -> NDArray:
        image = pad_to_size(image, size)
        starts = [
            np.linspace(0, length - side, -(-length // side)).round().astype(int)
            for length, side in zip(image.shape[1:], size, strict=True)
        ]
        places = (tuple(map(slice, place, np.add(place, size))) for place in product(*starts))
        return np.stack([image[(slice(None), *place)] for place in places])

    return cover


def a_slice(image: NDArray, random: np.random.Generator) -> NDArray:
    found = central_slices(image)
    return found[random.integers(len(found))]


def light_vgg(channels: int, count: int) -> nn.Module:
    """Return the light selector's network with one more dimension; poolings leave an axis of one voxel as it is."""
    layers: list[nn.Module] = []
    for width in VGG11:
        if width == 0:
            layers.append(nn.MaxPool3d(2, ceil_mode=True))
            continue
        width //= LIGHT_DIVISOR
        layers += [nn.Conv3d(channels, width, 3, padding=1), nn.GroupNorm(GROUPS, width), nn.ReLU(inplace=True)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels, count))


if __name__ == "__main__":
    sys.exit(main())
