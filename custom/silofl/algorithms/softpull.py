"""SoftPull alone: every site has its own model, pulled towards the others'; FedSM without selector and global model.

Xu et al., Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation, CVPR 2022,
arXiv:2203.10144, Eq. 11.
"""

from silofl.algorithms.fedsm import SoftPull
from silofl.core.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(mixing=SoftPull()))
