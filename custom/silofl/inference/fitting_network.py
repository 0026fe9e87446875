"""Build the network of a state dict; refuse weights that are not its own, or that no training ends with."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from silofl.base.errors import ConfigError, one_line
from silofl.models import HarmonizedModel, build_model, build_plain_model
from silofl.models.names import INPUT_NORM
from silofl.study import Study

# These are far above what training ends with. Statistics are larger: an amplitude adds up all pixels of an image.
MAX_PARAMETER, MAX_STATISTIC = 1e6, 1e15


def build_fitting_network(study: Study, shape: tuple[int, ...], state: Mapping[str, Tensor]) -> HarmonizedModel:
    """Build the network of a state; a model that a site trained alone has no input normalisation."""
    if any(name.startswith(INPUT_NORM) for name in state):
        return build_model(study, shape, study.seed)
    return build_plain_model(study, study.seed)


def load_weights(network: HarmonizedModel, state: Mapping[str, Tensor], name: str) -> HarmonizedModel:
    """Load a state dict; only BatchNorm's counters of batches may be missing, which play no part in predictions.

    Args:
        network: The network of the state's study.
        name: The model's name, for messages.

    Raises:
        ConfigError: The names, the shapes or the size of the numbers are not those of the network.
    """
    # The counters of the new network fill in for those that a state lacks.
    counters = {key: value for key, value in network.state_dict().items() if key.endswith("num_batches_tracked")}
    try:
        network.load_state_dict(counters | dict(state))
    except RuntimeError as error:
        raise ConfigError(
            f"the weights of {name!r} are not those of the study's network: {one_line(error, 200)}; take the super "
            "model as it was written"
        ) from None
    _check_magnitudes(network, name)
    return network.requires_grad_(False)


def _check_magnitudes(network: nn.Module, name: str) -> None:
    """Refuse numbers that no training ends with: the network would answer every image alike."""
    parameters = dict(network.named_parameters())
    for key, value in network.state_dict().items():
        most = MAX_PARAMETER if key in parameters else MAX_STATISTIC
        # Every comparison with NaN is false: it is refused too.
        if value.is_floating_point() and not bool((value.abs() <= most).all()):
            raise ConfigError(
                f"{key} of the weights of {name!r} has NaN, infinity or numbers above {most:g} in size; train the "
                "model anew"
            )
