"""FedPer: FedAvg in which the last layer, which decides, stays at home.

Arivazhagan et al., Federated Learning with Personalization Layers, arXiv:1912.00818.
"""

from silofl.core.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(stays_home="head"))
