import pytest
import torch
from torch import nn

from silofl.models.normalization import INSTANCE_NORMS, InstanceNorm2d, map_norm, vector_norm


def vectors(rows, features, seed=0):
    return torch.rand(rows, features, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("batch", nn.BatchNorm2d),
        ("batch_stateless", nn.BatchNorm2d),
        ("instance", InstanceNorm2d),
        ("group", nn.GroupNorm),
    ],
)
def test_a_feature_map_keeps_its_shape_under_the_layer_of_that_name(name, kind):
    layer = map_norm(name, 16)
    assert type(layer) is kind and layer(torch.rand(2, 16, 4, 4)).shape == (2, 16, 4, 4)


@pytest.mark.parametrize(("kind", "shape"), [(nn.InstanceNorm2d, (2, 6, 4, 5)), (nn.InstanceNorm3d, (2, 6, 3, 4, 5))])
def test_instance_norm_is_torchs_own_function_of_its_own_weights(kind, shape):
    theirs, ours = kind(6, affine=True), INSTANCE_NORMS[kind](6, affine=True)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    for training in (True, False):
        maps = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
        found, wanted = ours.train(training)(maps), theirs.train(training)(maps)
        torch.testing.assert_close(found, wanted)
        gradients = [torch.autograd.grad(one.square().sum(), maps, retain_graph=True)[0] for one in (found, wanted)]
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_instance_norm_refuses_maps_of_one_value():
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        InstanceNorm2d(6, affine=True)(torch.rand(2, 6, 1, 1))


def test_batchnorm_after_a_fully_connected_layer_normalises_each_feature_over_the_batch():
    inputs = vectors(5, 3)
    for name in ("batch", "batch_stateless"):
        layer = vector_norm(name, 3)
        wanted = (inputs - inputs.mean(0)) / (inputs.var(0, unbiased=False) + layer.eps).sqrt()
        torch.testing.assert_close(layer(inputs), wanted)


@pytest.mark.parametrize("name", ["instance", "group"])
def test_instance_and_group_after_a_fully_connected_layer_normalise_each_vector_alone(name):
    inputs, layer = vectors(2, 6), vector_norm(name, 6)
    wanted = nn.functional.layer_norm(inputs, (6,))
    torch.testing.assert_close(layer(inputs), wanted)
    torch.testing.assert_close(layer(inputs[:1]), wanted[:1])


@pytest.mark.parametrize("norm", [map_norm, vector_norm])
def test_batchnorm_without_state_has_neither_parameters_nor_buffers(norm):
    assert norm("batch_stateless", 4).state_dict() == {}
    assert {"weight", "bias", "running_mean", "running_var"} < norm("batch", 4).state_dict().keys()
