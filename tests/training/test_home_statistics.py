import numpy as np
import pytest
import torch
from torch import nn

from silofl.base.errors import DataError
from silofl.data.volumes import Volumes
from silofl.models import build_plain_model
from silofl.models.normalization import HomeBatchNorm, replace_batchnorm
from silofl.training.home_statistics import fix_home_statistics, fix_statistics, has_statistics

CPU = torch.device("cpu")
PATCHES = {"dimensions": 3, "patches": {"size": [16, 16, 16], "per_volume": 2}}


def home_network() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.Flatten()
    )
    replace_batchnorm(network)
    return network


def test_a_layer_gets_mean_and_variance_of_all_images():
    layer = nn.Sequential(HomeBatchNorm(1))
    # Values 1, 2, 3 and 6: mean 3, squared distances 4 + 1 + 0 + 9 = 14, variance 14 / 4.
    fix_statistics(layer, [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [6.0]])])
    assert layer[0].running_mean.item() == 3
    assert layer[0].running_var.item() == 3.5


def test_statistics_of_one_batch_answer_it_as_in_training():
    network = home_network()
    images = torch.rand(6, 2, 8, 8)
    in_training = network.train()(images)
    fix_statistics(network, [images])
    torch.testing.assert_close(network.eval()(images), in_training, rtol=1e-5, atol=1e-5)


def test_a_model_has_statistics_once_they_are_fixed():
    network = home_network().train()
    assert not has_statistics(network)
    fix_statistics(network, [torch.rand(4, 2, 8, 8), torch.rand(2, 2, 8, 8)])
    assert has_statistics(network)
    assert network.training


@pytest.mark.parametrize(
    ("batches", "reason"), [([], "no images"), ([torch.rand(1, 3)], "from one image")], ids=["none", "one value"]
)
def test_too_few_images_are_refused(batches, reason):
    with pytest.raises(DataError, match=reason):
        fix_statistics(nn.Sequential(HomeBatchNorm(3)), batches)


def test_a_model_without_home_layers_is_left_alone():
    network = nn.Sequential(nn.BatchNorm2d(2))
    fix_statistics(network, [])
    assert has_statistics(network)
    assert network[0].running_mean.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("task", "model", "data", "shape"),
    [
        ("segmentation", {"name": "unet", "features": [8, 8, 8, 8, 8, 8]}, {}, (32, 32)),
        ("segmentation", {"name": "unet", "features": [8, 8, 8, 8, 8, 8]}, PATCHES, (20, 16, 24)),
        ("classification", {"name": "lenet5"}, {}, (28, 28)),
        ("classification", {"name": "alexnet", "dropout": 0.5}, {}, (96, 96)),
    ],
    ids=["picture", "patches", "lenet", "alexnet"],
)
def test_all_kinds_of_images_give_statistics(make_study, task, model, data, shape):
    study = make_study(task, model=model | {"normalization": "batch_home"}, data=data)
    noise = np.random.default_rng(0)
    images = [noise.random((1, *shape), dtype=np.float32) for _ in range(5)]
    network = build_plain_model(study, 0)
    images = Volumes(tuple(images)) if data else np.stack(images)
    draws = torch.get_rng_state()
    fix_home_statistics(network, images, study, CPU)
    assert torch.equal(torch.get_rng_state(), draws)
    first = {name: value.clone() for name, value in network.state_dict().items()}
    fix_home_statistics(network, images, study, CPU)
    for name, value in network.state_dict().items():
        assert torch.equal(value, first[name]), name
    together = network.eval()(torch.from_numpy(np.asarray(images)))
    alone = torch.cat([network(torch.from_numpy(image[None])) for image in images])
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
