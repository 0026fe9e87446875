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
        stays_home: What never leaves the site: ``nothing``, ``batchnorm``, the ``head`` (the last layer) or
            ``everything`` (local training).
        mixing: Who listens to whom: ``shared`` gives all sites the same weighted mean, ``softpull`` each its own model,
            ``adafed`` each its own by the similarity of the sites' statistics.
        self_weight: The papers' lambda, the weight of a site's own model: in [1/K, 1] for K sites with ``softpull``, in
            (0, 1] with ``adafed``.
        statistics: What ``adafed`` compares sites by: the layers' inputs in a ``pretrained`` model, or the BatchNorm
            layers' own ``running`` statistics after some shared rounds (f-AdaFed).
        statistics_layers: Layers of the pretrained model whose inputs count: ``all`` BatchNorm layers, or the ``last``
            layer, which classifies (d-AdaFed).
        statistics_rounds: Shared rounds before ``running`` statistics are taken, or ``half`` of the study's.
        refresh_every: Rounds after which ``running`` statistics are taken anew; 0 for once.
        start_from_pretrained: Whether training begins with the pretrained model instead of random weights.
        weights: Aggregation weights: by number of training ``examples``, or ``uniform``.
        server_lr: The server's learning rate eta_g, above 0; 1 takes the mean as it is.
        selector: FedSM's selector, with which a global and a personalised model train side by side, and how it learns:
            ``none``; ``gradients`` (sites send mean gradients, the server steps); ``local_steps``; ``moments`` (one
            full-batch Adam step at each site, its moments averaged too).
        selector_network: ``light`` (GroupNorm, global pooling) or ``vgg11``.
        selector_labels: What the selector learns of an image: its ``site`` (Eq. 2), or in the extra rounds the
            ``best_model`` for it (Eq. 1, FedSM-extra).
        selector_learning_rate: Of the selector's Adam, above 0.
        selector_steps: Steps of the ``gradients`` selector in a round, each one exchange with every site.
        threshold: The paper's gamma, in [0, 1], or ``tuned`` on the sites' validation data.
        answer: How the super model answers: with the model of its ``choice``, or with an ``ensemble`` of them.
        extra_rounds: Rounds after the study's own: of the selector alone where it learns the best model, otherwise of
            every site alone (fine-tuning).
    """

    amplitude_band: Literal["none", "full"] | Annotated[int, Field(strict=True, ge=0)] = "none"
    amplitude_momentum: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.1
    step: Literal["plain", "perturbed", "proximal"] = "plain"
    perturbation: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 0.05
    proximal: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.01
    stays_home: Literal["nothing", "batchnorm", "head", "everything"] = "nothing"
    mixing: Literal["shared", "softpull", "adafed"] = "shared"
    self_weight: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.7
    statistics: Literal["pretrained", "running"] = "running"
    statistics_layers: Literal["all", "last"] = "all"
    statistics_rounds: Literal["half"] | Annotated[int, Field(strict=True, ge=1)] = "half"
    refresh_every: Annotated[int, Field(strict=True, ge=0)] = 0
    start_from_pretrained: bool = False
    weights: Literal["examples", "uniform"] = "examples"
    server_lr: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 1.0
    selector: Literal["none", "gradients", "local_steps", "moments"] = "none"
    selector_network: Literal["light", "vgg11"] = "light"
    selector_labels: Literal["site", "best_model"] = "site"
    selector_learning_rate: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 1e-3
    selector_steps: Annotated[int, Field(strict=True, ge=1)] = 1
    threshold: Literal["tuned"] | Annotated[float, Field(strict=True, ge=0, le=1)] = "tuned"
    answer: Literal["choice", "ensemble"] = "choice"
    extra_rounds: Annotated[int, Field(strict=True, ge=0)] = 0

    @property
    def has_selector(self) -> bool:
        """Whether a global model, a personalised one and a selector train side by side."""
        return self.selector != "none"

    @property
    def learns_best_model(self) -> bool:
        """Whether the selector learns in extra rounds which model is the best for an image (FedSM-extra)."""
        return self.has_selector and self.selector_labels == "best_model"

    @property
    def learns_site(self) -> bool:
        """Whether the selector learns in every training round which site an image is from (Eq. 2)."""
        return self.has_selector and not self.learns_best_model

    @property
    def is_adafed(self) -> bool:
        """Whether sites listen to one another by the similarity of their statistics."""
        return self.mixing == "adafed"

    @property
    def needs_pretrained(self) -> bool:
        """Whether a pretrained model must be given."""
        return self.start_from_pretrained or (self.is_adafed and self.statistics == "pretrained")

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
    is_pretrained = recipe.is_adafed and recipe.statistics == "pretrained"
    is_running = recipe.is_adafed and recipe.statistics == "running"
    acts = {
        "self_weight": (recipe.mixing != "shared", "mixing: softpull or adafed"),
        "statistics": (recipe.is_adafed, "mixing: adafed"),
        "statistics_layers": (is_pretrained, "mixing: adafed and statistics: pretrained"),
        "statistics_rounds": (is_running, "mixing: adafed and statistics: running"),
        "refresh_every": (is_running, "mixing: adafed and statistics: running"),
        "selector_network": (recipe.has_selector, "a selector"),
        "selector_labels": (recipe.has_selector, "a selector"),
        "selector_learning_rate": (recipe.has_selector, "a selector"),
        "selector_steps": (recipe.selector == "gradients", "selector: gradients"),
        "threshold": (recipe.learns_site, "a selector that learns the site"),
        "answer": (recipe.has_selector, "a selector"),
        "perturbation": (recipe.step == "perturbed", "step: perturbed"),
        "proximal": (recipe.step == "proximal", "step: proximal"),
        "amplitude_momentum": (recipe.has_amplitude, "amplitude_band: full or a radius"),
    }
    for name in changes:
        is_used, partner = acts.get(name, (True, ""))
        if not is_used:
            raise ConfigError(f"algorithm.{name} must go with {partner}; without it, it does nothing: leave it out")
    for is_wrong, sentence in _contradictions(recipe):
        if is_wrong:
            raise ConfigError(f"algorithm.{sentence}")


def _contradictions(recipe: Recipe) -> list[tuple[bool, str]]:
    """Return answers that do not go together: whether the recipe has them, and what to do."""
    extra = recipe.extra_rounds > 0
    return [
        (
            recipe.has_selector and recipe.mixing != "softpull",
            "selector must go with mixing: softpull: it chooses among personalised models",
        ),
        (
            recipe.has_selector and recipe.stays_home != "nothing",
            f"stays_home must be nothing where a selector hands out the sites' models, not {recipe.stays_home!r}; "
            "choose a normalisation without BatchNorm to keep what differs apart",
        ),
        (
            recipe.learns_site and extra,
            "extra_rounds must go with selector_labels: best_model; leave it out",
        ),
        (
            recipe.learns_best_model and not extra,
            "extra_rounds must be at least 1 where the selector learns the best model, not 0",
        ),
        (
            recipe.needs_pretrained and recipe.has_amplitude,
            "amplitude_band must be none with a pretrained model, which has seen images without amplitude "
            "normalisation; choose statistics: running and start_from_pretrained: false",
        ),
        (
            recipe.needs_pretrained and recipe.stays_home == "everything",
            "start_from_pretrained must be false where every site trains alone",
        ),
        (
            recipe.is_adafed and recipe.statistics == "running" and recipe.stays_home != "batchnorm",
            f"stays_home must be batchnorm with running statistics, which are the site's own then, not "
            f"{recipe.stays_home!r}; or choose statistics: pretrained",
        ),
        (
            recipe.has_selector and recipe.start_from_pretrained,
            "start_from_pretrained must be false where a global and a personalised model train side by side",
        ),
    ]


def _require_known(thing: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ConfigError(f"{thing} must be one of {', '.join(known)}, not {name!r}{nearest(name, known)}")


def _module(name: str) -> object:
    return importlib.import_module(f"{algorithms.__name__}.{name}")
