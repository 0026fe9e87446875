"""Where a network's representation of an image is: between what encodes it and what answers."""

from __future__ import annotations

from torch import nn


def feature_layer(model: nn.Module) -> nn.Module:
    """Return the layer whose first input is the representation.

    That is the last linear layer; in the U-Net, which has none, the decoder's first level, whose first input is the
    output of the deepest level of the encoder.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else model.get_submodule("network.upcat_4")
