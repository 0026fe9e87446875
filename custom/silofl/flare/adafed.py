"""AdaFed in NVFlare: executor and controller of jobs whose algorithm is ``adafed``.

Source: Chen et al., Personalized Federated Learning with Adaptive Batchnorm for Healthcare, arXiv:2112.00734.
"""

from silofl.flare.controller import RoundsController
from silofl.flare.executor import SiteExecutor


class AdaFedExecutor(SiteExecutor):
    """A site: sends the statistics of its BatchNorm layers' inputs, and trains with BatchNorm that stays at home.

    `silofl.algorithms.adafed.collect_statistics` computes the statistics.
    """

    algorithm = "adafed"


class AdaFedController(RoundsController):
    """The server: weighs the sites' models for each site by the similarity of their statistics.

    `silofl.algorithms.adafed` has the distances (Eq. 6) and the weights (Eq. 8).
    """

    algorithm = "adafed"
