import copy

import pytest
import torch
from torch import nn

from silofl.base.errors import ConfigError
from silofl.core.recipe import Recipe
from silofl.core.steps import plain_step
from silofl.models import build_model, build_plain_model
from silofl.models.frozen import freeze_parameters, frozen_names, list_still_layers
from silofl.models.names import traveling_names

SHAPE = (1, 32, 32)


def small():
    """Return a body of a convolution and BatchNorm, and a head."""
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    return nn.ModuleDict({"body": body, "head": nn.Linear(2, 2)})


@pytest.fixture
def frozen_study(make_study):
    """Build a study of a network of which patterns name what is frozen."""

    def make(patterns, network="lenet5", **options):
        study = make_study(network, **options)
        training = study.training.model_copy(update={"frozen": tuple(patterns)})
        return study.model_copy(update={"training": training})

    return make


def test_statistics_of_wholly_frozen_layers_are_frozen_too():
    network = small()
    freeze_parameters(network, ["body.*"])
    statistics = {f"body.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert frozen_names(network) == {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", *statistics}
    assert list_still_layers(network) == [network["body"][1]]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["body.*", "Head.*"], r"'Head\.\*' of training\.frozen .* 'head\.\*'.*body\.\*, head\.\*"),
        ([""], r"'' of training\.frozen .*body\.\*, head\.\*"),
        (["body.1.running_mean"], r"'body\.1\.running_mean' of training\.frozen"),
        (["*"], r"training\.frozen freezes all 6 .*remove a pattern"),
        (["head.*", "body.*"], "freezes all 6 parameters"),
    ],
)
def test_patterns_that_name_nothing_or_all_are_refused(patterns, message):
    with pytest.raises(ConfigError, match=message):
        freeze_parameters(small(), patterns)


def test_a_body_is_not_frozen_where_nothing_would_travel(frozen_study):
    study = frozen_study(["features.*", "hidden.*"], algorithm={"name": "fedper"})
    with pytest.raises(ConfigError, match=r"training\.frozen and stays: head no parameter"):
        build_plain_model(study, 0)
    build_plain_model(frozen_study(["features.*", "hidden.*"], algorithm={"name": "local"}), 0)


def test_frozen_arrays_do_not_travel(frozen_study):
    study = frozen_study(["features.*", "hidden.*"], algorithm={"name": "harmofl"})
    at_site = build_model(study, SHAPE, 0)
    at_server = build_plain_model(study, 0)
    for model in (at_site, at_server):
        for recipe in (study.recipe, Recipe()):
            assert traveling_names(model, recipe) == ["network.head.weight", "network.head.bias"]
    assert at_site.frozen == at_server.frozen and "network.features.0.weight" in at_site.frozen


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_moves_nothing_that_is_frozen(frozen_study, optimizer):
    model = build_plain_model(frozen_study(["features.*", "hidden.*"]), 0).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    # Decay would move parameters without a gradient too, were they given to the optimiser as others are.
    plain_step(model, optimizer(model.parameters(), 0.1, weight_decay=0.1), nn.functional.cross_entropy, batch)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"network.head.weight", "network.head.bias"}


def test_frozen_normalisation_evaluates_in_training(frozen_study):
    model = build_plain_model(frozen_study(["features.denseblock1.*"], "densenet121"), 0)
    for one in (model.train(), copy.deepcopy(model).train()):
        layers = {name: layer for name, layer in one.network.named_modules() if isinstance(layer, nn.BatchNorm2d)}
        still = {name for name, layer in layers.items() if not layer.training}
        assert still == {name for name in layers if name.startswith("features.denseblock1.")}
    assert not any(module.training for module in model.eval().modules())
