"""The fingerprint of a site's training cases, from which nnU-Net plans a network, and that of all sites together.

Isensee et al., nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation, Nature Methods
18, 2021, plan from the spacing, shape and intensities of every case. Skorupko et al., Federated nnU-Net for
Privacy-Preserving Medical Image Segmentation, arXiv:2503.02549, plan from those of all sites. Here a site says
quartiles and means only: a least or a largest value, and a list of cases, would each show single patients.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.errors import ConfigError

# Of a case's foreground: 0.5, 50 and 99.5 percentile, mean, standard deviation.
NUM_INTENSITIES = 5
# What a scanner and a file can have.
SPACING_MM, SIDE = (0.001, 1000.0), (1, 65536)
QUARTILES = (0.25, 0.5, 0.75)
# Digits of what leaves, and of what is planned from it: more could tell a scanner.
DIGITS = 3
# Probabilities at which a site's distribution is laid out: 0, 0.01, ..., 1.
STEPS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class DataFingerprint:
    """A site's account of its training cases.

    Attributes:
        cases: Training cases.
        spacing_mm: Quartiles by axis, shape (3, 3): first quartile, median and third quartile of X, Y and Z; 1 where an
            axis has no length in mm.
        shape: Quartiles of the numbers of voxels, likewise; Z of a picture is 1.
        intensity: By channel, the mean over the cases of `NUM_INTENSITIES` numbers of the foreground, shape (C, 5); 0
            where the site lacks the channel.
        channels: 1 for each channel that the site has, 0 for the others, shape (C,).
        classes: Share of the voxels, or of the cases, that is of each class; of a segmentation the background's first.

    Raises:
        ConfigError: A number is none that images can have.
    """

    cases: int
    spacing_mm: NDArray[np.float64]
    shape: NDArray[np.float64]
    intensity: NDArray[np.float64]
    channels: NDArray[np.float64]
    classes: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Refuse what no images have."""
        for name, (low, high) in {"spacing_mm": SPACING_MM, "shape": SIDE}.items():
            values = getattr(self, name)
            if values.min() < low or values.max() > high or (np.diff(values, axis=0) < 0).any():
                raise ConfigError(f"the quartiles of {name} must rise within {low:g} to {high:g}, not otherwise")
        if (self.intensity[:, 4] < 0).any() or not np.isin(self.channels, (0, 1)).all():
            raise ConfigError("a fingerprint must have deviations of at least 0, and 0 or 1 for a channel")
        # Shares are rounded.
        if self.classes.min() < 0 or self.classes.sum() > 1 + 0.01 * len(self.classes):
            raise ConfigError("the shares of the classes must be at least 0, and 1 together")


@dataclass(frozen=True)
class PooledFingerprint:
    """The training cases of all sites.

    Attributes:
        cases: Their number.
        spacing_mm: Median by axis, shape (3,).
        low_spacing_mm: 10th percentile by axis.
        shape: Median numbers of voxels by axis.
        intensity: By channel as in `DataFingerprint`.
    """

    cases: int
    spacing_mm: NDArray[np.float64]
    low_spacing_mm: NDArray[np.float64]
    shape: NDArray[np.float64]
    intensity: NDArray[np.float64]


def pool_fingerprints(fingerprints: Sequence[DataFingerprint]) -> PooledFingerprint:
    """Return the fingerprint of all sites' cases; a site counts by its number of cases.

    Means are weighted means. A channel's deviation is that within the sites and between their means. Quantiles are
    those of the mixture of the sites' distributions, as `pooled_quantile` says.

    Args:
        fingerprints: At least one, all with the same channels and classes.
    """
    cases = np.array([one.cases for one in fingerprints], dtype=np.float64)
    spacing, shape = (np.stack([getattr(one, key) for one in fingerprints]) for key in ("spacing_mm", "shape"))
    there = np.stack([one.channels for one in fingerprints])
    return PooledFingerprint(
        cases=int(cases.sum()),
        spacing_mm=pooled_quantile(spacing, cases, 0.5),
        low_spacing_mm=pooled_quantile(spacing, cases, 0.1),
        shape=pooled_quantile(shape, cases, 0.5),
        intensity=_pool_intensity(np.stack([one.intensity for one in fingerprints]), there * cases[:, None]),
    )


def pooled_quantile(quartiles: NDArray[np.float64], cases: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Return a quantile by axis of the mixture of distributions of which the quartiles are known.

    A site's quantile function is taken as linear between its quartiles. Of the tails nothing is known: each ends where
    the ratio to its quartile is that of the quartile to the median. At 101 even steps it gives values of equal weight.

    Args:
        quartiles: Above 0, of each site, shape (K, 3, axes).
        cases: Of each site, shape (K,).
        share: From 0 to 1.
    """
    low, middle, high = quartiles[:, 0], quartiles[:, 1], quartiles[:, 2]
    knots = np.stack([low**2 / middle, low, middle, high, high**2 / middle], axis=1)
    weights = np.repeat(cases, len(STEPS))
    values = [
        np.concatenate([np.interp(STEPS, (0, *QUARTILES, 1), site) for site in knots[:, :, axis]])
        for axis in range(knots.shape[2])
    ]
    return np.array([np.quantile(one, share, weights=weights, method="inverted_cdf") for one in values])


def _pool_intensity(intensity: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (C, 5) from the sites' (K, C, 5) and what each counts, (K, C); 0 for a channel of no site."""
    total = np.maximum(weights.sum(axis=0), 1)

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return (values * weights).sum(axis=0) / total

    means = np.stack([mean(intensity[:, :, i]) for i in range(NUM_INTENSITIES)], axis=1)
    means[:, 4] = np.sqrt(mean(intensity[:, :, 4] ** 2 + (intensity[:, :, 3] - means[:, 3]) ** 2))
    return means
