"""Contrasts of training images that are left out at random, so that a network learns to do without one."""

from typing import Any

import numpy as np
from monai.transforms import Randomizable
from torch import Tensor


class DropChannels(Randomizable):
    """Make each contrast of an image zeros with a probability (Wagner et al., WACV 2025, arXiv:2406.11636).

    An image keeps at least one of the contrasts that it has: where all would go, one of them stays.

    Args:
        probability: Of each contrast, in [0, 1).
        num_contrasts: How many an image has.
    """

    def __init__(self, probability: float, num_contrasts: int) -> None:
        self.probability, self.num_contrasts = probability, num_contrasts

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data with another ``image``, (C, *spatial); of slices all contrasts of one, then of the next."""
        image: Tensor = data["image"]
        by_contrast = image.reshape(-1, self.num_contrasts, *image.shape[1:])
        is_there = by_contrast.abs().flatten(2).amax(dim=(0, 2)).numpy() > 0
        # MONAI seeds R, which is None until then.
        draws = self.R.random_sample(self.num_contrasts)
        is_kept = draws >= self.probability
        if is_there.any() and not (is_kept & is_there).any():
            is_kept[np.argmax(np.where(is_there, draws, -1))] = True
        kept = image.new_tensor(is_kept).reshape(-1, *[1] * (image.ndim - 1))
        return {**data, "image": (by_contrast * kept).reshape(image.shape)}
