"""Measure in what the sites' training data differ, before any round.

A distance between two sites says little by itself: two groups of patients of one site differ too. Each site's patients
are therefore cut into two halves, again and again, and sites are compared by the ratio of the distance between halves
of two sites to the distance between the two halves of one. Sites that differ in nothing have a ratio of about 1,
whatever the unit, the network and the number of patients. All that is needed of a site is one portrait and the
distances between its halves, so that sites in a network can be compared like those of a simulation.

Two questions are answered from the ratios. Which algorithm suits the answer is not: only a comparison on validation
data tells that.

A site measures its `sketch`; `exchange` is what travels, `comparison` what follows from it.
"""

from silofl.algorithms.advice.comparison import Comparison, site_ratios
from silofl.core.recipe import PRESET_NAMES, Recipe

__all__ = ["PRESETS", "Comparison", "site_ratios"]

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(Comparison(),)))
