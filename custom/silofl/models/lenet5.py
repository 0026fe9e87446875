"""LeNet-5 with normalisation after each convolution, AdaFed's network for small grey images.

LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE,
1998.
Chen et al., Personalized Federated Learning with Adaptive Batchnorm for Healthcare, arXiv:2112.00734.
"""

from torch import Tensor, nn

from silofl.models.normalization import map_norm

GRID = 5


class LeNet5(nn.Module):
    """Two convolutions and three fully connected layers, with ReLU and max pooling as it is built today.

    Args:
        in_channels: Channels of an image.
        num_classes: Classes, one logit each.
        normalization: A study's ``model.normalization``.

    Attributes:
        features: Image to feature vector.
        hidden: The first two fully connected layers.
        head: The last linear layer; a row for each class.
    """

    def __init__(self, in_channels: int, num_classes: int, normalization: str = "batch") -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_level(nn.Conv2d(in_channels, 6, kernel_size=5, padding=2), normalization),
            *_level(nn.Conv2d(6, 16, kernel_size=5), normalization),
            # Images of 28 x 28 have this grid here already; any other size is averaged to it.
            nn.AdaptiveAvgPool2d(GRID),
            nn.Flatten(),
        )
        self.hidden = nn.Sequential(nn.Linear(16 * GRID**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
        self.head = nn.Linear(84, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, classes) of images (B, C, H, W), each axis at least 16 pixels."""
        logits: Tensor = self.head(self.hidden(self.features(images)))
        return logits


def _level(convolution: nn.Conv2d, normalization: str) -> list[nn.Module]:
    return [convolution, map_norm(normalization, convolution.out_channels), nn.ReLU(), nn.MaxPool2d(2)]
