import numpy as np
import pytest
import torch
from monai.networks.nets import DynUNet
from torch import nn

from silofl.base.errors import AggregationError
from silofl.core.recipe import Recipe
from silofl.models import build_model
from silofl.models.names import (
    alias_names,
    batchnorm_names,
    head_names,
    input_norm_names,
    read_arrays,
    traveling_names,
    write_arrays,
)

SHAPE = (1, 32, 32)
AMPLITUDE = "input_norm.running_amplitude"
BATCHNORM_KEYS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


class Named(nn.Module):
    """BatchNorm under names of every kind, and layers whose names only look like it."""

    def __init__(self):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(3)
        self.bn10 = nn.Conv2d(3, 3, 1)
        self.harmless = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
        self.bn_instance = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
        self.batchnorm_scale = nn.GroupNorm(1, 3)
        self.bn = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("bn1_count", torch.tensor(1.0))
        # One layer in two places; and one without parameters and statistics.
        self.synced = self.synced_again = nn.SyncBatchNorm(3)
        self.bare = nn.BatchNorm2d(3, affine=False, track_running_stats=False)


def dynunet(deep_supervision):
    """Return MONAI's DynUNet with four levels, of which two may have auxiliary heads."""
    filters = [4, 8, 16, 32]
    strides = [1, 2, 2, 2]
    supervision = {"deep_supervision": deep_supervision, "deep_supr_num": 2}
    return DynUNet(2, 1, 2, [3] * 4, strides, strides[1:], filters=filters, **supervision)


def names_of(*modules):
    return {f"{module}.{key}" for module in modules for key in BATCHNORM_KEYS}


def test_batchnorm_is_found_by_its_type_under_any_name():
    assert batchnorm_names(Named()) == names_of("bn1", "harmless.0", "synced", "synced_again")


# --- what travels


def traveling(model, stays):
    return traveling_names(model, Recipe(stays=stays))


@pytest.fixture
def harmofl(make_study):
    """Return a U-Net behind amplitude normalisation."""
    return build_model(make_study(algorithm={"name": "harmofl", "preset": "paper"}), SHAPE, 0)


def test_all_but_integers_and_the_amplitude_travels(harmofl):
    names = traveling(harmofl, "nothing")
    kept = set(harmofl.state_dict()) - set(names)
    assert input_norm_names(harmofl) == {AMPLITUDE, "input_norm.is_fixed"}
    assert kept == input_norm_names(harmofl) | {n for n in harmofl.state_dict() if n.endswith("num_batches_tracked")}
    assert all(array.dtype == np.float32 for array in read_arrays(harmofl.state_dict(), names).values())


def test_all_of_batchnorm_stays_where_it_stays_home(harmofl):
    without = traveling(harmofl, "batchnorm")
    assert without == [name for name in harmofl.state_dict() if name in set(without)]
    assert set(without) == set(traveling(harmofl, "nothing")) - batchnorm_names(harmofl)
    assert {type(harmofl.get_submodule(name.rpartition(".")[0])) for name in without} == {nn.Conv2d, nn.ConvTranspose2d}
    assert traveling(harmofl, "everything") == []


# --- arrays


def test_read_or_written_arrays_do_not_change_with_the_model():
    model = nn.Linear(2, 1)
    array = np.ones((1, 2), np.float32)
    write_arrays(model.state_dict(), {"weight": array})
    read = read_arrays(model.state_dict(), ["weight"])["weight"]
    nn.init.constant_(model.weight, 9.0)
    assert (array == 1).all() and (read == 1).all()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("weight", (1, 2), r"'weight' of shape \(1, 2\) does not fit the model, which has shape \(2, 1\)"),
        ("weight", (2,), r"'weight' of shape \(2,\)"),
        ("bias", (), r"'bias' of shape \(\) does not fit the model, which has shape \(2,\)"),
        ("weights", (2, 1), r"'weights' .* has no such array"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(name, shape, message):
    with pytest.raises(AggregationError, match=message):
        write_arrays(nn.Linear(1, 2).state_dict(), {name: np.zeros(shape, np.float32)})


def test_the_head_is_the_last_layer_that_has_weights():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Softmax(dim=1))
    assert head_names(model) == {"2.weight", "2.bias"}
    assert head_names(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())) == {"0.weight", "0.bias"}
    assert head_names(nn.ReLU()) == set()


@pytest.mark.parametrize("deep_supervision", [False, True])
def test_a_tensor_with_several_names_travels_under_its_first(deep_supervision):
    model = dynunet(deep_supervision)
    other = dynunet(deep_supervision)
    names = traveling(model, "nothing")
    aliases = alias_names(model)
    arrays = read_arrays(model.state_dict(), names)
    assert sum(array.size for array in arrays.values()) == sum(one.numel() for one in model.parameters())
    assert aliases["skip_layers.downsample.conv1.conv.weight"] == "input_block.conv1.conv.weight"
    assert set(model.state_dict()) == {*names, *aliases} and set(aliases.values()) < set(names)
    write_arrays(other.state_dict(), arrays)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
