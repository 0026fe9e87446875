"""The normalisation layers that a study may name, for the networks of this folder."""

from __future__ import annotations

from torch import nn

# A GroupNorm of eight groups fits every level whose channels are a multiple of eight; others get one group.
GROUPS = 8


def groups_of(channels: int) -> int:
    """Return how many groups a GroupNorm of so many channels has."""
    return GROUPS if channels % GROUPS == 0 else 1


def map_norm(normalization: str, channels: int) -> nn.Module:
    """Return the normalisation layer after a convolution, for feature maps (B, channels, H, W)."""
    return {
        "batch": lambda: nn.BatchNorm2d(channels),
        "batch_stateless": lambda: nn.BatchNorm2d(channels, affine=False, track_running_stats=False),
        "instance": lambda: nn.InstanceNorm2d(channels, affine=True),
        "group": lambda: nn.GroupNorm(groups_of(channels), channels),
    }[normalization]()


def vector_norm(normalization: str, features: int) -> nn.Module:
    """Return the normalisation layer after a fully connected layer, for feature vectors (B, features).

    A vector has one value a feature, so that ``instance`` as well as ``group`` normalise all of them together.
    """
    return {
        "batch": lambda: nn.BatchNorm1d(features),
        "batch_stateless": lambda: nn.BatchNorm1d(features, affine=False, track_running_stats=False),
        "instance": lambda: nn.GroupNorm(1, features),
        "group": lambda: nn.GroupNorm(1, features),
    }[normalization]()
