"""AlexNet in one stream with normalisation after all layers but the last, AdaFed's network for radiographs.

Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural Networks, NeurIPS 2012; the
widths of Krizhevsky, One Weird Trick for Parallelizing Convolutional Neural Networks, arXiv:1404.5997.
Normalised as by Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
arXiv:2102.07623, which Chen et al. follow (AdaFed, arXiv:2112.00734).
"""

from torch import Tensor, nn

from silofl.models.normalization import map_norm, vector_norm

GRID = 6
HIDDEN = 4096


class AlexNet(nn.Module):
    """Five convolutions, and a classifier of three fully connected layers.

    BatchNorm in the classifier cannot learn from a batch of one image.

    Args:
        in_channels: Channels of an image.
        num_classes: Classes, one logit each.
        normalization: A study's ``model.normalization``.
        dropout: Probability of dropout before the first two fully connected layers.

    Attributes:
        features: Image to feature vector.
        hidden: The first two fully connected layers.
        head: The last linear layer; a row for each class.
    """

    def __init__(self, in_channels: int, num_classes: int, normalization: str = "batch", dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_build_level(nn.Conv2d(in_channels, 64, kernel_size=11, stride=4, padding=2), normalization),
            nn.MaxPool2d(3, stride=2),
            *_build_level(nn.Conv2d(64, 192, kernel_size=5, padding=2), normalization),
            nn.MaxPool2d(3, stride=2),
            *_build_level(nn.Conv2d(192, 384, kernel_size=3, padding=1), normalization),
            *_build_level(nn.Conv2d(384, 256, kernel_size=3, padding=1), normalization),
            *_build_level(nn.Conv2d(256, 256, kernel_size=3, padding=1), normalization),
            nn.MaxPool2d(3, stride=2),
            # Images of 224 x 224 have this grid here already; any other size is averaged to it.
            nn.AdaptiveAvgPool2d(GRID),
            nn.Flatten(),
        )
        self.hidden = nn.Sequential(
            *_build_hidden(256 * GRID**2, normalization, dropout), *_build_hidden(HIDDEN, normalization, dropout)
        )
        self.head = nn.Linear(HIDDEN, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, classes) of images (B, C, H, W), each axis at least 63 pixels."""
        logits: Tensor = self.head(self.hidden(self.features(images)))
        return logits


def _build_level(convolution: nn.Conv2d, normalization: str) -> list[nn.Module]:
    return [convolution, map_norm(normalization, convolution.out_channels), nn.ReLU()]


def _build_hidden(width: int, normalization: str, dropout: float) -> list[nn.Module]:
    return [nn.Dropout(dropout), nn.Linear(width, HIDDEN), vector_norm(normalization, HIDDEN), nn.ReLU()]
