"""FedBN: FedAvg in which BatchNorm parameters and statistics stay at home.

    server  sends the model without its BatchNorm layers
    site i  puts its own BatchNorm layers into it, from the seed in its first round, and trains all
            sends the change of the other layers; keeps scale, shift, running mean and variance of BatchNorm
    server  takes the weighted mean of the other layers, as in FedAvg

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021, arXiv:2102.07623.
"""

from silofl.core.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(stays="batchnorm"))
