"""A step in one process and with its batch spread over two, on one thread each: what `processes` of site.yaml brings.

    python bench/processes.py

On two idle cores; a 3D U-Net of 1.4 and one of 22.6 million parameters, batches of four patches.
"""

import argparse
import time

import numpy as np
import torch

from silofl.base.bundled_jobs import find_job
from silofl.models.networks import build_models
from silofl.training.processes import spread_batches
from silofl_desk.studies.simulation import changed_study

STEPS, LEFT_OUT = 6, 2
LARGE = {"model.features": [32, 64, 128, 256, 512, 32]}


def main() -> None:
    """Measure, and print the ratios."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    for size, changes in (((32, 32, 16), {}), ((64, 64, 32), {}), ((64, 64, 32), LARGE)):
        one, two = (time_step(size, changes, processes) for processes in (1, 2))
        print(f"patches of {' x '.join(map(str, size))}: {one:.3f} s, with two processes {two:.3f} s ({two / one:.2f})")


def time_step(size: tuple[int, ...], changes: dict[str, object], processes: int) -> float:
    """Return the median seconds of a step."""
    study = changed_study(find_job("fedavg_masks_3d"), {"device": "cpu"} | changes)
    (model,) = build_models(study, (2, *size)).values()
    optimizer, images = torch.optim.SGD(model.train().parameters(), 0.01), torch.rand(4, 2, *size)
    seconds = []
    with spread_batches(processes, study, torch.device("cpu")):
        for _ in range(STEPS):
            began = time.perf_counter()
            optimizer.zero_grad()
            model(images).square().mean().backward()
            optimizer.step()
            seconds.append(time.perf_counter() - began)
    return float(np.median(seconds[LEFT_OUT:]))


if __name__ == "__main__":
    main()
