"""FedBN: FedAvg in which BatchNorm parameters and statistics stay at home.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021, arXiv:2102.07623.
"""

from silofl.core.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(stays_home="batchnorm"))
