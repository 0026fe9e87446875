"""AdaFed: sites listen to each other by the similarity of their BatchNorm statistics.

    once, before round 1 (or after some rounds of FedBN: f-AdaFed)
    server  sends a pretrained model (f-AdaFed: nothing)
    site i  sends mean mu_i and variance r_i, per channel, of the inputs of its BatchNorm layers over the site's images
            (f-AdaFed: the running statistics of the site's own BatchNorm layers)
    server  d_ij = sum over layers of sqrt(||mu_i - mu_j||^2 + ||sqrt(r_i) - sqrt(r_j)||^2) (Eqs. 5-6)
            w_ii = lambda; w_ij = (1 - lambda) (1 / d_ij) / sum_k (1 / d_ik), for j and k other than i (Eqs. 7-8)

    each round
    server  sends each site its own model x_i, which the server keeps
    site i  trains y_i from x_i; sends y_i - x_i without BatchNorm, which stays (Eq. 4)
    server  x_i = sum_j w_ij y_j

Chen et al., Federated Learning with Adaptive Batchnorm for Personalized Healthcare, arXiv:2112.00734 (its journal
version calls the method FedAP).

Settings and formulas stand in `paper`, what travels in `statistics`.
"""

from silofl.algorithms.adafed.paper import (
    Similarity,
    Statistics,
    adafed_weights,
    collect_statistics,
    distances,
    running_statistics,
    statistics_sizes,
    weigh_known_sites,
)
from silofl.core.recipe import Recipe

__all__ = [
    "PRESETS",
    "Similarity",
    "Statistics",
    "adafed_weights",
    "collect_statistics",
    "distances",
    "running_statistics",
    "statistics_sizes",
    "weigh_known_sites",
]

PRESETS = {
    "paper": Recipe(mixing=Similarity(source="pretrained"), stays="batchnorm", start_from_pretrained=True),
    "reference": Recipe(mixing=Similarity(source="pretrained", self_weight=0.3), stays="batchnorm"),
    "recommended": Recipe(mixing=Similarity(), stays="batchnorm"),
}
