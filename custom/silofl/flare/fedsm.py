"""FedSM in NVFlare: executor and controller of jobs whose algorithm is ``fedsm``.

Source: Xu et al., Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation, CVPR 2022,
arXiv:2203.10144.
"""

from silofl.flare.controller import RoundsController
from silofl.flare.executor import SiteExecutor


class FedSMExecutor(SiteExecutor):
    """A site of Algorithm 1: trains the global model, its personalised model and the selector on the same batches.

    `silofl.algorithms.fedsm` has the selector's loss (Eq. 2) and the choice for a new case (Algorithm 2).
    """

    algorithm = "fedsm"


class FedSMController(RoundsController):
    """The server of Algorithm 1: the global mean, SoftPull and the selector; at the end it assembles the super model.

    `silofl.algorithms.fedsm.softpull_weights` is SoftPull (Eq. 11), `silofl.algorithms.fedsm.assembly` the assembly.
    """

    algorithm = "fedsm"
