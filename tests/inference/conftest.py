"""Tiny super models whose selectors say what a test wants, and images to give them."""

import nibabel
import numpy as np
import pytest
import torch

from silofl.base.settings import parse
from silofl.inference.directory import Contents
from silofl.models import build_model
from silofl.models.selector import build_selector
from silofl.study import Study

from ..conftest import SMALL_UNET

SHAPE = (1, 32, 32)
# Of volumes.
RESNET = {
    "network": "monai.networks.nets.ResNet",
    "arguments": {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [4, 4, 4, 8], "conv1_t_size": 3},
}


@pytest.fixture
def make_study():
    """Build a study by its data settings and what differs in its network and its algorithm."""

    def make(task="segmentation", labels=None, data=None, model=None, **algorithm):
        is_map = task == "segmentation"
        settings = {
            "name": "small",
            "task": task,
            "labels": labels or ({1: "organ", 2: "lesion"} if is_map else {0: "normal", 1: "tumour"}),
            "rounds": 1,
            "data": {"intensity": "percentiles", **(data or {})},
            "model": model or {},
            "algorithm": {"name": "fedsm", **algorithm},
        }
        if not is_map:
            settings |= {"metric": "accuracy", "training": {"loss": "cross_entropy"}}
            smallest = RESNET if settings["data"].get("dimensions") == 3 else {"name": "lenet5"}
            settings["model"] = smallest | settings["model"]
        elif "name" not in settings["model"]:
            settings["model"] = SMALL_UNET | settings["model"]
        return parse(Study, settings, "study.yaml")

    return make


def balanced(study, seed, shape=SHAPE):
    """Return the state of an untrained network whose outputs are even, so that every label occurs."""
    model = build_model(study, shape, seed).eval()
    if study.recipe.input is not None:
        model.input_norm.fix(np.ones((*shape[:-1], shape[-1] // 2 + 1), np.float32))
    nn = torch.nn
    layers = nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d | nn.ConvTranspose3d | nn.Linear
    layer = [module for module in model.modules() if isinstance(module, layers)][-1]
    with torch.no_grad():
        logits = model(torch.from_numpy(noise(4, shape, seed=9)))
        layer.bias -= logits.mean(dim=[axis for axis in range(logits.ndim) if axis != 1])
    return model.state_dict()


def steered(study, scores, seed=0):
    """Return the state of a selector whose probabilities are the same for every image."""
    selector = build_selector(study, len(scores), seed)
    with torch.no_grad():
        selector.network.head.weight.zero_()
        selector.network.head.bias.copy_(torch.log(torch.tensor(scores)))
    return selector.state_dict()


def noise(n, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


@pytest.fixture
def make_contents(make_study):
    """Build a super model's contents: by its rule, its selector's scores, and its study."""

    def make(
        rule="selector", scores=(0.3, 0.7), threshold=0.6, study=None, shape=SHAPE, outputs=("north", "south"), bias=0.0
    ):
        study = study or make_study()
        names = {"only": ["global"], "mean": ["north", "south"]}.get(rule, ["global", "north", "south"])
        models = {name: balanced(study, seed, shape) for seed, name in enumerate(names)}
        if rule != "selector":
            return Contents(study, shape, models, rule, bias=bias)
        selector = steered(study, scores) if scores else build_selector(study, len(outputs), 5).state_dict()
        facts = {"rounds": 3, "metrics": {"dice": 0.5}}
        return Contents(study, shape, models, rule, selector, outputs, threshold, facts, bias=bias)

    return make


@pytest.fixture
def write_volume(tmp_path):
    """Write a volume (X, Y, Z) as NIfTI."""

    def write(name="scan.nii.gz", shape=(32, 32, 3), affine=None, array=None, seed=0):
        if array is None:
            array = np.random.default_rng(seed).random(shape, dtype=np.float32)
        affine = np.diag([-0.5, -0.75, 2, 1.0]) if affine is None else affine
        nibabel.save(nibabel.Nifti1Image(array, affine), tmp_path / name)
        return tmp_path / name

    return write
