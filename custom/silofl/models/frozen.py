"""Parameters that neither learn nor travel: of a network that knows images already, a study trains the rest alone."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from silofl.base.errors import ConfigError, quote_value, suggest_nearest
from silofl.models.normalization import HomeBatchNorm


def freeze_parameters(network: nn.Module, patterns: Sequence[str]) -> None:
    """Let no optimiser move the parameters whose names match one of several patterns, as ``features.*``.

    Args:
        network: The network; a parameter with several names is frozen by any of them.
        patterns: Of `fnmatch`, in which case counts.

    Raises:
        ConfigError: A pattern matches no parameter, or together they match all.
    """
    parameters = dict(network.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        matching = [parameter for name, parameter in parameters.items() if fnmatchcase(name, pattern)]
        if not matching:
            children = [f"{name}.*" for name, _ in network.named_children()]
            raise ConfigError(
                f"pattern {quote_value(pattern)} of training.frozen matches no parameter"
                f"{suggest_nearest(pattern, children)}; the network has {', '.join(children)}"
            )
        for parameter in matching:
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(f"training.frozen freezes all {len(parameters)} parameters of the network; remove a pattern")


def frozen_names(network: nn.Module) -> frozenset[str]:
    """Return all names of frozen parameters, and of the buffers of layers whose own parameters are all frozen."""
    # By identity, because a tensor may have several names.
    frozen = {id(parameter) for parameter in network.parameters() if not parameter.requires_grad}
    for layer in _yield_frozen_layers(network):
        frozen.update(map(id, layer.buffers(recurse=False)))
    return frozenset(name for name, value in network.state_dict(keep_vars=True).items() if id(value) in frozen)


def list_still_layers(network: nn.Module) -> list[nn.Module]:
    """Return the frozen layers that would go on with their running statistics in training, as BatchNorm does.

    Not those with home statistics, which training neither moves nor goes by.
    """
    layers = []
    for layer in _yield_frozen_layers(network):
        if getattr(layer, "running_mean", None) is not None and not isinstance(layer, HomeBatchNorm):
            layers.append(layer)
    return layers


def _yield_frozen_layers(network: nn.Module) -> Iterator[nn.Module]:
    for layer in network.modules():
        parameters = list(layer.parameters(recurse=False))
        # A layer without parameters, as a pooling, is not frozen.
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            yield layer
