"""HarmoFL: amplitude normalisation of the images and weight perturbation of the step.

Jiang et al., HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images,
AAAI 2022, arXiv:2112.10775.

- *Local drift*, because hospitals' images look different: every image keeps its Fourier phase and gets the mean
  amplitude of all hospitals' images (Eqs. 2-4). Each site learns its mean in the first round and sends it once
  (`amplitude`, `normalization`).
- *Global drift*, because each site runs into a minimum of its own: the gradient is taken where the loss is higher, a
  step alpha uphill, so that sites find flat minima that lie near each other (Eqs. 6-7, `perturbation`).
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
    "recommended": Recipe(input=Amplitude(band=0, amplitude_factor=5.0), step=Perturbation(), stays_home="batchnorm"),
}
