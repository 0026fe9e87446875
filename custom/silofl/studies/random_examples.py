"""Random examples in the form of a study's data, to time a training step without any data."""

import numpy as np

from silofl.data.parts import Examples
from silofl.data.transforms import compose, metadata_tracking
from silofl.study import Study

# Sizes of images, windows and volumes where a study leaves them open.
IMAGE, WINDOW, VOLUME = (256, 256), (1, 128), (128, 128, 64)


def image_shape(study: Study, size: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Return the shape (C, *spatial) of a study's examples, or patches of them, for images of a given size.

    Args:
        study: Its transforms may change the size, or fix it; its patches have their own.
        size: (H, W) of the sites' images, or (X, Y, Z); where None, ``IMAGE``, ``WINDOW`` for sensors over time, or
            ``VOLUME``.

    Raises:
        ConfigError: A transform of the study is not allowed.
    """
    if study.data.patches:
        return (study.data.in_channels, *study.data.patches.size)
    assumed = VOLUME if study.data.dimensions == 3 else WINDOW if study.model.name == "activity_cnn" else IMAGE
    spatial = size or assumed
    kinds = ("volume_transforms", "transforms") if study.data.dimensions == 3 else ("transforms",)
    named = [compose(study.data, kind, has_label_map=False) for kind in kinds]
    if not any(steps is not None for steps in named):
        return (study.data.in_channels, *spatial)
    from monai.data import MetaTensor

    case = {"image": MetaTensor(np.zeros((study.data.channels, *spatial), np.float32), affine=np.eye(4))}
    with metadata_tracking(True):
        for steps in (steps for steps in named if steps is not None):
            case = steps(case)
    return (study.data.in_channels, *case["image"].shape[1:])


def has_own_size(study: Study) -> bool:
    """Return whether the study's transforms bring images of all sizes to one size."""
    # The sizes differ in both sides and in their proportion: only a transform to one size makes them equal.
    one, other = ((96, 160, 24), (224, 128, 40))
    axes = study.data.dimensions
    return image_shape(study, one[:axes]) == image_shape(study, other[:axes])


def random_part(study: Study, shape: tuple[int, ...], count: int) -> Examples:
    """Return so many examples of noise with random labels, the same for the same study."""
    random = np.random.default_rng(study.seed)
    names = tuple(f"example{number}" for number in range(count))
    images = random.random((count, *shape), np.float32)
    if study.task == "segmentation":
        targets = random.integers(0, len(study.labels) + 1, (count, *shape[1:])).astype(np.uint8)
    else:
        targets = random.integers(0, len(study.labels), count)
    return Examples(images, targets, names, (None,) * count, names)
