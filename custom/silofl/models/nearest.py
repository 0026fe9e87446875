"""A selector without training: which site's images an image is most like, by a few numbers of each image.

Fisher's linear discriminant (The Use of Multiple Measurements in Taxonomic Problems, Annals of Eugenics 7, 1936), with
equal priors. Sites need to tell no more of their images than numbers, means and covariances, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from silofl.base.errors import ConfigError

# Edges of rings of frequencies in cycles a pixel; a ring has its upper edge and not its lower one.
RINGS = (0.0, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 1.0)
# Mean, standard deviation, and a number for each ring.
NUM_FEATURES = 2 + len(RINGS) - 1
# Share of the covariance that is taken as uncorrelated, so that it can be inverted of few images.
SHRINKAGE = 0.05
# Share of the variance between sites that counts as variance within them, for what does not vary within them at all.
FLOOR = 1e-4
# Of a site, and of a feature's mean and deviation: larger weights are in no super model.
MOST_IMAGES, MOST = 10**7, 1e6


class NearestSite(nn.Module):
    """The discriminant as one linear layer on standardised features.

    Args:
        in_channels: Channels of an image.
        num_sites: Sites to choose from.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, in_channels: int, num_sites: int) -> None:
        super().__init__()
        size = in_channels * NUM_FEATURES
        self.register_buffer("center", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(size, dtype=torch.float64))
        self.head = nn.Linear(size, num_sites, dtype=torch.float64)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, sites) of images (B, C, H, W); their softmax is the probability of each site."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """Return the standardised features, (B, C * NUM_FEATURES)."""
        return (measure_features(images) - self.center) / self.scale


@dataclass(frozen=True)
class FeatureMoments:
    """What a site tells of its images' features.

    Attributes:
        count: Images, at least 1.
        mean: Of their features, float64 (F,).
        scatter: Sum over images of the outer product of what deviates from the mean, float64 (F, F).

    Raises:
        ConfigError: No images have such features.
    """

    count: float
    mean: Tensor
    scatter: Tensor

    def __post_init__(self) -> None:
        """Refuse what would spoil the selector among all sites."""
        largest, variance = self.mean.abs().max(), self.scatter.diagonal() / max(self.count, 1)
        if not (self.count <= MOST_IMAGES and largest <= MOST and variance.max() <= MOST**2):
            raise ConfigError(
                f"features must be of at most {MOST_IMAGES} images, with means and deviations of at most {MOST:g}"
            )
        # Of a sum of squares, but for rounding.
        least = torch.linalg.eigvalsh(self.scatter).min()
        if not torch.allclose(self.scatter, self.scatter.T) or least < -1e-9 * self.scatter.trace().abs():
            raise ConfigError("the scatter of features must be a sum of outer products; it is none")

    @classmethod
    def of(cls, features: Tensor) -> FeatureMoments:
        """Return the moments of features (N, F)."""
        deviations = features - features.mean(dim=0)
        return cls(float(len(features)), features.mean(dim=0), deviations.T @ deviations)


def measure_features(images: Tensor) -> Tensor:
    """Return each channel's mean, standard deviation and, ring by ring, log of the mean amplitude.

    Args:
        images: (B, C, H, W), each axis at least 16 pixels, so that no ring is empty.

    Returns:
        float64 (B, C * NUM_FEATURES).
    """
    images = images.double()
    height, width = images.shape[2:]
    amplitude = torch.fft.rfft2(images, norm="ortho").abs()
    y = torch.fft.fftfreq(height, dtype=torch.float64, device=images.device)[:, None]
    x = torch.fft.rfftfreq(width, dtype=torch.float64, device=images.device)
    radius = (y.square() + x.square()).sqrt()
    rings = torch.stack(
        [((radius > low) & (radius <= high)).double() for low, high in zip(RINGS[:-1], RINGS[1:], strict=True)]
    ).flatten(1)
    # A blank image has no amplitude, and a logarithm must stay finite.
    means = (amplitude.flatten(2) @ (rings.T / rings.sum(dim=1)) + 1e-6).log()
    return torch.cat([images.mean(dim=(2, 3)), images.std(dim=(2, 3)), means.flatten(1)], dim=1)


def discriminant(moments: Sequence[FeatureMoments]) -> dict[str, Tensor]:
    """Return the state dict of `NearestSite` for the sites of these moments, in their order.

    The covariance within sites is common to all: of all images, each about its own site's mean.
    """
    means = torch.stack([one.mean for one in moments])
    center, freedom = means.mean(dim=0), sum(one.count for one in moments) - len(moments)
    within = sum((one.scatter for one in moments), torch.zeros(())) / max(freedom, 1.0)
    scale = (within.diagonal() + FLOOR * (means - center).square().mean(dim=0)).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    correlation = within / scale / scale[:, None]
    shrunk = (1 - SHRINKAGE) * correlation + SHRINKAGE * torch.eye(len(center), dtype=torch.float64)
    standardised = (means - center) / scale
    weight = torch.linalg.solve(shrunk, standardised.T).T
    # log of a Gaussian's density at x, without what all sites share: w x - w m / 2.
    return {"center": center, "scale": scale, "head.weight": weight, "head.bias": -(weight * standardised).sum(1) / 2}
