from silofl.models.activity_cnn import ActivityCNN


def test_the_parameters_are_those_of_the_layers():
    # kernels of 9 points in time from 27 to 16 and from 16 to 32 channels, with biases and BatchNorm
    convolutions = (9 * 27 + 1 + 2) * 16 + (9 * 16 + 1 + 2) * 32
    # 128 points: (128 - 8) / 2 = 60, (60 - 8) / 2 = 26
    connected = (32 * 26 + 1) * 100 + (100 + 1) * 12
    assert sum(p.numel() for p in ActivityCNN(27, 12).parameters()) == convolutions + connected
