"""FedSM: personalised models by SoftPull, a selector, and the rule by which a super model picks one for a new patient.

    each round
    server  sends the global model x, the site's personalised model x_i and the selector s; keeps all of them
    site i  trains y from x and y_i from x_i on the same batches; q_i = the mean gradient, over these batches, of the
            selector's cross entropy with the site's own index (Eq. 2)
            sends y - x, y_i - x_i and q_i; its images and optimisers stay
    server  x = the weighted mean of the y, as in FedAvg
            x_i = lambda y_i + (1 - lambda) / (K - 1) * sum of the other sites' y_j (SoftPull, Eq. 11)
            s = s by one step of Adam with the mean of the q_i; Adam's moments stay here
            (learning `local_steps` or `moments`: Adam steps at the sites, and the server averages the differences)

    in the end
    server  sends all models and the selector to every site
    site i  sends the score of its validation cases under each candidate of gamma
    server  takes the gamma that scores best: a new case is answered by the personalised model of the most probable
            site, or by the global one where no probability is above gamma (Algorithm 2)

Xu et al., Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation, CVPR 2022,
arXiv:2203.10144.

Settings and formulas stand in `paper`, the rounds in `selector`, the end in `assembly`.
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
