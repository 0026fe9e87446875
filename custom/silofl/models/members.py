"""The models that a site trains side by side, and the names under which their arrays travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.algorithms.harmofl import AmplitudeNorm
from silofl.algorithms.recipe import Recipe
from silofl.models.networks import HarmonizedModel, build_model, build_plain_model
from silofl.models.parts import (
    AMPLITUDE,
    amplitude_names,
    batchnorm_names,
    buffer_names,
    read_arrays,
    traveling_names,
    write_arrays,
)
from silofl.study import Study

GLOBAL, PERSONAL, SELECTOR = "global", "personal", "selector"


def wire_name(role: str, name: str) -> str:
    """Return the name of a model's array in a message: ``role/name``, or the name alone for a single model."""
    return f"{role}/{name}" if role else name


def role_of(name: str) -> str:
    """Return the role in front of an array's name, empty for a single model."""
    return name.partition("/")[0] if "/" in name else ""


def of_role(role: str, arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return the arrays of one role under the names that the model itself uses."""
    return {name.removeprefix(f"{role}/"): array for name, array in arrays.items() if role_of(name) == role}


def with_role(role: str, arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return a model's arrays under the names by which they travel."""
    return {wire_name(role, name): array for name, array in arrays.items()}


class Members:
    """The task models of a site by role: a single one with the empty role, or a global and a personalised one.

    Args:
        models: Role -> model.
    """

    def __init__(self, models: Mapping[str, HarmonizedModel]) -> None:
        self.models = dict(models)

    @classmethod
    def build(cls, study: Study, image_shape: Sequence[int] | None) -> Members:
        """Build a study's task models, all drawn from its seed; without an image's shape, without amplitude."""

        def model() -> HarmonizedModel:
            plain = image_shape is None
            return build_plain_model(study, study.seed) if plain else build_model(study, image_shape, study.seed)

        return cls({role: model() for role in ((GLOBAL, PERSONAL) if study.recipe.has_selector else ("",))})

    @property
    def own(self) -> HarmonizedModel:
        """The model that is the site's own: the personalised one, or the single one."""
        return self.models.get(PERSONAL) or self.models[""]

    def to(self, device: torch.device) -> Members:
        """Move all models to a device."""
        return Members({role: model.to(device) for role, model in self.models.items()})

    def state(self) -> dict[str, Tensor]:
        """Return all arrays of all models by the names under which they travel."""
        return {
            wire_name(role, name): value
            for role, model in self.models.items()
            for name, value in model.state_dict().items()
        }

    def traveling_names(self, recipe: Recipe) -> list[str]:
        """Return the names of the arrays that a site sends each round, in order."""
        return self._names(lambda model: traveling_names(model, recipe))

    def buffer_names(self) -> set[str]:
        """Return the names of what is no parameter."""
        return set(self._names(buffer_names))

    def batchnorm_names(self) -> set[str]:
        """Return the names of all BatchNorm parameters and buffers."""
        return set(self._names(batchnorm_names))

    def amplitude_names(self) -> set[str]:
        """Return the names of all amplitude normalisations' buffers."""
        return set(self._names(amplitude_names))

    def read(self, names: Iterable[str]) -> dict[str, NDArray]:
        """Copy some arrays to NumPy."""
        return read_arrays(self.state(), names)

    def write(self, arrays: Mapping[str, NDArray]) -> None:
        """Write arrays into the models in place; an amplitude fixes that of every model.

        Raises:
            AggregationError: A name or shape that the models do not have.
        """
        arrays = dict(arrays)
        amplitude = arrays.pop(AMPLITUDE, None)
        if amplitude is not None:
            self.fix_amplitude(amplitude)
        write_arrays(self.state(), arrays)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Write what a site kept at home into the models, buffers included."""
        own = self.state()
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(value)

    def amplitude(self) -> NDArray | None:
        """Return the running amplitude, the same in every model because all see the same batches."""
        norms = self._amplitude_norms()
        return norms[0].band_amplitude().cpu().numpy() if norms else None

    def fix_amplitude(self, amplitude: NDArray | None = None) -> None:
        """Fix every model's amplitude, at its own running one where none is given."""
        for norm in self._amplitude_norms():
            norm.fix(norm.running_amplitude if amplitude is None else amplitude)

    def _amplitude_norms(self) -> list[AmplitudeNorm]:
        return [model.input_norm for model in self.models.values() if isinstance(model.input_norm, AmplitudeNorm)]

    def _names(self, find: Callable[[nn.Module], Iterable[str]]) -> list[str]:
        return [wire_name(role, name) for role, model in self.models.items() for name in find(model)]
