"""HarmoFL: amplitude normalisation of the images and weight perturbation of the step.

    server  sends the model theta; after round 1, once to every site, the mean amplitude A
    site i  gives each image its own Fourier phase and the amplitude A; in round 1, where A is not known yet,
            the running mean A_i = (1 - v) A_i + v * mean of the batch's amplitudes (Eqs. 2-4)
            from theta_i = theta, for each batch: g at theta_i; delta = alpha g / ||g||
                theta_i = theta_i - eta * (gradient at theta_i + delta) (Eqs. 6-7)
            sends theta_i - theta; in round 1 also A_i; its images stay, and BatchNorm where the recipe says so
    server  takes the mean of the theta_i, as in FedAvg; in round 1 A = 1/K * sum_i A_i

Jiang et al., HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images,
AAAI 2022, arXiv:2112.10775.

Two drifts are lowered: the *local* one, because hospitals' images look different (`amplitude`, `normalization`), and
the *global* one, because each site runs into a minimum of its own and not into a flat one near the others'
(`perturbation`).
"""

from silofl.algorithms.harmofl.amplitude import Amplitude, mean_amplitude
from silofl.algorithms.harmofl.normalization import AmplitudeNorm
from silofl.algorithms.harmofl.perturbation import Perturbation, drift, perturbed_step
from silofl.core.recipe import Recipe

__all__ = ["PRESETS", "Amplitude", "AmplitudeNorm", "Perturbation", "drift", "mean_amplitude", "perturbed_step"]

PRESETS = {
    # Eqs. 2-7 and Algorithm 1: the whole amplitude, alpha = 0.05, v = 0.1, p_k = n_k / n.
    "paper": Recipe(input=Amplitude(), step=Perturbation()),
    # The authors' released code: the mean intensity alone, frozen at the first batch, uniform weights.
    "reference": Recipe(input=Amplitude(band=0, momentum=0.0), step=Perturbation(), weights="uniform"),
    "recommended": Recipe(input=Amplitude(band=0, amplitude_factor=5.0), step=Perturbation(), stays="batchnorm"),
}
