"""The shapes of a study's examples, as its settings declare them, without any data."""

import numpy as np

from silofl.data.transforms import compose, metadata_tracking
from silofl.study import Study

# Images, windows and volumes are taken to have these sizes where a study leaves them open.
IMAGE = (256, 256)
WINDOW = (1, 128)
VOLUME = (128, 128, 64)


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
    compositions = []
    spatial: tuple[int, ...]
    if study.data.dimensions == 3:
        spatial = size or VOLUME
        compositions.append(compose(study.data, "volume_transforms", has_label_map=False))
    elif study.model.name == "activity_cnn":
        spatial = size or WINDOW
    else:
        spatial = size or IMAGE
    compositions.append(compose(study.data, "transforms", has_label_map=False))
    transforms = [transform for transform in compositions if transform is not None]
    if not transforms:
        return (study.data.in_channels, *spatial)
    # MONAI is imported only here: most studies resize nothing, and it takes seconds.
    import torch
    from monai.data.meta_tensor import MetaTensor

    image = np.zeros((study.data.channels, *spatial), np.float32)
    case = {"image": MetaTensor(image, affine=torch.eye(4, dtype=torch.float64))}
    with metadata_tracking(True):
        for transform in transforms:
            case = transform(case)
    return (study.data.in_channels, *case["image"].shape[1:])
