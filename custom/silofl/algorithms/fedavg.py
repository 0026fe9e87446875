"""FedAvg: every site gets the same mean, weighted by the sites' numbers of training examples.

    server  sends the model x to every site
    site i  trains: from y_i = x, for each batch of its local epochs: y_i = y_i - eta g(y_i), or the optimiser's step
            sends y_i - x, its number of examples n_i and its metrics
            keeps its images, and the optimiser's state for its next round
    server  x = x + eta_s * sum_i p_i (y_i - x), over the sites that answered
            p_i = n_i / sum_j n_j, or 1 / K with uniform weights; eta_s is `server_lr`, usually 1

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
arXiv:1602.05629; the server's learning rate follows Reddi et al., Adaptive Federated Optimization, ICLR 2021,
arXiv:2003.00295. Every algorithm that says nothing else about the mean takes this one.
"""

from silofl.core.mixing import example_weights, server_step, uniform_weights
from silofl.core.recipe import PRESET_NAMES, Recipe

__all__ = ["PRESETS", "example_weights", "server_step", "uniform_weights"]

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe())
