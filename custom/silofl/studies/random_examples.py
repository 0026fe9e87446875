"""Random examples in the form of a study's data, to time a training step without any data."""

from __future__ import annotations

import numpy as np

from silofl.data.parts import Examples
from silofl.data.transforms import compose, metadata_tracking
from silofl.study import Study

# (H, W) of images and of windows whose size a study leaves open.
IMAGE, WINDOW = (256, 256), (1, 128)


def image_shape(study: Study, size: tuple[int, int] | None = None) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of a study's examples for images of a given size.

    Args:
        study: Its transforms may change the size, or fix it.
        size: (H, W) of the sites' images; where None, ``IMAGE``, or ``WINDOW`` for sensors over time.

    Raises:
        ConfigError: A transform of the study is not allowed.
    """
    height, width = size or (WINDOW if study.model.name == "activity_cnn" else IMAGE)
    image = np.zeros((study.data.channels, height, width), np.float32)
    steps = compose(study.data, "transforms", has_label_map=False)
    if steps is None:
        return (study.data.in_channels, height, width)
    from monai.data import MetaTensor

    with metadata_tracking(True):
        return (study.data.in_channels, *steps({"image": MetaTensor(image)})["image"].shape[1:])


def has_own_size(study: Study) -> bool:
    """Return whether the study's transforms bring images of all sizes to one size."""
    # The sizes differ in both sides and in their proportion: only a transform to one size makes them equal.
    return image_shape(study, (96, 160)) == image_shape(study, (224, 128))


def random_part(study: Study, shape: tuple[int, int, int], count: int) -> Examples:
    """Return so many examples of noise with random labels, the same for the same study."""
    random = np.random.default_rng(study.seed)
    names = tuple(f"example{number}" for number in range(count))
    images = random.random((count, *shape), np.float32)
    if study.task == "segmentation":
        targets = random.integers(0, len(study.labels) + 1, (count, *shape[1:])).astype(np.uint8)
    else:
        targets = random.integers(0, len(study.labels), count)
    return Examples(images, targets, names, (None,) * count, names)
