"""Which of a model's arrays travel and which stay at home, decided by module type."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from silofl.base.errors import AggregationError
from silofl.core.recipe import Recipe
from silofl.models.normalization import HomeBatchNorm

INPUT_NORM = "input_norm."
# MONAI's DynUNet registers them after the layer that answers, and they answer in training alone.
AUXILIARY = "deep_supervision_heads"


def batchnorm_names(model: nn.Module) -> set[str]:
    """Return the names of all BatchNorm parameters and buffers, found by module type."""
    return _names_below(model, _BatchNorm)


def home_statistics_names(model: nn.Module) -> set[str]:
    """Return the names of the statistics that each hospital takes over its own images, and never sends."""
    return _names_below(model, HomeBatchNorm) & buffer_names(model)


def input_norm_names(model: nn.Module) -> set[str]:
    """Return the names of the input normalisation's arrays, which have an exchange of their own."""
    return {name for name in model.state_dict() if name.startswith(INPUT_NORM)}


def traveling_names(model: nn.Module, recipe: Recipe) -> list[str]:
    """Return the names of the arrays that a site sends each round, in the model's order.

    The input normalisation has its own exchange, integer buffers are never averaged, what the recipe keeps at home and
    home statistics stay there, and a tensor with several names travels under its first.
    """
    staying = input_norm_names(model) | home_names(model, recipe) | home_statistics_names(model)
    staying |= alias_names(model).keys()
    state = model.state_dict()
    return [name for name, value in state.items() if name not in staying and value.is_floating_point()]


def alias_names(model: nn.Module) -> dict[str, str]:
    """Return further name -> first name of the tensors that a model has under several, as MONAI's DynUNet does."""
    names: dict[int, str] = {}
    aliases = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first_name = names.setdefault(id(value), name)
        if name != first_name:
            aliases[name] = first_name
    return aliases


def home_names(model: nn.Module, recipe: Recipe) -> set[str]:
    """Return the names of the arrays that never leave a site: by the recipe's choice, and the frozen ones."""
    # A bare network has no frozen names.
    home = set(getattr(model, "frozen", ()))
    if recipe.stays == "batchnorm":
        home |= batchnorm_names(model)
    elif recipe.stays == "head":
        home |= head_names(model)
    elif recipe.stays == "everything":
        home |= model.state_dict().keys()
    return home


def head_names(model: nn.Module) -> set[str]:
    """Return all names of the last linear or convolutional layer's parameters, which give the answer."""
    head: set[int] = set()
    for name, module in model.named_modules():
        # The last layer is the one that remains; a network without any has no head.
        if isinstance(module, (nn.Linear, _ConvNd)) and AUXILIARY not in name.split("."):
            head = set(map(id, module.parameters()))
    return {name for name, value in model.state_dict(keep_vars=True).items() if id(value) in head}


def buffer_names(model: nn.Module) -> set[str]:
    """Return the names of the buffers: no parameters, so the server's learning rate does not act on them."""
    return {name for name, _ in model.named_buffers()}


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array, which on the CPU shares its memory."""
    return tensor.detach().cpu().numpy()


def read_arrays(state: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Copy some arrays of a model's state to NumPy."""
    # Copied: the model may go on training.
    return {name: as_array(state[name]).copy() for name in names}


def write_arrays(state: Mapping[str, Tensor], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays into a model's state in place.

    Raises:
        AggregationError: A name or shape that the model does not have.
    """
    for name, array in arrays.items():
        if name not in state or tuple(state[name].shape) != np.shape(array):
            expected = f"shape {tuple(state[name].shape)}" if name in state else "no such array"
            raise AggregationError(
                f"the received {name!r} of shape {np.shape(array)} does not fit the model, which has {expected}"
            )
        with torch.no_grad():
            # from_numpy refuses arrays with negative strides, which order="C" copies.
            state[name].copy_(torch.from_numpy(np.asarray(array, order="C")))


def _names_below(model: nn.Module, kind: type[nn.Module]) -> set[str]:
    # A module used twice has two names in the state dict, and both must be found.
    modules = model.named_modules(remove_duplicate=False)
    # With the dot, so that `norm1` does not find `norm10`.
    prefixes = tuple(name + "." for name, module in modules if isinstance(module, kind))
    return {name for name in model.state_dict() if name.startswith(prefixes)} if prefixes else set()
