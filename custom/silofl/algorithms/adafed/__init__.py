"""AdaFed: sites listen to each other by the similarity of their BatchNorm statistics.

Chen et al., Federated Learning with Adaptive Batchnorm for Personalized Healthcare, arXiv:2112.00734 (its journal
version calls the method FedAP).

- BatchNorm stays at home (Eq. 4 without its layers).
- *Who is like whom*: each site sends mean and variance of the inputs of a pretrained model's layers, once before round
  1; or, after some shared rounds, those of its own BatchNorm layers (f-AdaFed). The distance between two sites is the
  Wasserstein distance of these Gaussians (Eqs. 5-6).
- *Who listens to whom*: a site's own model keeps lambda of itself and takes the rest from the others, from each the
  more, the closer it is (Eqs. 7-8).

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
    "paper": Recipe(mixing=Similarity(source="pretrained"), stays_home="batchnorm", start_from_pretrained=True),
    "reference": Recipe(mixing=Similarity(source="pretrained", self_weight=0.3), stays_home="batchnorm"),
    "recommended": Recipe(mixing=Similarity(), stays_home="batchnorm"),
}
