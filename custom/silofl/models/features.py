"""Where a network's representation of an image is: between what encodes it and what answers.

The projection head is that of Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, arXiv:2103.16257, 3.2.
"""

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


def add_projection_head(network: nn.Module, width: int) -> nn.Module:
    """Return a classifier with a projection head of two layers before its last linear layer, which answers.

    The head's output is what `feature_layer` finds, because the answer is linear in it.

    Args:
        network: Its last linear layer is replaced: the head and a new one.
        width: Of the head's output.
    """
    name, last = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    features = last.in_features
    head = nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width)
    network.set_submodule(name, nn.Sequential(*head, nn.Linear(width, last.out_features)))
    return network
