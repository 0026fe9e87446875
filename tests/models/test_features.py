import pytest
import torch
from torch import nn

from silofl.base.settings import parse
from silofl.models import build_plain_model
from silofl.models.features import feature_layer
from silofl.models.names import head_names
from silofl.study import Study


def study(network, **more):
    settings = {"name": "s", "rounds": 1, "model": {"name": network}, "algorithm": {"name": "fedavg"}}
    return parse(Study, settings | more, "study.yaml")


def classification(network, **more):
    answers = {"labels": {0: "no", 1: "yes"}, "metric": "accuracy", "training": {"loss": "cross_entropy"}}
    return study(network, task="classification", **answers, **more)


def test_a_unets_representation_is_the_deepest_of_its_encoder():
    model = build_plain_model(study("unet", task="segmentation", labels={1: "blob"}), 0).eval()
    deepest = []
    seen = []
    model.network.down_4.register_forward_hook(lambda module, inputs, output: deepest.append(output))
    feature_layer(model).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(torch.rand(2, 1, 32, 32))
    # four times half of 32
    assert seen[0] is deepest[0] and seen[0].shape[2:] == (2, 2)


@pytest.mark.parametrize(
    ("name", "width", "last"),
    [
        ("densenet121", 1024, "class_layers.out"),
        ("lenet5", 84, "head"),
        ("alexnet", 4096, "head"),
        ("activity_cnn", 100, "head"),
    ],
)
def test_a_representation_is_the_input_of_the_last_layer(name, width, last):
    plain = build_plain_model(classification(name), 0)
    layer = feature_layer(plain)
    assert isinstance(layer, nn.Linear) and (layer.in_features, layer.out_features) == (width, 2)
    assert plain.network.get_submodule(last) is layer
    model = build_plain_model(classification(name, algorithm={"name": "moon", "preset": "paper"}), 0)
    head = model.network.get_submodule(last)
    state = model.state_dict()
    sizes = [(layer.in_features, layer.out_features) for layer in head if isinstance(layer, nn.Linear)]
    assert sizes == [(width, width), (width, 256), (256, 2)] and isinstance(head[1], nn.ReLU)
    # the representation is the second layer's output, on which no ReLU follows
    assert feature_layer(model) is head[3]
    assert head_names(model) == {f"network.{last}.3.{n}" for n in ("weight", "bias")}
    encoder = {n: value for n, value in plain.state_dict().items() if not n.startswith(f"network.{last}.")}
    assert encoder and all(torch.equal(value, state[n]) for n, value in encoder.items())
    assert state.keys() - encoder.keys() == {f"network.{last}.{i}.{n}" for i in (0, 2, 3) for n in ("weight", "bias")}
