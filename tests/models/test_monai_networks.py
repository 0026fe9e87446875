import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.models import build_plain_model
from silofl.models.monai_networks import FORMS
from silofl.models.names import head_names
from silofl.models.networks import check_network
from silofl.models.normalization import InstanceNorm2d
from silofl.study import Study
from silofl.study.sections import CLASSIFICATION_ONLY, SEGMENTATION_ONLY

SMALL = {
    "UNet": {"channels": [8, 16, 32], "strides": [2, 2]},
    "DynUNet": {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [8, 16, 32]},
    "SegResNet": {"init_filters": 8},
    "SwinUNETR": {"feature_size": 12},
    "ResNet": {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [8, 16, 32, 64]},
    "EfficientNetBN": {"model_name": "efficientnet-b0"},
}
SEGMENTING = [path.rpartition(".")[2] for path in SEGMENTATION_ONLY["model.network"]]
CLASSIFYING = [path.rpartition(".")[2] for path in CLASSIFICATION_ONLY["model.network"]]


def study_of(name, arguments=None, normalization="batch", task=None, changes=None, algorithm=None):
    """Return a study of three outputs and two channels with one of MONAI's networks."""
    task = task or ("segmentation" if name in SEGMENTING else "classification")
    is_map = task == "segmentation"
    model = {"network": f"monai.networks.nets.{name}", "normalization": normalization, **(changes or {})}
    model["arguments"] = SMALL.get(name, {}) if arguments is None else arguments
    values = {
        "name": "small",
        "task": task,
        "labels": {1: "organ", 2: "lesion"} if is_map else {0: "a", 1: "b", 2: "c"},
        "metric": "dice" if is_map else "accuracy",
        "rounds": 1,
        "data": {"channels": 2},
        "training": {"loss": "dice_ce" if is_map else "cross_entropy"},
        "model": model,
        "algorithm": algorithm or {"name": "fedavg"},
    }
    return parse(Study, values, "study.yaml")


def test_each_network_that_may_be_named_has_a_form():
    assert sorted(FORMS) == sorted([*SEGMENTING, *CLASSIFYING])


@pytest.mark.parametrize("name", [*SEGMENTING, *CLASSIFYING])
def test_a_network_answers_and_learns(name):
    study = study_of(name)
    check_network(study, (2, 64, 64))
    model = build_plain_model(study, seed=0)
    answer = model(torch.randn(2, 2, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert tuple(answer.shape) == ((2, 3, 64, 64) if name in SEGMENTING else (2, 3))
    answer.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    heads = [model.state_dict()[one] for one in head_names(model)]
    assert any(3 in value.shape for value in heads)
    assert any(isinstance(module, _BatchNorm) for module in model.modules())


# One network of each family: its sizes differ in numbers alone.
FAMILIES = [name for name in FORMS if FORMS[name].norm and name not in ("DenseNet169", "DenseNet201", "DenseNet264")]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("normalization", "kind"), [("instance", InstanceNorm2d), ("group", nn.GroupNorm)])
def test_a_network_takes_the_studys_normalisation(name, normalization, kind):
    model = build_plain_model(study_of(name, normalization=normalization), seed=0)
    kinds = {type(module) for module in model.modules() if "Norm" in type(module).__name__}
    # Transformers have a LayerNorm in any case.
    assert kind in kinds and kinds <= {kind, nn.LayerNorm}


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("SegResNet", {"init_filter": 8}, "for SegResNet, not 'init_filter'.* mean 'init_filters'"),
        ("SegResNet", {"in_channels": 8}, "model.arguments must be among .* for SegResNet, not 'in_channels'"),
        ("EfficientNetBN", {"model_name": "efficientnet-b0", "pretrained": True}, "must be among .*, not 'pretrained'"),
        ("ResNet", {**SMALL["ResNet"], "kwargs": {}}, "not 'kwargs'"),
        ("UNet", {"channels": [8]}, "UNet cannot be built with model.arguments: "),
        ("UNet", {}, "UNet cannot be built with model.arguments: .*channels"),
        # What would fill the memory is refused before anything is built.
        (
            "UNet",
            {"channels": [100_000, 200_000], "strides": [2]},
            "model.arguments.channels must be at most 4096, not 200000",
        ),
        ("UNet", {"channels": [4, 8], "strides": [2], "num_res_units": 10**9}, "num_res_units must be at most 4096"),
        (
            "UNet",
            {"channels": [4, 8], "strides": [2], "act": ["PRELU", {"num_parameters": 10**10}]},
            "act must be at most",
        ),
        ("SwinUNETR", {"window_size": 300}, "window_size must be at most 16, not 300"),
        ("SwinUNETR", {"depths": [10**9, 2, 2, 2]}, "depths must be at most 4096"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_one_sentence(name, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build_plain_model(study_of(name, arguments), seed=0)


def test_a_network_with_batchnorm_alone_is_refused_without_it():
    with pytest.raises(ConfigError, match="normalization must be batch for VNet with these arguments, not instance"):
        build_plain_model(study_of("VNet", normalization="instance"), seed=0)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("AHNet", {}, "model.network must be one of monai.networks.nets.UNet, .* for segmentation, not"),
        ("ResNet", {}, "model.network must be one of .* for segmentation, not 'monai.networks.nets.ResNet'"),
        ("UNet", {"dropout": 0.2}, "model.dropout must be left out with model.network, not 0.2"),
        ("UNet", {"name": "densenet121"}, "model.name must be left out with model.network, not densenet121"),
        ("UNet", {"network": None}, "model.arguments are those of model.network"),
    ],
)
def test_a_study_names_only_networks_of_the_list(name, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        study_of(name, task="segmentation", changes=changes)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        # 4096 channels to 4096 by 15 x 15 voxels alone are 3.8 thousand millions.
        ("UNet", {"channels": [4096, 4096], "strides": [2], "kernel_size": 15}),
        ("SegResNet", {"init_filters": 8, "blocks_down": [4096, 4096], "blocks_up": [1]}),
    ],
)
def test_a_network_beyond_bounds_is_refused_while_built(name, arguments):
    with pytest.raises(ConfigError, match="model must be a network of at most 1073741824 parameters in 10000 arrays"):
        build_plain_model(study_of(name, arguments, normalization="instance"), seed=0)
    # The next one is counted anew.
    build_plain_model(study_of("UNet"), seed=0)
