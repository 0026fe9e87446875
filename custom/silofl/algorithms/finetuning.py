"""Fine-tuning: FedAvg, and then some rounds in which every site goes on alone from the shared model.

    joint rounds, server and sites  as in FedAvg
    extra rounds, site i            trains its own model further, which began as the shared one; sends the change
    extra rounds, server            adds each site's change to this site's model alone, and mixes nothing

Beside FedSM's selector (Xu et al., CVPR 2022, arXiv:2203.10144, Table 6) it does so with a copy, its personal model;
the shared one is FedSM's global model and goes on as FedAvg's in these rounds too.
"""

from silofl.core.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(extra_rounds=20))
