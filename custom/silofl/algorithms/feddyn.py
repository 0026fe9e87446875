"""FedDyn: a pull that each site's own history changes, until the minimum of every site is that of all of them.

    server  sends the model x
    site i  from y_i = x, for each batch: y_i = y_i - eta (g(y_i) - h_i + alpha (y_i - x))
            h_i = h_i - alpha (y_i - x), the gradient of its own loss where its training ended; at first 0
            sends y_i - x; keeps h_i
    server  mixed = mean of the y_i of the P sites that answered, of K in the run
            h = h - alpha (P / K) (mixed - x), the mean of all h_i; at first 0
            x = mixed - h / alpha; keeps h

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, arXiv:2111.04263, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silofl.base.settings import Positive
from silofl.core.algorithm_option import AlgorithmOption
from silofl.core.mixing import Arrays
from silofl.core.recipe import PRESET_NAMES, Recipe, find_other_models
from silofl.core.steps import Step, corrected_step, pulled_step
from silofl.models.names import traveling_names
from silofl.parts.part import ClientState, Part
from silofl.parts.task import Message, SiteResults
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.loop import TrainingResult

ROLE = "dynamic"


class Dynamic(AlgorithmOption):
    """A pull to the received model that a site's own gradient corrects.

    Attributes:
        alpha: Weight of half the squared distance to the received model; the paper has 0.001 to 0.1.
    """

    section: ClassVar[str] = "feddyn"
    implementation: ClassVar[str] = __name__
    alpha: Positive = 0.1

    def conflict(self, recipe: Recipe) -> str | None:
        """Sites are pulled to the one model of all, from which the server takes its own h."""
        if recipe.weights != "uniform":
            return f"weights must be uniform where the server keeps the mean of all h_i, not {recipe.weights!r}"
        return find_other_models(self, recipe)

    def sentence(self) -> str:
        """Return what a report says of it."""
        return (
            f"Nothing: each site keeps its gradient and is pulled to the received model, alpha = {self.alpha:g}; the "
            "server keeps the gradients' mean (FedDyn)."
        )


def dynamic_step(step: Step, received: Mapping[str, Tensor], gradient: Mapping[str, Tensor], alpha: float) -> Step:
    """Return a step down ``loss - <h_i, theta> + alpha / 2 ||theta - theta^t||^2``, by its gradient.

    Args:
        step: The step that computes the gradient of the loss and calls the optimiser once.
        received: theta^t, {parameter name: tensor}.
        gradient: The site's h_i, the same names.
        alpha: The paper's alpha.
    """
    return pulled_step(corrected_step(step, {name: -h for name, h in gradient.items()}), received, alpha)


def new_gradient(
    gradient: Mapping[str, Tensor], trained: Mapping[str, Tensor], received: Mapping[str, Tensor], alpha: float
) -> dict[str, Tensor]:
    """Return the site's next h_i: ``h_i - alpha (theta_i - theta^t)``."""
    return {name: h - alpha * (trained[name] - received[name]) for name, h in gradient.items()}


def server_update(
    previous: Mapping[str, NDArray[Any]],
    mixed: Mapping[str, NDArray[Any]],
    mean: Mapping[str, NDArray[Any]],
    alpha: float,
    share: float,
) -> tuple[Arrays, Arrays]:
    """Return the server's next model and h: ``h = h - alpha share (mixed - previous)``, ``theta = mixed - h / alpha``.

    Args:
        previous: theta^t, {name: array}.
        mixed: The mean of the models of the sites that answered, the same names.
        mean: h before the round; empty before the first.
        alpha: The paper's alpha.
        share: Of all sites, those that answered: |P| / m.
    """
    new = {}
    gathered = {}
    for name, before in previous.items():
        # In float64: small changes are added to h for as long as the run lasts.
        change = np.asarray(mixed[name], np.float64) - np.asarray(before, np.float64)
        gathered[name] = mean.get(name, 0.0) - alpha * share * change
        new[name] = (mixed[name] - gathered[name] / alpha).astype(np.asarray(before).dtype)
    return new, gathered


@dataclass(frozen=True)
class DynamicPart(Part):
    """The server's h.

    Attributes:
        study: Its recipe holds alpha.
        sites: All sites of the run.
        mean: h, {parameter name: array}, float64; empty before the first round.
    """

    study: Study
    sites: tuple[str, ...]
    mean: Arrays = field(default_factory=dict)
    role: str = ROLE
    saved = ("mean",)

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return h = 0."""
        return [cls(study, tuple(sites))]

    def server_step(
        self, role: str, previous: Arrays, mixed: Arrays, site_results: SiteResults, number: int, learning_rate: float
    ) -> tuple[Arrays, DynamicPart]:
        """Take the server's step."""
        alpha = self.study.recipe.option("feddyn").alpha
        # The mean is over all sites of the run: the h_i of an absent site has not changed.
        share = len(site_results.accepted) / len(self.sites)
        new, mean = server_update(previous, mixed, self.mean, alpha, share)
        return new, replace(self, mean=mean)

    def joined(self, site: str) -> DynamicPart:
        """Count one more site, whose h_i is 0: the mean of all of them becomes smaller."""
        share = len(self.sites) / (len(self.sites) + 1)
        mean = {name: share * array for name, array in self.mean.items()}
        return replace(self, sites=tuple(sorted([*self.sites, site])), mean=mean)


class SiteDynamic(SitePart):
    """The site's h_i."""

    name = ROLE

    @classmethod
    def list_client_state(cls, study: Study, number: int) -> Sequence[ClientState]:
        """Return what `kept` holds, the same after every round."""
        return (ClientState("its gradient h_i", is_for_training=True, num_models=1),)

    def step(self, role: str, step: Step) -> Step:
        """Pull every step; h_i is 0 in the site's first round."""
        work = self.work
        travels = set(traveling_names(work.models[role], work.study.recipe))
        self._alpha = work.study.recipe.option("feddyn").alpha
        self._parameters = {name: p for name, p in work.models[role].named_parameters() if name in travels}
        # Copied now: training changes the parameters in place.
        self._received = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        if kept := work.kept.get(self.name):
            self._gradient = {name: h.to(work.device) for name, h in kept["own"].items()}
        else:
            self._gradient = {name: torch.zeros_like(parameter) for name, parameter in self._received.items()}
        return dynamic_step(step, self._received, self._gradient, self._alpha)

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Take the next h_i; nothing leaves."""
        trained = {name: parameter.detach() for name, parameter in self._parameters.items()}
        self._gradient = new_gradient(self._gradient, trained, self._received, self._alpha)
        return Message()

    def kept(self) -> dict[str, Any]:
        """Return h_i."""
        return {"own": {name: h.cpu() for name, h in self._gradient.items()}}


PART, SITE = DynamicPart, SiteDynamic
# The paper averages sites uniformly; its released code has no other choice of constants.
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(Dynamic(),), weights="uniform"))
