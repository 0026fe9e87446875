"""A federated algorithm as four independent answers, and the presets that name choices of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from silofl import algorithms
from silofl.errors import ConfigError, nearest

PRESET_NAMES = ("paper", "reference", "recommended")


@dataclass(frozen=True)
class Recipe:
    """The four answers: how the input is normalised, how a site steps, what stays at home, who listens to whom.

    Attributes:
        amplitude_band: Input normalisation: ``none``, ``full``, or the radius of the replaced frequencies (0 = mean).
        amplitude_momentum: The paper's v of the running amplitude, in [0, 1].
        step: How a site steps on one batch.
        perturbation: HarmoFL's alpha: length of the weight perturbation of the ``perturbed`` step, above 0.
        proximal: FedProx's mu: weight of the squared distance to the received model in the ``proximal`` step.
        stays_home: What never leaves the site: ``nothing``, ``batchnorm`` or ``everything`` (local training).
        mixing: Who listens to whom: ``shared`` gives every site the same weighted mean.
        weights: Aggregation weights: by number of training ``examples``, or ``uniform``.
        server_lr: The server's learning rate eta_g, above 0; 1 takes the mean as it is.
    """

    amplitude_band: Literal["none", "full"] | Annotated[int, Field(strict=True, ge=0)] = "none"
    amplitude_momentum: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.1
    step: Literal["plain", "perturbed", "proximal"] = "plain"
    perturbation: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 0.05
    proximal: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.01
    stays_home: Literal["nothing", "batchnorm", "everything"] = "nothing"
    mixing: Literal["shared"] = "shared"
    weights: Literal["examples", "uniform"] = "examples"
    server_lr: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 1.0

    @property
    def has_amplitude(self) -> bool:
        """Whether images pass through amplitude normalisation."""
        return self.amplitude_band != "none"


def algorithm_names() -> list[str]:
    """Return the names of all algorithms: the modules of this package that define ``PRESETS``."""
    modules = (module.name for module in pkgutil.iter_modules(algorithms.__path__))
    return sorted(name for name in modules if hasattr(_module(name), "PRESETS"))


def find_recipe(algorithm: str, preset: str, changes: dict[str, object]) -> Recipe:
    """Return an algorithm's preset with a study's own choices put in its place.

    Args:
        algorithm: Name of a module of this package that defines ``PRESETS``.
        preset: ``paper``, ``reference`` or ``recommended``.
        changes: Fields of `Recipe` that the study sets itself.

    Raises:
        ConfigError: An unknown algorithm, preset or field.
    """
    _require_known("algorithm.name", algorithm, algorithm_names())
    _require_known("algorithm.preset", preset, PRESET_NAMES)
    for name in changes:
        _require_known("a key of algorithm", name, ["name", "preset", *(field.name for field in fields(Recipe))])
    recipe = replace(_module(algorithm).PRESETS[preset], **changes)
    _check_acts(recipe, changes)
    return recipe


def _check_acts(recipe: Recipe, changes: Iterable[str]) -> None:
    """Refuse a constant of an answer that the recipe does not give: it would do nothing."""
    acts = {
        "perturbation": (recipe.step == "perturbed", "step: perturbed"),
        "proximal": (recipe.step == "proximal", "step: proximal"),
        "amplitude_momentum": (recipe.has_amplitude, "amplitude_band: full or a radius"),
    }
    for name in changes:
        is_used, partner = acts.get(name, (True, ""))
        if not is_used:
            raise ConfigError(f"algorithm.{name} must go with {partner}; without it, it does nothing: leave it out")


def _require_known(thing: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ConfigError(f"{thing} must be one of {', '.join(known)}, not {name!r}{nearest(name, known)}")


def _module(name: str) -> object:
    return importlib.import_module(f"{algorithms.__name__}.{name}")
