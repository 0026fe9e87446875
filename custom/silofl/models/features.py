"""Where a network's representation of an image is: between what encodes it and what answers."""

from __future__ import annotations

from torch import nn

from silofl.errors import ConfigError


def feature_layer(model: nn.Module) -> nn.Module:
    """Return the layer whose first input is the representation.

    That is the last linear layer; in the U-Net, which has none, the decoder's first level, whose first input is the
    output of the deepest level of the encoder.

    Raises:
        ConfigError: The network is another one without a linear layer.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if linear:
        return linear[-1]
    try:
        return model.get_submodule("network.upcat_4")
    except AttributeError:
        raise ConfigError(
            "model.name must be unet for an algorithm that compares representations of label maps' images; in another "
            "network nobody has said where they are: leave out model.network"
        ) from None
