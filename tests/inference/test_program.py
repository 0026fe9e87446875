import json

import numpy as np
import pytest
import torch

from silofl import __version__
from silofl.base.errors import ConfigError, TrainingError
from silofl.inference import SuperModel
from silofl.inference.bundle import ABOUT, WEIGHTS, VolumeNetwork
from silofl.inference.geometry import decide_labels
from silofl.inference.weigher import member_names
from silofl_desk.inference.program import save_program, to_programs

from ..models.test_volumes import DYNUNET, SEGRESNET

pytestmark = pytest.mark.long

VOLUME = 1, 32, 32, 16
CPU = torch.device("cpu")


def images(n, shape, seed=0):
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


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


def test_an_amplitude_that_nothing_is_known_of_is_refused(make_contents, make_volume_study):
    contents = make_contents("only", study=make_volume_study(name="fedavg", input="harmofl"), shape=VOLUME)
    contents.models["global"]["input_norm.running_amplitude"].zero_()
    contents.models["global"]["input_norm.is_fixed"].fill_(False)
    with pytest.raises(TrainingError, match="the amplitude must be learned or fixed before evaluation"):
        to_programs(SuperModel(contents, CPU))


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
    members, files = assert_windows_equal(super_model, tmp_path), {ABOUT: ""}
    torch.export.load(tmp_path / f"{WEIGHTS}.pt2", extra_files=files)
    about = json.loads(files[ABOUT])
    assert (about["silofl"], about["fingerprint"], about["bias"]) == (__version__, "f1", 0.7)
    assert about["members"] == member_names(contents) and about["image_shape"] == [*VOLUME]
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


def convolutions(model, case):
    """Count the convolutions that a model runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found, torch.no_grad():
        model(torch.from_numpy(case))
    return sum(event.count for event in found.key_averages() if event.key == "aten::convolution")


def test_a_network_that_cannot_be_exported_is_refused_in_one_sentence(make_contents, make_volume_study):
    class Looks(torch.nn.Module):
        def forward(self, images):
            return images if images.sum() > 0 else -images

    super_model = SuperModel(make_contents("only", study=make_volume_study(name="fedavg"), shape=VOLUME), CPU)
    super_model._models["global"] = Looks()
    with pytest.raises(ConfigError, match="UNet must be a network that torch.export takes; it is not"):
        to_programs(super_model)
