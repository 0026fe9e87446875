"""The normalisation layers that a study may name, for the networks of this folder."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# A GroupNorm of eight groups fits every level whose channels are a multiple of eight; others get one group.
GROUPS = 8


def count_groups(channels: int) -> int:
    """Return how many groups a GroupNorm of so many channels has."""
    return GROUPS if channels % GROUPS == 0 else 1


class _InOwnGroups(nn.modules.instancenorm._InstanceNorm):
    """InstanceNorm as a GroupNorm with a group for each channel: the same function of the same weights.

    torch's InstanceNorm copies feature maps whose channels come last in memory to and fro: a step of a U-Net takes a
    fifth longer with it, and an evaluation half as long again.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps (B, channels, *spatial), each channel with mean 0 and variance 1 before the weights."""
        if maps.shape[2:].numel() == 1:
            # One value has no variance: torch's own layer refuses it, where a GroupNorm would return zeros.
            return super().forward(maps)
        return nn.functional.group_norm(maps, self.num_features, self.weight, self.bias, self.eps)


class InstanceNorm2d(_InOwnGroups, nn.InstanceNorm2d):
    """InstanceNorm of images."""


class InstanceNorm3d(_InOwnGroups, nn.InstanceNorm3d):
    """InstanceNorm of volumes."""


class HomeBatchNorm(_BatchNorm):
    """BatchNorm by the batch in training; in evaluation mode by a mean and a variance that training does not touch.

    `silofl.training.home_statistics` takes them over a hospital's own images. ``num_batches_tracked`` is 0 before.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps (B, channels, *spatial), each channel with mean 0 and variance 1 before the weights."""
        mean, variance = (None, None) if self.training else (self.running_mean, self.running_var)
        return nn.functional.batch_norm(maps, mean, variance, self.weight, self.bias, self.training, 0.0, self.eps)


def replace_batchnorm(network: nn.Module) -> None:
    """Put a `HomeBatchNorm` with the same arrays in the place of each BatchNorm."""
    for name, layer in list(network.named_modules()):
        if isinstance(layer, _BatchNorm):
            home = HomeBatchNorm(layer.num_features, layer.eps, affine=layer.affine)
            home.load_state_dict(layer.state_dict())
            network.set_submodule(name, home)


def list_home_layers(network: nn.Module) -> list[HomeBatchNorm]:
    """Return the layers of `replace_batchnorm`."""
    return [layer for layer in network.modules() if isinstance(layer, HomeBatchNorm)]


INSTANCE_NORMS = {nn.InstanceNorm2d: InstanceNorm2d, nn.InstanceNorm3d: InstanceNorm3d}


def map_norm(normalization: str, channels: int) -> nn.Module:
    """Return the normalisation layer after a convolution, for feature maps (B, channels, H, W)."""
    layers: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm2d(channels),
        "batch_stateless": lambda: nn.BatchNorm2d(channels, affine=False, track_running_stats=False),
        "instance": lambda: InstanceNorm2d(channels, affine=True),
        "group": lambda: nn.GroupNorm(count_groups(channels), channels),
    }
    return layers[normalization]()


def vector_norm(normalization: str, features: int) -> nn.Module:
    """Return the normalisation layer after a fully connected layer, for feature vectors (B, features).

    A vector has one value a feature, so that ``instance`` as well as ``group`` normalise all of them together.
    """
    layers: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm1d(features),
        "batch_stateless": lambda: nn.BatchNorm1d(features, affine=False, track_running_stats=False),
        "instance": lambda: nn.GroupNorm(1, features),
        "group": lambda: nn.GroupNorm(1, features),
    }
    return layers[normalization]()
