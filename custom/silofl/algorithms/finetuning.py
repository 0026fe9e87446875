"""Fine-tuning: FedAvg, and then some rounds in which every site goes on alone from the shared model."""

from silofl.algorithms.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(extra_rounds=20))
