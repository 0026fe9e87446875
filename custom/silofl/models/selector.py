"""The selector of a super model, which classifies images by site or by best model.

FedSM's is VGG-11 or a light variant of it (Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale
Image Recognition, ICLR 2015, arXiv:1409.1556).
"""

import torch
from torch import Tensor, nn

from silofl.models.networks import HarmonizedModel
from silofl.models.normalization import GROUPS
from silofl.models.seeds import seed_torch
from silofl.study import Study

# Configuration A: channels of the convolutions, 0 for a pooling.
VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
LIGHT_DIVISOR = 4
HEAD = 4096
HEAD_GRID = 7


class SelectorNetwork(nn.Module):
    """VGG-11's convolutions, its hidden layers or a global mean, and one linear layer over sites or models.

    Attributes:
        convolutions: The convolutions with their poolings.
        hidden: Feature map to feature vector.
        head: The last linear layer; a row for each output.
    """

    def __init__(self, in_channels: int, num_outputs: int, is_light: bool) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(*_convolutions(in_channels, is_light))
        width = VGG11[-2] // LIGHT_DIVISOR if is_light else VGG11[-2]
        self.hidden = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()) if is_light else _wide_layers(width)
        self.head = nn.Linear(width if is_light else HEAD, num_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, outputs) of images (B, C, H, W), each axis at least 32 pixels."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """Return the input of the last layer, (B, features)."""
        features: Tensor = self.hidden(self.convolutions(images))
        return features


def build_selector(study: Study, num_outputs: int, seed: int) -> HarmonizedModel:
    """Build a study's selector, which reads images before amplitude normalisation.

    Args:
        study: Its recipe names the network.
        num_outputs: Sites, or models, to choose from.
        seed: Seed of the initial weights; torch's own random state is left alone.
    """
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        network = SelectorNetwork(study.data.in_channels, num_outputs, study.recipe.selector == "light")
        return HarmonizedModel(nn.Identity(), network, study.model.precision)


def _convolutions(in_channels: int, is_light: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for channels in VGG11:
        if channels == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        channels = channels // LIGHT_DIVISOR if is_light else channels
        layers.append(nn.Conv2d(in_channels, channels, kernel_size=3, padding=1))
        if is_light:
            # Not BatchNorm: all images of a site's batch have one label, so in training the batch's statistics alone
            # would tell the site, and nothing would be learnt that holds for a single image.
            layers.append(nn.GroupNorm(GROUPS, channels))
        layers.append(nn.ReLU(inplace=True))
        in_channels = channels
    return layers


def _wide_layers(width: int) -> nn.Sequential:
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(HEAD_GRID), nn.Flatten())
    hidden = [nn.Linear(width * HEAD_GRID**2, HEAD), nn.ReLU(True), nn.Dropout()]
    return nn.Sequential(pool, *hidden, nn.Linear(HEAD, HEAD), nn.ReLU(True), nn.Dropout())
