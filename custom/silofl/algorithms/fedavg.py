"""FedAvg: every site gets the same mean, weighted by the sites' numbers of training examples.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
arXiv:1602.05629; the server's learning rate follows Reddi et al., Adaptive Federated Optimization, ICLR 2021,
arXiv:2003.00295. Its formulas are those of every algorithm that changes nothing about the mean.
"""

from silofl.core.mixing import example_weights, server_step, uniform_weights
from silofl.core.recipe import PRESET_NAMES, Recipe

__all__ = ["PRESETS", "example_weights", "server_step", "uniform_weights"]

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe())
