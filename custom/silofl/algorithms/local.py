"""Local training: every site trains alone and sends nothing but its metrics; the baseline without a federation."""

from silofl.core.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(stays_home="everything"))
