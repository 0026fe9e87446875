"""Where a network's representation of an image is: between what encodes it and what answers.

The projection head is that of Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, arXiv:2103.16257, 3.2.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.base.errors import ConfigError


def find_feature_layer(model: nn.Module) -> nn.Module | None:
    """Return the layer whose first input is the representation; None where nobody has said where it is.

    That is the last linear layer; in the U-Net, which has none, the decoder's first level, whose first input is the
    output of the deepest level of the encoder.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    # By its name: MONAI's network is not imported for it.
    levels = [module for name, module in model.named_modules() if name == "network.upcat_4"]
    return next(reversed([*levels, *linear]), None)


def feature_layer(model: nn.Module) -> nn.Module:
    """Return `find_feature_layer` of a network that has one.

    Raises:
        ConfigError: It has none.
    """
    layer = find_feature_layer(model)
    if layer is None:
        raise ConfigError(
            "this algorithm compares representations, and where the study's network has them is not known; leave out "
            "model.network, or choose another algorithm"
        )
    return layer


def count_features(model: nn.Module) -> int:
    """Return the numbers of a representation; 0 where nobody has said where it is."""
    layer = find_feature_layer(model)
    if layer is None:
        return 0
    widths = (getattr(part, "in_features", 0) or getattr(part, "in_channels", 0) for part in layer.modules())
    # Of a level of the decoder the first layer that has a width enlarges its first input.
    width: int = next(filter(None, widths))
    return width


def pool_features(features: Tensor) -> Tensor:
    """Return feature maps (B, C, *spatial) as vectors (B, C), the mean over the spatial axes, in float32 or better."""
    # A network under autocast gives bfloat16, whose cosines have two digits.
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    return features.flatten(2).mean(2) if features.ndim > 2 else features


def join_features(seen: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the mean over all images, slices or windows, of what `record_inputs` collected: (features,)."""
    return torch.cat([pool_features(features) for features in seen]).mean(0).double().cpu().numpy()


@contextmanager
def record_inputs(layer: nn.Module | None) -> Iterator[list[Tensor]]:
    """Collect the first input of each call of a layer; of no layer nothing."""
    seen: list[Tensor] = []
    handle = layer and layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        if handle:
            handle.remove()


def add_projection_head(network: nn.Module, width: int) -> nn.Module:
    """Return a classifier with a projection head of two layers before its last linear layer, which answers.

    The head's output is what `feature_layer` finds, because the answer is linear in it.

    Args:
        network: Its last linear layer is replaced: the head and a new one.
        width: Of the head's output.
    """
    linear = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    name, answering = linear.popitem()
    features = answering.in_features
    # The order in which layers are made decides which random numbers each gets.
    head = [nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width)]
    network.set_submodule(name, nn.Sequential(*head, nn.Linear(width, answering.out_features)))
    return network
