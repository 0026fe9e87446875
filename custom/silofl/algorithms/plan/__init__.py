"""One plan for a study from all sites' data: grid, patch, network, batch and intensities, by the rules of nnU-Net.

Isensee et al., nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation, Nature Methods
18, 2021, Supplementary Note on automated method configuration. The rules (`rules`, `patch`) need the fingerprint of all
training cases; `silofl.data.data_fingerprint` says what sites tell instead, and how it is joined. `exchange` is what
travels.
"""

from silofl.algorithms.plan.rules import SharedPlan
from silofl.core.recipe import PRESET_NAMES, Recipe

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(SharedPlan(),)))
