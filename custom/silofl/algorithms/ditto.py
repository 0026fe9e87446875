"""Ditto: a personal model that is pulled towards the shared one.

    server  sends the shared model x
    site i  from x_i = x and its own v_i, which begins as x, for each batch:
                x_i = x_i - eta g(x_i)
                v_i = v_i - eta (g(v_i) + lambda (v_i - x))
            sends x_i - x; keeps v_i, which it validates, tests and uses
    server  takes the mean of the x_i, as in FedAvg

Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv:2012.04221,
Algorithm 1.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from silofl.base.settings import NotNegative
from silofl.core.algorithm_option import AlgorithmOption, SecondModel, Traits
from silofl.core.model_pair import ModelPair, find_personal_conflict
from silofl.core.recipe import Recipe
from silofl.core.steps import plain_step, pulled_step


class Pull(AlgorithmOption):
    """A shared model, and a personal one that is pulled towards it.

    Attributes:
        strength: The paper's lambda, weight of half the squared distance to the received model; 0 is local training.
    """

    section: ClassVar[str] = "ditto"
    implementation: ClassVar[str] = "silofl.parts.personal"
    traits: ClassVar[Traits] = Traits(second_model=SecondModel.STAYS)
    strength: NotNegative = 1.0

    def conflict(self, recipe: Recipe) -> str | None:
        """A personal model goes with one plain model of all sites."""
        return find_personal_conflict(recipe)

    def begin(self, shared: nn.Module, personal: nn.Module, kept: Mapping[str, float]) -> ModelPair:
        """Return how v learns: ``v = v - eta (g(v) + lambda (v - x))``, x as it was received (Algorithm 1)."""
        # Copied now: training changes the shared model in place.
        received = {name: parameter.detach().clone() for name, parameter in shared.named_parameters()}
        return ModelPair(pulled_step(plain_step, received, self.strength))

    def sentence(self) -> str:
        """Describe the answer for the report."""
        return f"Each site's own is pulled towards the received one (Ditto), lambda = {self.strength:g}."


# The paper and the authors' code average sites uniformly, with lambda = 1 where it is not tuned on validation data.
PRESETS = {
    "paper": Recipe(parts=(Pull(),), weights="uniform"),
    "reference": Recipe(parts=(Pull(),), weights="uniform"),
    "recommended": Recipe(parts=(Pull(),)),
}
