"""HarmoFL in NVFlare: executor and controller of jobs whose algorithm is ``harmofl``.

Source: Jiang, Wang, Dou, HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical
Images, AAAI 2022, arXiv:2112.10775.
"""

from silofl.flare.controller import RoundsController
from silofl.flare.executor import SiteExecutor


class HarmoFLExecutor(SiteExecutor):
    """A site: normalises the images' amplitudes and takes perturbed steps, `silofl.algorithms.harmofl`.

    `AmplitudeNorm` is the normalisation (Eqs. 2 to 4), `perturbed_step` the weight perturbation (Eqs. 6 and 7).
    """

    algorithm = "harmofl"


class HarmoFLController(RoundsController):
    """The server: takes the mean of the sites' amplitudes once, `mean_amplitude`, and of their models every round."""

    algorithm = "harmofl"
