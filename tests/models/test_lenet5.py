import pytest
import torch
from torch import nn

from silofl.models.lenet5 import LeNet5


def images(count=4, channels=1, height=28, width=28):
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("channels", "num_classes"), [(1, 11), (3, 2)])
def test_every_image_gets_a_logit_for_each_class(channels, num_classes):
    assert LeNet5(channels, num_classes)(images(4, channels)).shape == (4, num_classes)


def test_the_parameters_are_lenet_5s_and_two_batchnorms():
    # 5 x 5 kernels from 1 to 6 and from 6 to 16 channels, each with a bias, and a weight and a bias of BatchNorm
    convolutions = (25 * 1 + 1 + 2) * 6 + (25 * 6 + 1 + 2) * 16
    # 16 channels of 5 x 5 to 120, to 84, to 11 classes
    connected = (16 * 25 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 11
    assert sum(p.numel() for p in LeNet5(1, 11).parameters()) == convolutions + connected


def test_batchnorm_stands_after_each_convolution_and_nowhere_else():
    kinds = [type(module) for module in LeNet5(1, 11).modules() if not list(module.children())]
    assert [kind for kind in kinds if kind in (nn.Conv2d, nn.BatchNorm2d, nn.Linear)] == [
        nn.Conv2d, nn.BatchNorm2d, nn.Conv2d, nn.BatchNorm2d, nn.Linear, nn.Linear, nn.Linear,
    ]  # fmt: skip


def test_the_pooling_before_the_classifier_changes_no_image_of_28_pixels():
    network = LeNet5(1, 11).eval()
    pooling = next(i for i, module in enumerate(network.features) if isinstance(module, nn.AdaptiveAvgPool2d))
    before = network.features[:pooling](images())
    assert before.shape == (4, 16, 5, 5) and torch.equal(network.features[pooling](before), before)


@pytest.mark.parametrize("size", [(16, 16), (32, 40), (64, 64)])
@pytest.mark.parametrize("normalization", ["batch", "batch_stateless", "instance", "group"])
def test_images_of_other_sizes_pass(size, normalization):
    assert LeNet5(1, 3, normalization)(images(2, 1, *size)).shape == (2, 3)


def test_the_last_linear_layer_is_the_head():
    network = LeNet5(1, 11)
    assert [module for module in network.modules() if isinstance(module, nn.Linear)][-1] is network.head


def test_a_step_against_the_gradient_lowers_the_loss():
    torch.manual_seed(0)
    network, targets = LeNet5(1, 3), torch.tensor([0, 1, 2, 1])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    before = nn.functional.cross_entropy(network(images()), targets)
    before.backward()
    optimizer.step()
    assert nn.functional.cross_entropy(network(images()), targets) < before
