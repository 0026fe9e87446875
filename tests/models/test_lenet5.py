from silofl.models.lenet5 import LeNet5


def test_the_parameters_are_lenet_5s_and_two_batchnorms():
    # 5 x 5 kernels from 1 to 6 and from 6 to 16 channels, each with a bias, and a weight and a bias of BatchNorm
    convolutions = (25 * 1 + 1 + 2) * 6 + (25 * 6 + 1 + 2) * 16
    # 16 channels of 5 x 5 to 120, to 84, to 11 classes
    connected = (16 * 25 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 11
    assert sum(p.numel() for p in LeNet5(1, 11).parameters()) == convolutions + connected
