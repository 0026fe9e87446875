"""Home statistics: BatchNorm's mean and variance, taken over a hospital's own images by the very model that it uses.

The released code of HarmoFL (Jiang et al., arXiv:2112.10775) normalises by the batch in use too, so that an answer
depends on the other images of its batch. With statistics of the hospital's own images each image is answered alone.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from silofl.base.errors import DataError
from silofl.core.moments import measure_inputs
from silofl.data.batches import training_batches
from silofl.data.parts import Examples
from silofl.data.volumes import Array, Volumes
from silofl.models.normalization import list_home_layers
from silofl.study import Study

# Images from which statistics are trusted without a warning.
ENOUGH = 16


def fix_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Fix mean and variance of each `silofl.models.normalization` home layer in one pass; else nothing of a model.

    Layers normalise by the batch during the pass, as in training, so that each layer sees what it has learnt from. The
    moments of its inputs are merged exactly over batches. On one batch the model then answers as in training on it.

    Args:
        model: Any network; nothing happens where it has no such layer.
        batches: Images (B, C, *spatial); two values of a channel at least in each.

    Raises:
        DataError: There is no image, or a batch has one value of a channel.
    """
    layers = list_home_layers(model)
    if not layers:
        return
    was_training = model.training
    model.eval()
    for layer in layers:
        layer.train()
    try:
        moments = measure_inputs(model, layers, batches)
    except ValueError as error:
        # torch's own refusal of a single value.
        raise DataError(f"Home statistics cannot be taken from one image ({error}). Give more images.") from None
    finally:
        model.train(was_training)
    if not any(seen.count for seen in moments):
        raise DataError("Home statistics cannot be taken from no images. Give at least one.")
    for layer, seen in zip(layers, moments, strict=True):
        # A layer that answers in training alone is never called.
        if seen.count:
            layer.running_mean.copy_(seen.mean)
            layer.running_var.copy_(seen.squares / seen.count)
        layer.num_batches_tracked.fill_(1)


def fix_home_statistics(model: nn.Module, images: Array, study: Study, device: torch.device) -> None:
    """Fix a model's home statistics by prepared images, (N, C, *spatial) or volumes; the errors of `fix_statistics`.

    Images come in batches as in training, in an order of the study's seed: as they are stored, a batch might be of one
    patient. Volumes come in patches as in an epoch, but from anywhere, as a clinic has no labels to draw them around.
    """
    if study.model.normalization != "batch_home":
        return
    count = len(images)
    unknown = (None,) * count
    blank: Array = np.zeros(count, np.uint8)
    if study.data.patches:
        blank = Volumes(tuple(np.zeros(image.shape[1:], np.uint8) for image in images))
    part = Examples(images, blank, ("",) * count, unknown, unknown, patches=study.data.patches)
    batches = training_batches(part, study.training.batch_size, None, study.seed, device)
    fix_statistics(model, (inputs for inputs, _ in batches))


def has_statistics(model: nn.Module) -> bool:
    """Return whether a model can answer: it has no home layers, or their statistics are fixed."""
    return all(int(layer.num_batches_tracked) for layer in list_home_layers(model))
