"""The shapes of a study's examples, as its settings declare them, without any data."""

import numpy as np

from silofl.data.transforms import compose, metadata_tracking
from silofl.study import Study

# Sizes of images, windows and volumes where a study leaves them open.
IMAGE, WINDOW, VOLUME = (256, 256), (1, 128), (128, 128, 64)


def image_shape(study: Study, size: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Return the shape (C, *spatial) of what a study's network learns from: patches, or images of a given size.

    Args:
        study: Names the patches, or the transforms.
        size: As for `prepared_shape`.

    Raises:
        ConfigError: A transform of the study is not allowed.
    """
    patches = study.data.patches
    return (study.data.in_channels, *patches.size) if patches else prepared_shape(study, size)


def prepared_shape(study: Study, size: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Return the shape (C, *spatial) of a study's examples, not cut into patches, for images of a given size.

    Args:
        study: Its transforms may change the size, or fix it; voxels are taken to measure 1 mm.
        size: (H, W) of the sites' images, or (X, Y, Z); where None, ``IMAGE``, ``WINDOW`` for sensors over time, or
            ``VOLUME``.

    Raises:
        ConfigError: A transform of the study is not allowed.
    """
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
