import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from silofl.algorithms.harmofl import AmplitudeNorm
from silofl.base.errors import ConfigError
from silofl.models import build_model, build_plain_model
from silofl.models.networks import build_models, check_network
from silofl.models.normalization import InstanceNorm2d

NETWORKS = ("unet", "densenet121", "lenet5", "activity_cnn")
# Two convolutions a block, nine blocks; four dense blocks of 6, 12, 24 and 16 layers of two, one a transition and two.
NUM_LAYERS = {"unet": 18, "densenet121": 2 * (6 + 12 + 24 + 16) + 3 + 2, "lenet5": 2, "activity_cnn": 2}
SHAPE = (1, 32, 32)


def normalization_layers(model):
    return [m for m in model.network.modules() if isinstance(m, (_NormBase, nn.GroupNorm, nn.LayerNorm))]


def images(count=2, shape=SHAPE, seed=0):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("batch", nn.BatchNorm2d),
        ("batch_stateless", nn.BatchNorm2d),
        ("instance", InstanceNorm2d),
        ("group", nn.GroupNorm),
    ],
)
def test_a_normalisation_name_gives_that_layer_everywhere(make_study, network, name, kind):
    layers = normalization_layers(build_plain_model(make_study(network, name), 0))
    assert len(layers) == NUM_LAYERS[network]
    assert {type(layer) for layer in layers} == {kind}
    parameters = set() if name == "batch_stateless" else {"weight", "bias"}
    statistics = {"running_mean", "running_var", "num_batches_tracked"} if name == "batch" else set()
    for layer in layers:
        assert {key for key, _ in layer.named_parameters()} == parameters
        assert {key for key, _ in layer.named_buffers()} == statistics
    if name == "group":
        assert all(layer.num_groups == (8 if layer.num_channels % 8 == 0 else 1) for layer in layers)
        # level five of the U-Net has 12 channels, the first of LeNet-5 has 6
        assert {layer.num_groups for layer in layers} == ({8, 1} if network in ("unet", "lenet5") else {8})


@pytest.mark.parametrize("network", NETWORKS)
def test_the_same_seed_gives_the_same_weights(make_study, network):
    states = []
    # Whatever torch's own random numbers are.
    for outer, seed in ((1, 3), (2, 3), (2, 4)):
        torch.manual_seed(outer)
        states.append(build_model(make_study(network), SHAPE, seed).state_dict())
    first, again, other = states
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if first[name].ndim == 4)


@pytest.mark.parametrize(
    "use",
    [
        lambda study: build_model(study, SHAPE, 3),
        lambda study: build_plain_model(study, 3),
        lambda study: check_network(study, SHAPE),
    ],
    ids=["model", "plain", "check"],
)
def test_building_and_trying_a_network_leave_torchs_random_numbers_alone(make_study, use):
    torch.manual_seed(11)
    wanted = torch.rand(4)
    torch.manual_seed(11)
    use(make_study(algorithm={"name": "harmofl"}, dropout=0.5))
    assert torch.equal(torch.rand(4), wanted)


def test_a_unet_has_the_studys_features(make_study):
    model = build_plain_model(make_study(features=[4, 5, 6, 7, 8, 9]), 0)
    channels = [m.num_features for m in normalization_layers(model)]
    # down the levels, then up: three decoders give the level above, the last gives the sixth number
    assert channels[::2] == [4, 5, 6, 7, 8, 7, 6, 5, 9]


@pytest.mark.parametrize(
    ("algorithm", "band", "momentum"),
    [
        ({"name": "harmofl", "preset": "paper"}, "full", 0.1),
        ({"name": "harmofl", "preset": "reference"}, 0, 0.0),
        ({"name": "harmofl", "amplitude": {"band": 3, "momentum": 0.5}}, 3, 0.5),
        ({"name": "fedavg", "input": "harmofl", "amplitude": {"band": "full"}}, "full", 0.1),
    ],
)
def test_amplitude_normalisation_stands_in_front_as_the_recipe_asks(make_study, algorithm, band, momentum):
    norm = build_model(make_study(algorithm=algorithm), (1, 20, 24), 0).input_norm
    assert type(norm) is AmplitudeNorm
    assert (norm.shape, norm.band, norm.momentum) == ((1, 20, 24), band, momentum)


@pytest.mark.parametrize("network", NETWORKS)
def test_every_parameter_learns_in_the_studys_precision(make_study, network):
    logits = {}
    for precision in ("auto", "float32", "bfloat16"):
        model = build_plain_model(make_study(network, precision=precision), 0)
        with torch.no_grad():
            logits[precision] = model.eval()(images(2, (1, 64, 64)))
    assert torch.equal(logits["auto"], logits["float32"])
    assert logits["bfloat16"].dtype == torch.float32 and not torch.equal(logits["bfloat16"], logits["float32"])
    # bfloat16 has 8 bits: two to three digits
    scale = 0.05 * float(logits["float32"].abs().max())
    torch.testing.assert_close(logits["bfloat16"], logits["float32"], rtol=0.05, atol=scale)
    model.train()(images(2, (1, 64, 64))).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_models_side_by_side_begin_alike_and_share_no_memory(make_study):
    study = make_study(normalization="instance", algorithm={"name": "fedsm"})
    for shape in (SHAPE, None):
        models = build_models(study, shape)
        assert list(models) == ["global", "personal"]
        shared, personal = (model.state_dict() for model in models.values())
        for name, value in shared.items():
            assert torch.equal(value, personal[name]) and value.data_ptr() != personal[name].data_ptr()


# --- images that a network does not take


@pytest.mark.parametrize(
    ("network", "normalization", "size"),
    [
        # halved four and five times, the last maps have one value; AlexNet's classifier has vectors at any size
        ("unet", "batch_stateless", 16),
        ("unet", "instance", 16),
        ("densenet121", "batch_stateless", 32),
        ("alexnet", "batch_stateless", 96),
    ],
)
def test_a_network_that_would_normalise_one_value_alone_is_refused(make_study, network, normalization, size):
    sentence = f"{network} does not take images of {size} x {size}: Expected more than 1 .*change model.normalization"
    with pytest.raises(ConfigError, match=sentence):
        check_network(make_study(network, normalization), (1, size, size))
