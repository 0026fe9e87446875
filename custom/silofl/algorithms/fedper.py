"""FedPer: FedAvg in which the last layer, which decides, stays at home.

    server  sends the model without its last layer, the head
    site i  puts its own head on it, from the seed in its first round, and trains both
            sends the change of the body; keeps the head
    server  takes the weighted mean of the bodies, as in FedAvg

Arivazhagan et al., Federated Learning with Personalization Layers, arXiv:1912.00818.
"""

from silofl.core.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(stays="head"))
