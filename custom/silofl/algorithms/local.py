"""Local training: every site trains alone.

    server  sends no model; the first one is drawn from the study's seed
    site i  goes on training its own model, and keeps it
            sends its metrics only

The baseline without a federation.
"""

from silofl.core.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(stays="everything"))
