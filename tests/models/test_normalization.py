import pytest
import torch
from torch import nn

from silofl.models.normalization import INSTANCE_NORMS, vector_norm


@pytest.mark.parametrize(("kind", "shape"), [(nn.InstanceNorm2d, (2, 6, 4, 5)), (nn.InstanceNorm3d, (2, 6, 3, 4, 5))])
def test_instance_norm_is_torchs_own_function_of_its_own_weights(kind, shape):
    theirs = kind(6, affine=True)
    ours = INSTANCE_NORMS[kind](6, affine=True)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    for training in (True, False):
        maps = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
        result = ours.train(training)(maps)
        wanted = theirs.train(training)(maps)
        torch.testing.assert_close(result, wanted)
        gradients = [torch.autograd.grad(one.square().sum(), maps, retain_graph=True)[0] for one in (result, wanted)]
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["batch", "batch_stateless"])
def test_batchnorm_of_vectors_normalises_each_feature_over_the_batch(name):
    inputs = torch.rand(5, 3)
    layer = vector_norm(name, 3)
    wanted = (inputs - inputs.mean(0)) / (inputs.var(0, unbiased=False) + layer.eps).sqrt()
    torch.testing.assert_close(layer(inputs), wanted)


@pytest.mark.parametrize("name", ["instance", "group"])
def test_instance_and_group_normalise_each_vector_alone(name):
    inputs = torch.rand(2, 6)
    layer = vector_norm(name, 6)
    wanted = nn.functional.layer_norm(inputs, (6,))
    torch.testing.assert_close(layer(inputs), wanted)
    torch.testing.assert_close(layer(inputs[:1]), wanted[:1])
