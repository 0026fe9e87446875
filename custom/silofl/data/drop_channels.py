"""Contrasts of training images that are not there, or are left out at random so that a network learns to do without."""

from typing import Any

import numpy as np
from monai.transforms.transform import Randomizable
from numpy.typing import NDArray
from torch import Tensor


class MissingContrasts:
    """Two steps, before and after random transforms, by which the contrasts that an image lacks are zeros still.

    Args:
        num_contrasts: How many an image has.
    """

    def __init__(self, num_contrasts: int) -> None:
        self.num_contrasts = num_contrasts

    def find(self, data: dict[str, Any]) -> dict[str, Any]:
        """Record which contrasts of ``image`` exist."""
        self._is_there = _has_signal(data["image"], self.num_contrasts)
        return data

    def blank(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data with zeros for the others, whatever they have become."""
        if self._is_there.all():
            return data
        return {**data, "image": _keep_contrasts(data["image"], self._is_there)}


class DropChannels(Randomizable):
    """Make each contrast of an image zeros with a probability (Wagner et al., WACV 2025, arXiv:2406.11636).

    An image keeps at least one of the contrasts that it has: where all would go, one of them stays.

    Args:
        probability: Of each contrast, in [0, 1).
        num_contrasts: How many an image has.
    """

    def __init__(self, probability: float, num_contrasts: int) -> None:
        self.probability = probability
        self.num_contrasts = num_contrasts

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data with another ``image``, (C, *spatial); of slices all contrasts of one, then of the next."""
        image: Tensor = data["image"]
        is_there = _has_signal(image, self.num_contrasts)
        # MONAI seeds R, which is None until then.
        draws = self.R.random_sample(self.num_contrasts)
        is_kept = draws >= self.probability
        if is_there.any() and not (is_kept & is_there).any():
            # The one with the largest draw is the one that was nearest to being kept.
            is_kept[np.argmax(np.where(is_there, draws, -1))] = True
        return {**data, "image": _keep_contrasts(image, is_kept)}


def _has_signal(image: Tensor, num_contrasts: int) -> NDArray[np.bool_]:
    """Return whether each contrast of an image is anything but zeros."""
    return _reshape_by_contrast(image, num_contrasts).abs().flatten(2).amax(dim=(0, 2)).numpy() > 0


def _keep_contrasts(image: Tensor, is_kept: NDArray[np.bool_]) -> Tensor:
    """Return an image with zeros for the contrasts that are not kept."""
    kept = image.new_tensor(is_kept).reshape(-1, *[1] * (image.ndim - 1))
    return (_reshape_by_contrast(image, len(is_kept)) * kept).reshape(image.shape)


def _reshape_by_contrast(image: Tensor, num_contrasts: int) -> Tensor:
    """Return an image (C, *spatial) as (slices, contrasts, *spatial)."""
    return image.reshape(-1, num_contrasts, *image.shape[1:])
