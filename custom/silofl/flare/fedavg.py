"""FedAvg in NVFlare: executor and controller of jobs whose algorithm is ``fedavg``.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
arXiv:1602.05629.
"""

from silofl.flare.controller import RoundsController
from silofl.flare.executor import SiteExecutor


class FedAvgExecutor(SiteExecutor):
    """A site of Algorithm 1: trains the received model on its own data (ClientUpdate) and returns the difference."""

    algorithm = "fedavg"


class FedAvgController(RoundsController):
    """The server of Algorithm 1: the mean of the sites' models by their examples, `silofl.algorithms.fedavg`."""

    algorithm = "fedavg"
