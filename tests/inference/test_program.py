import json
import warnings

import numpy as np
import pytest
import torch

from silofl import __version__
from silofl.base.errors import ConfigError, TrainingError
from silofl.inference import SuperModel
from silofl.inference.bundle import VolumeNetwork
from silofl.inference.geometry import decide_labels
from silofl.inference.program import ABOUT, MODEL, WEIGHTS, save_program, to_programs
from silofl.inference.weigher import member_names

from ..models.test_volumes import DYNUNET, SEGRESNET

pytestmark = pytest.mark.long

SHAPE, VOLUME = (1, 32, 32), (1, 32, 32, 16)
CPU = torch.device("cpu")


def images(n, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


def saved_and_loaded(super_model, path):
    """Return a super model's program from its file, made and read without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_program(to_programs(super_model)[MODEL], path, super_model.contents, "f1")
        return torch.export.load(path).module()


def assert_equal(super_model, path, cases):
    model = saved_and_loaded(super_model, path)
    for case in cases:
        wanted = super_model.answer(case)
        probabilities, weights = model(torch.from_numpy(case))
        assert probabilities.dtype == torch.float32
        np.testing.assert_allclose(probabilities.numpy(), wanted.probabilities, atol=1e-5)
        named = dict(zip(member_names(super_model.contents), weights.tolist(), strict=True))
        assert {name: weight for name, weight in named.items() if weight > 0} == pytest.approx(wanted.weights, abs=1e-5)


def of(options, settings=None, *marks):
    """Return one super model of the table below, by what differs in its contents and in its study."""
    return pytest.param(options, settings or {}, marks=marks, id=f"{options} {settings}")


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        of({"rule": "mean"}, {}, SLOW),
        of({"scores": (0.3, 0.7)}, {}, SLOW),
        of({"scores": (0.45, 0.55)}, {}, SLOW),
        of({"scores": (0.2, 0.5, 0.3), "threshold": None, "outputs": ("global", "north", "south")}, {}, SLOW),
        of({"scores": None, "threshold": 0.5}, {}, SLOW),
        of({"scores": None}, {"super_model": {"answer": "ensemble"}}, SLOW),
        of({"scores": None}, {"input": "harmofl", "amplitude": {"band": "full"}}, SLOW),
        of({"rule": "only"}, {"input": "harmofl", "amplitude": {"band": 0}}),
        of({"scores": None}, {"model": {"normalization": "batch_stateless"}}, SLOW),
        of({"scores": None}, {"model": {"precision": "bfloat16"}}, SLOW),
    ],
)
def test_the_program_says_what_the_super_model_says_of_cases_of_any_length(
    make_contents, make_study, tmp_path, options, settings
):
    cases = [images(10)]
    if "model" not in settings:
        # A blank case has no phase at any frequency.
        cases = [images(1), images(11, seed=1), 3 * images(2), np.zeros((3, *SHAPE), np.float32)]
    super_model = SuperModel(make_contents(**options, study=make_study(**settings)), CPU)
    assert_equal(super_model, tmp_path / "model.pt2", cases)


@pytest.mark.parametrize("labels", [{1: "organ"}, {1: "organ", 2: "lesion"}], ids=["sigmoid", "softmax"])
def test_a_program_has_its_decision_bias_and_says_of_what_it_is_and_refuses_images_of_another_shape(
    make_contents, make_study, tmp_path, labels
):
    contents, found = make_contents("only", study=make_study(labels=labels), bias=0.7), {ABOUT: ""}
    super_model = SuperModel(contents, CPU)
    # A blank case has no phase at any frequency.
    assert_equal(
        super_model, tmp_path / "model.pt2", [images(3), images(11, seed=1), np.zeros((3, *SHAPE), np.float32)]
    )
    model = torch.export.load(tmp_path / "model.pt2", extra_files=found).module()
    answer, _ = model(torch.from_numpy(images(3)))
    np.testing.assert_array_equal(decide_labels(answer.numpy()), super_model.predict(images(3)).label_map)
    about = json.loads(found[ABOUT])
    assert about["silofl"] == __version__ and about["fingerprint"] == "f1"
    assert about["members"] == ["global"] and about["image_shape"] == [1, 32, 32]
    assert about["labels"] == {str(number): name for number, name in labels.items()}
    for shape in ((2, 1, 48, 32), (1, 32, 32), (2, 3, 32, 32)):
        with pytest.raises((AssertionError, RuntimeError, ValueError)):
            model(torch.zeros(shape))


@pytest.mark.parametrize("answer", ["choice", pytest.param("ensemble", marks=pytest.mark.slow)])
def test_the_nearest_sites_model_answers_in_the_program_too(nearest, tmp_path, answer):
    assert_equal(SuperModel(nearest(answer), CPU), tmp_path / "model.pt2", [images(2), images(11) + 0.03])


@pytest.mark.slow
def test_volumes_are_weighed_by_the_nearest_site_in_their_program(nearest, tmp_path):
    patches = {"data": {"dimensions": 3, "patches": {"size": [32, 32, 16]}}}
    super_model = SuperModel(nearest(shape=VOLUME, **patches), CPU)
    weights = to_programs(super_model)[WEIGHTS].module()
    chosen = set()
    for seed, power in ((0, 1), (1, 3), (2, 0.3)):
        volume = images(1, (1, 40, 34, 20), seed) ** power
        wanted = super_model.answer(volume)
        assert dict(zip(("north", "south"), weights(torch.from_numpy(volume)).tolist(), strict=True)) == (
            {"north": 0.0, "south": 0.0} | wanted.weights
        )
        chosen.add(wanted.model)
    assert chosen == {"north", "south"}


def test_an_amplitude_that_nothing_is_known_of_is_refused(make_contents, make_study):
    contents = make_contents("only", study=make_study(input="harmofl"))
    contents.models["global"]["input_norm.running_amplitude"].zero_()
    contents.models["global"]["input_norm.is_fixed"].fill_(False)
    with pytest.raises(TrainingError, match="the amplitude must be learned or fixed before evaluation"):
        to_programs(SuperModel(contents, CPU))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_classes_and_findings_have_their_program(make_contents, make_study, tmp_path, task):
    super_model = SuperModel(make_contents("only", study=make_study(task, model={"name": "densenet121"})), CPU)
    assert_equal(super_model, tmp_path / "model.pt2", [images(1), images(3)])


def assert_windows_equal(super_model, folder, tolerance=1e-5):
    """Compare volumes larger and smaller than a window with what the two programs say, and the network of the bundle.

    Returns:
        The convolutions of the members for one window.
    """
    for name, program in to_programs(super_model).items():
        save_program(program, folder / f"{name}.pt2", super_model.contents, "f1")
    network, weigh = VolumeNetwork(folder, CPU), torch.export.load(folder / f"{WEIGHTS}.pt2").module()
    for shape in ((1, 45, 36, 20), (1, 20, 40, 9), VOLUME):
        volume = images(1, shape)
        wanted = super_model.answer(volume)
        np.testing.assert_allclose(network(torch.from_numpy(volume)).numpy(), wanted.probabilities, atol=tolerance)
        weights = dict(zip(member_names(super_model.contents), weigh(torch.from_numpy(volume)).tolist(), strict=True))
        assert {name: weight for name, weight in weights.items() if weight > 0} == pytest.approx(wanted.weights)
    return convolutions(network, images(1, VOLUME)) - convolutions(weigh, images(1, VOLUME))


@pytest.mark.parametrize(
    ("rule", "settings", "num_members"),
    [
        pytest.param("selector", {}, 1, id="selector"),
        pytest.param("mean", {"labels": {1: "organ"}}, 2, id="mean_sigmoid", marks=pytest.mark.slow),
        pytest.param(
            "only", {"input": "harmofl", "amplitude": {"band": "full"}}, 1, id="amplitude", marks=pytest.mark.slow
        ),
    ],
)
def test_volumes_have_a_program_of_weights_and_one_of_windows(
    make_contents, make_volume_study, tmp_path, rule, settings, num_members
):
    study, volume = make_volume_study(**settings), images(1, (1, 45, 36, 20))
    contents = make_contents(rule, scores=None, threshold=0.1, study=study, shape=VOLUME, bias=0.7)
    super_model = SuperModel(contents, CPU)
    members = assert_windows_equal(super_model, tmp_path)
    # The bias comes after the mean of the windows.
    found = VolumeNetwork(tmp_path, CPU)(torch.from_numpy(volume)).numpy()
    np.testing.assert_array_equal(decide_labels(found), super_model.predict(volume).label_map)
    alone = SuperModel(contents, CPU).network(member_names(contents)[0])
    # Only members with a weight are computed.
    assert members == num_members * convolutions(alone, images(1, VOLUME))


@pytest.mark.slow
@pytest.mark.parametrize("model", [SEGRESNET, DYNUNET], ids=["segresnet", "dynunet"])
def test_other_networks_of_volumes_have_their_programs(make_contents, make_volume_study, tmp_path, model):
    study = make_volume_study(name="fedavg", model={"normalization": "group", **model})
    # Channels come last in memory in one of both, so that sums have another order: up to 2.4e-5 without training.
    assert_windows_equal(SuperModel(make_contents("only", study=study, shape=VOLUME), CPU), tmp_path, tolerance=1e-4)


@pytest.mark.slow
def test_classes_of_volumes_have_their_program(make_contents, make_study, tmp_path):
    study = make_study("classification", data={"dimensions": 3})
    super_model = SuperModel(make_contents("mean", study=study, shape=(1, 32, 32, 32)), CPU)
    assert_equal(super_model, tmp_path / "model.pt2", [images(1, (1, 32, 32, 32))])


def convolutions(model, case):
    """Count the convolutions that a model runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found, torch.no_grad():
        model(torch.from_numpy(case))
    return sum(event.count for event in found.key_averages() if event.key == "aten::convolution")


@pytest.mark.slow
def test_only_the_chosen_member_is_computed(make_contents, tmp_path):
    counts = []
    for options in ({"rule": "only"}, {"rule": "mean"}, {"scores": (0.3, 0.7)}):
        model = saved_and_loaded(SuperModel(make_contents(**options), CPU), tmp_path / "model.pt2")
        counts.append(convolutions(model, images(2)))
    # The selector has the 8 convolutions of VGG-11; of global, north and south one network answers.
    assert counts[0] > 0 and counts[1] == 2 * counts[0] and counts[2] == counts[0] + 8


def test_a_network_that_cannot_be_exported_is_refused_in_one_sentence(make_contents):
    class Looks(torch.nn.Module):
        def forward(self, images):
            return images if images.sum() > 0 else -images

    super_model = SuperModel(make_contents("only"), CPU)
    super_model._models["global"] = Looks()
    with pytest.raises(ConfigError, match="UNet must be a network that torch.export takes; it is not"):
        to_programs(super_model)
