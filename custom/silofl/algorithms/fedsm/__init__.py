"""FedSM: personalised models by SoftPull, a selector, and the rule by which a super model picks one for a new patient.

Xu et al., Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation, CVPR 2022,
arXiv:2203.10144.

- Every site trains two models on the same batches: the *global* one, averaged as in FedAvg, and its *personalised*
  one, of which the server keeps lambda and takes the rest from the others' (SoftPull, Eq. 11).
- Beside them the *selector* learns from which site an image comes; its moments live at the server, which takes its
  steps with Adam (`selector`).
- In the end every site gets all models. A new case is answered by the personalised model of the most probable site,
  or by the global one where no probability is above gamma, which the sites' validation data tune (Algorithm 2,
  `assembly`).

Settings and formulas stand in `paper`.
"""

from silofl.algorithms.fedsm.paper import AdamState, Selector, SuperModel, adam_step, site_loss, tune_threshold
from silofl.algorithms.softpull import SoftPull, softpull_weights
from silofl.core.recipe import Recipe
from silofl.inference.choice import choose_model

__all__ = [
    "PRESETS",
    "AdamState",
    "Selector",
    "SoftPull",
    "SuperModel",
    "adam_step",
    "choose_model",
    "site_loss",
    "softpull_weights",
    "tune_threshold",
]

PRESETS = {
    # Algorithm 1: the selector learns by local steps and is averaged.
    "paper": Recipe(mixing=SoftPull(), parts=(Selector(learning="local_steps", network="vgg11"), SuperModel())),
    # The authors' released code: one full-batch Adam step a round at each site, its moments averaged as well.
    "reference": Recipe(mixing=SoftPull(), parts=(Selector(learning="moments", network="vgg11"), SuperModel())),
    "recommended": Recipe(mixing=SoftPull(), parts=(Selector(), SuperModel())),
}
