"""Networks of MONAI that a study names by their class, with arguments of its own."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from silofl.base.errors import ConfigError, error_text, quote_value, suggest_nearest
from silofl.base.settings import numbers_in
from silofl.study.data_settings import MOST_CHANNELS
from silofl.study.sections import ModelSettings

# Arguments that fetch weights from elsewhere, or hide others behind them.
NEVER = ("self", "pretrained", "progress", "kwargs")
# A table of a window has as many entries as pairs of its voxels.
MOST = {"window_size": 16}


@dataclass(frozen=True)
class _Form:
    """The names that a class has for what a study decides.

    Attributes:
        norm: Argument of the normalisation layer; None where it is always BatchNorm.
        inputs: Argument of the input's channels.
        outputs: Argument of the output's channels.
        is_pretrained: Whether it loads weights from elsewhere unless told not to.
    """

    norm: str | None = "norm"
    inputs: str = "in_channels"
    outputs: str = "out_channels"
    is_pretrained: bool = False


FORMS = {
    "UNet": _Form(),
    "DynUNet": _Form(norm="norm_name"),
    "SegResNet": _Form(),
    "SwinUNETR": _Form(norm="norm_name"),
    "HighResNet": _Form(norm="norm_type"),
    "VNet": _Form(norm=None),
    "DenseNet169": _Form(),
    "DenseNet201": _Form(),
    "DenseNet264": _Form(),
    # Its shortcuts have BatchNorm whatever the rest has.
    "ResNet": _Form(norm=None, inputs="n_input_channels", outputs="num_classes"),
    "EfficientNetBN": _Form(outputs="num_classes", is_pretrained=True),
}


def build_monai_network(
    settings: ModelSettings, norm: tuple[str, dict[str, object]], in_channels: int, out_channels: int, dimensions: int
) -> nn.Module:
    """Build the network of ``model.network``.

    Args:
        settings: Names the class, which the study's check has found among those that may be named, and its arguments.
        norm: The normalisation layer, in MONAI's form.
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        dimensions: Axes of an image, 2 or 3.

    Raises:
        ConfigError: An argument is not known, too large or not the study's to give, MONAI cannot build the network, or
            it has other normalisation layers than ``model.normalization``.
    """
    import monai.networks.nets

    name = str(settings.network).rpartition(".")[2]
    network_class = getattr(monai.networks.nets, name)
    form = FORMS[name]
    decided: dict[str, Any] = {form.inputs: in_channels, form.outputs: out_channels, "spatial_dims": dimensions}
    if form.norm:
        decided[form.norm] = norm
    if form.is_pretrained:
        decided["pretrained"] = False
    _check_arguments(network_class, settings.arguments, decided)
    return build_named(name, partial(network_class, **decided), settings)


def _check_arguments(network_class: type[nn.Module], arguments: Mapping[str, Any], decided: Mapping[str, Any]) -> None:
    names = inspect.signature(network_class.__init__).parameters
    free = [name for name in names if name not in (*decided, *NEVER)]
    for name in arguments:
        # Neither unknown arguments nor those that other keys of the study decide.
        if name not in free:
            raise ConfigError(
                f"model.arguments must be among {', '.join(free)} for {network_class.__name__}, not {name!r}"
                f"{suggest_nearest(name, free)}; rename or remove it"
            )
        most = MOST.get(name, MOST_CHANNELS)
        largest = max(numbers_in(arguments[name]), default=0)
        if largest > most:
            raise ConfigError(f"model.arguments.{name} must be at most {most}, not {quote_value(largest)}; lower it")


def build_named(name: str, build: Callable[..., object], settings: ModelSettings) -> nn.Module:
    """Build a network with ``model.arguments``.

    Args:
        name: Of the network, in messages.
        build: Takes the arguments.

    Raises:
        ConfigError: It cannot be built, or has other normalisation layers than ``model.normalization``.
    """
    try:
        network = build(**settings.arguments)
    except ConfigError:
        raise
    except Exception as error:  # MONAI and packages raise whatever their checks raise
        raise ConfigError(f"{name} cannot be built with model.arguments: {error_text(error)}") from None
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{name} returns {type(network).__name__} instead of a torch module")
    _check_normalization(network, name, settings.normalization)
    return network


def _check_normalization(network: nn.Module, name: str, normalization: str) -> None:
    """Refuse a network whose BatchNorm the study does not know of, or that has none where the study names it."""
    has_batchnorm = any(isinstance(module, _BatchNorm) for module in network.modules())
    if has_batchnorm != normalization.startswith("batch"):
        wanted = "batch" if has_batchnorm else "instance or group"
        raise ConfigError(
            f"model.normalization must be {wanted} for {name} with these arguments, not {normalization}: what keeps "
            "or compares BatchNorm depends on it"
        )
