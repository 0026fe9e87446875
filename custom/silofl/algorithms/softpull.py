"""SoftPull alone: every site has its own model, pulled towards the others'; FedSM without selector and global model.

    server  sends each site its own model x_i, which the server keeps
    site i  trains y_i from x_i
            sends y_i - x_i and nothing beside it
    server  x_i = lambda y_i + (1 - lambda) / (K - 1) * sum of the other sites' y_j (Eq. 11)
            an absent site keeps its model, and the others do not listen to it in this round

Xu et al., Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation, CVPR 2022,
arXiv:2203.10144.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from silofl.base.settings import Share
from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.parts.part import BEFORE, Part, Run
from silofl.parts.task import Exchange
from silofl.parts.work import SitePart
from silofl.study import Study

ROLE = "softpull"


class SoftPull(AlgorithmOption):
    """Each site has its own model, pulled towards the others'.

    Attributes:
        self_weight: The paper's lambda, the weight of a site's own model.
    """

    section: ClassVar[str] = ROLE
    implementation: ClassVar[str] = __name__
    traits: ClassVar[Traits] = Traits(is_of_steps=True)
    self_weight: Share = 0.7

    def sentence(self) -> str:
        """Describe the answer for the report."""
        return (
            f"SoftPull (FedSM): each site's own model keeps lambda = {self.self_weight:g} of itself and takes the "
            "rest in equal parts from the others."
        )


def softpull_weights(num_sites: int, self_weight: float) -> NDArray[np.float64]:
    """Return SoftPull's matrix (Eq. 11): lambda of a site's own model, the rest split evenly over the others.

    Args:
        num_sites: Sites K that answered this round, at least 1; one site alone keeps its model, whatever lambda.
        self_weight: The paper's lambda, in [0, 1]: 1/K is the uniform mean, 1 is local training.

    Returns:
        Weights of shape (K, K); rows sum to 1.
    """
    if num_sites == 1:
        return np.ones((1, 1))
    # Each row sums to lambda + (K - 1) (1 - lambda) / (K - 1) = 1.
    peer_weight = (1 - self_weight) / (num_sites - 1)
    # At lambda = 1/K rounding must not tell a site's own model from the others'.
    is_uniform = np.isclose(peer_weight, self_weight, 1e-12, 0)
    weights = np.full((num_sites, num_sites), self_weight if is_uniform else peer_weight)
    np.fill_diagonal(weights, self_weight)
    return weights


@dataclass(frozen=True)
class SoftPullPart(Part):
    """Who listens to whom, which follows from the numbers of sites.

    Attributes:
        study: Its recipe holds the paper's lambda.
    """

    study: Study
    role: str = ROLE

    def weights(self, role: str, number: int, sites: Sequence[str], run: Run) -> NDArray[np.float64] | None:
        """Return `softpull_weights` of the sites that answered, in the site's own models."""
        if role != self.study.recipe.roles[-1]:
            return None
        # A lambda that suits all K sites may lie below 1/K' of K' < K answers, and a site would listen to each other
        # one more than to itself; 1/K', the uniform mean, is as far as SoftPull goes then.
        self_weight = self.study.recipe.option(ROLE).self_weight
        if len(sites) < len(run.sites):
            self_weight = max(self_weight, 1 / len(sites))
        return softpull_weights(len(sites), self_weight)

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Say before a round where a site listens to each other one more than to itself."""
        num_sites = len(run.sites)
        self_weight = self.study.recipe.option(ROLE).self_weight
        if exchange.task != BEFORE or num_sites < 2 or self_weight >= 1 / num_sites:
            return ()
        return (
            f"algorithm.softpull.self_weight {self_weight:g} is below 1/{num_sites} of {num_sites} sites, the "
            "uniform mean: each site listens to every other one more than to itself",
        )


PART, SITE = SoftPullPart, SitePart
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(mixing=SoftPull()))
