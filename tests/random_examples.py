"""Random examples in the form of a study's data."""

from dataclasses import replace

import numpy as np

from silofl.data.parts import Examples
from silofl.data.volumes import Volumes


def random_part(study, shape, count):
    """Return so many examples of noise with random labels, the same for the same study."""
    random = np.random.default_rng(study.seed)
    names = tuple(f"example{number}" for number in range(count))
    images = random.random((count, *shape), np.float32)
    if study.task == "segmentation":
        targets = random.integers(0, len(study.labels) + 1, (count, *shape[1:])).astype(np.uint8)
    else:
        # Any number is a set of findings.
        targets = random.integers(0, len(study.labels), count)
    return Examples(images, targets, names, (None,) * count, names)


def random_volume(study, shape):
    """Return one volume (C, X, Y, Z) of noise with random labels, which is larger than the study's patches."""
    part = random_part(study, shape, 1)
    images, targets = Volumes((part.images[0],)), Volumes((part.targets[0],))
    return replace(part, images=images, targets=targets, patches=study.data.patches)
