"""Networks of whole volumes: windows, deep supervision, the selector, and what is refused."""

import pytest
import torch
from torch import nn

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.models.networks import build_plain_model, check_network
from silofl.study import Study

DYNUNET = {
    "network": "monai.networks.nets.DynUNet",
    "arguments": {
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 8],
        "deep_supervision": True,
        "deep_supr_num": 1,
    },
}
SEGRESNET = {"network": "monai.networks.nets.SegResNet", "arguments": {"init_filters": 8}}
UNET = {"name": "unet", "features": [4, 4, 4, 4, 4, 4]}


def study_in_3d(model=UNET, data=None, **changes):
    settings = {
        "name": "volumes",
        "task": "segmentation",
        "labels": {1: "organ", 2: "lesion"},
        "rounds": 1,
        "data": {"dimensions": 3, "patches": {"size": [32, 16, 16]}, **(data or {})},
        "model": model,
        "algorithm": {"name": "fedavg"},
    }
    return parse(Study, settings | changes, "study.yaml")


@pytest.mark.parametrize("model", [UNET, DYNUNET, SEGRESNET])
def test_a_network_answers_each_voxel(model):
    study = study_in_3d(model)
    check_network(study, (1, 16, 16, 16))
    network = build_plain_model(study, 0)
    assert any(isinstance(module, nn.Conv3d) for module in network.modules())
    assert not any(isinstance(module, nn.Conv2d) for module in network.modules())
    assert network.eval()(torch.zeros(2, 1, 16, 16, 16)).shape == (2, 3, 16, 16, 16)


@pytest.mark.parametrize(
    ("normalization", "depth", "reason"),
    [("instance", 16, "Expected more than 1 spatial"), ("batch", 4, "change .*data.patches")],
)
def test_a_patch_that_a_network_cannot_halve_is_refused(normalization, depth, reason):
    study = study_in_3d(UNET | {"normalization": normalization}, {"patches": {"size": [16, 16, depth]}})
    with pytest.raises(ConfigError, match=f"unet does not take images of 16 x 16 x {depth}: .*{reason}"):
        check_network(study, (1, 16, 16, depth))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"dimensions": 3}}, "data.patches is missing for a segmentation in 3D"),
        ({"data": {"patches": {"size": [8, 8, 8]}}}, "data.patches are cut from volumes"),
        ({"data": {"dimensions": 3, "patches": {"size": [8, 8, 8]}, "neighbours": 1}}, "data.neighbours must be 0"),
        ({"data": {"dimensions": 3, "patches": {"size": [8, 8]}}}, "data.patches.size.2 is missing"),
        ({"model": UNET | {"normalization": "batch_stateless"}}, "batch_stateless and data.patches"),
    ],
)
def test_settings_that_do_not_fit_a_volume_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Study, study_in_3d().model_dump(mode="json", exclude_none=True) | changes, "study.yaml")
