"""A small CNN over time for windows of body-worn sensors, as AdaFed uses for the activities of PAMAP2.

Chen et al., Personalized Federated Learning with Adaptive Batchnorm for Healthcare, arXiv:2112.00734, which names the
layers; their widths are chosen here.
"""

from torch import Tensor, nn

from silofl.models.normalization import map_norm

KERNEL = 9
WIDTHS = (16, 32)
STEPS = 26
HIDDEN = 100


class ActivityCNN(nn.Module):
    """Two convolutions, two normalisations, two poolings and two fully connected layers.

    Args:
        in_channels: Channels of the sensors.
        num_classes: Activities, one logit each.
        normalization: A study's ``model.normalization``.

    Attributes:
        features: Window to feature vector.
        hidden: The first fully connected layer.
        head: The last linear layer; a row for each activity.
    """

    def __init__(self, in_channels: int, num_classes: int, normalization: str = "batch") -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_level_over_time(in_channels, WIDTHS[0], normalization),
            *_level_over_time(WIDTHS[0], WIDTHS[1], normalization),
            # Windows of 128 points have this many steps here already; any other length is averaged to it.
            nn.AdaptiveAvgPool2d((1, STEPS)),
            nn.Flatten(),
        )
        self.hidden = nn.Sequential(nn.Linear(WIDTHS[1] * STEPS, HIDDEN), nn.ReLU())
        self.head = nn.Linear(HIDDEN, num_classes)

    def forward(self, windows: Tensor) -> Tensor:
        """Return logits (B, activities) of windows (B, C, 1, T) with T at least 28."""
        logits: Tensor = self.head(self.hidden(self.features(windows)))
        return logits


def _level_over_time(in_channels: int, channels: int, normalization: str) -> list[nn.Module]:
    convolution = nn.Conv2d(in_channels, channels, kernel_size=(1, KERNEL))
    return [convolution, map_norm(normalization, channels), nn.ReLU(), nn.MaxPool2d((1, 2))]
