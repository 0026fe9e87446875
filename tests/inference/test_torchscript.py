import io
from dataclasses import replace

import numpy as np
import pytest
import torch

from silofl.base.errors import ConfigError
from silofl.inference import SuperModel
from silofl.inference.geometry import decide_labels
from silofl_desk.inference.torchscript import silence_known_warnings, to_torchscript
from silofl_desk.inference.weigher import member_names

pytestmark = pytest.mark.long

SHAPE, WINDOW = (1, 32, 32), (1, 32, 32, 16)
# Larger than a window, smaller along some axes, and as one.
VOLUMES = ((1, 45, 36, 20), (1, 20, 40, 9), WINDOW)
CPU = torch.device("cpu")


def images(n, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


def saved_and_loaded(super_model):
    content = io.BytesIO()
    with silence_known_warnings():
        torch.jit.save(to_torchscript(super_model), content)
        content.seek(0)
        return torch.jit.load(content)


def assert_equal(super_model, cases, tolerance=1e-5):
    script = saved_and_loaded(super_model)
    for case in cases:
        wanted = super_model.answer(case)
        np.testing.assert_allclose(script(torch.from_numpy(case)).numpy(), wanted.probabilities, atol=tolerance)
        weights = dict(
            zip(member_names(super_model.contents), script.member_weights(torch.from_numpy(case)), strict=True)
        )
        assert {name: float(weight) for name, weight in weights.items() if weight > 0} == pytest.approx(wanted.weights)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"scores": (0.45, 0.55)}, {}),
        ({"scores": None, "threshold": 0.5}, {}),
        ({"scores": (0.2, 0.5, 0.3), "threshold": None, "outputs": ("global", "north", "south")}, {}),
        ({"scores": None}, {"super_model": {"answer": "ensemble"}}),
        ({"scores": None}, {"labels": {1: "organ"}}),
        ({"scores": None}, {"input": "harmofl", "amplitude": {"band": "full"}}),
        ({"scores": None}, {"model": {"normalization": "batch_stateless"}}),
    ],
    ids=str,
)
def test_the_script_answers_as_the_super_model(make_contents, make_study, options, settings):
    # More slices than the script takes at a time, other sizes of numbers, and a blank case.
    cases = [images(2), images(11, seed=1), 3 * images(2), np.zeros((3, *SHAPE), np.float32)]
    cases += [] if settings.get("model") == {"normalization": "batch_stateless"} else [images(1)]
    assert_equal(SuperModel(make_contents(**options, study=make_study(**settings)), CPU), cases)


@pytest.mark.parametrize(("rule", "labels"), [("only", {1: "organ"}), ("mean", {1: "organ", 2: "lesion"})])
def test_a_decision_bias_is_in_the_script_too(make_contents, make_study, rule, labels):
    super_model = SuperModel(make_contents(rule, study=make_study(labels=labels), bias=0.7), CPU)
    assert_equal(super_model, [images(3)])
    probabilities = saved_and_loaded(super_model)(torch.from_numpy(images(3))).numpy()
    labels = decide_labels(probabilities)
    np.testing.assert_array_equal(labels, super_model.predict(images(3)).label_map)
    assert (labels != SuperModel(replace(super_model.contents, bias=0.0), CPU).predict(images(3)).label_map).any()


@pytest.mark.parametrize(
    ("task", "rule", "network", "algorithm"),
    [
        ("classification", "only", "densenet121", {}),
        ("classification", "only", "lenet5", {"name": "moon", "preset": "paper"}),
        ("multilabel", "mean", "lenet5", {"name": "fedavg"}),
    ],
    ids=["fedsm", "projection_head", "findings"],
)
def test_classes_and_findings_have_their_script(make_contents, make_study, task, rule, network, algorithm):
    study = make_study(task, model={"name": network}, **algorithm)
    assert_equal(SuperModel(make_contents(rule, study=study), CPU), [images(2)])


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("selector", {}),
        pytest.param("mean", {"labels": {1: "organ"}}, marks=pytest.mark.slow),
        pytest.param("only", {"input": "harmofl", "amplitude": {"band": "full"}}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_volumes_of_any_size_are_seen_by_windows(make_contents, make_study, rule, settings):
    study = make_study(data={"dimensions": 3, "patches": {"size": [32, 32, 16]}}, **settings)
    contents = make_contents(rule, scores=None, threshold=0.1, study=study, shape=WINDOW, bias=0.7)
    assert_equal(SuperModel(contents, CPU), [images(1, shape) for shape in VOLUMES])


def test_images_of_another_shape_are_refused_by_the_script(make_contents):
    script = to_torchscript(SuperModel(make_contents("only"), CPU))
    for shape in ((2, 1, 48, 32), (1, 32, 32), (2, 3, 32, 32)):
        with pytest.raises(Exception, match="images have another shape"):
            script(torch.zeros(shape))


def test_a_network_whose_way_depends_on_images_is_refused(make_contents):
    class Looks(torch.nn.Module):
        def forward(self, images):
            logits = torch.cat([images, 2 * images, 3 * images], dim=1)
            return logits if images.sum() > 0 else -logits

    super_model = SuperModel(make_contents("only"), torch.device("cpu"))
    super_model._models["global"] = Looks()
    with pytest.raises(ConfigError, match="TorchScript cannot trace .*UNet, whose way depends"):
        to_torchscript(super_model)
