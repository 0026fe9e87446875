import pytest
import torch

from silofl.models.alexnet import AlexNet

# Only one network is kept: it has 57 million parameters.


def images(count=2, channels=1, size=64):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AlexNet(1, 4)


@pytest.mark.parametrize("size", [63, 96])
def test_images_of_any_size_get_logits_and_every_parameter_learns(network, size):
    network.zero_grad(set_to_none=True)
    logits = network.train()(images(2, 1, size))
    logits.sum().backward()
    assert logits.shape == (2, 4) and all(p.grad is not None for p in network.parameters())


def test_the_parameters_are_those_of_alexnet_and_seven_batchnorms(network):
    widths = (1, 64, 192, 384, 256, 256)
    kernels = (11, 5, 3, 3, 3)
    convolutions = sum((k**2 * i + 1 + 2) * o for k, i, o in zip(kernels, widths, widths[1:], strict=False))
    connected = (256 * 36 + 1 + 2) * 4096 + (4096 + 1 + 2) * 4096 + (4096 + 1) * 4
    assert sum(p.numel() for p in network.parameters()) == convolutions + connected
