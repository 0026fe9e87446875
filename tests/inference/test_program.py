import json
import warnings

import numpy as np
import pytest
import torch

from silofl import __version__
from silofl.errors import ConfigError, TrainingError
from silofl.inference import SuperModel
from silofl.inference.program import ABOUT, save, to_program
from silofl.inference.weigher import names

SHAPE = (1, 32, 32)
CPU = torch.device("cpu")


def images(n, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


def saved_and_loaded(super_model, path):
    save(to_program(super_model), path, super_model.contents, "f1")
    return torch.export.load(path).module()


def assert_equal(super_model, path, cases):
    model = saved_and_loaded(super_model, path)
    for case in cases:
        wanted = super_model.answer(case)
        probabilities, weights = model(torch.from_numpy(case))
        assert probabilities.dtype == torch.float32
        np.testing.assert_allclose(probabilities.numpy(), wanted.probabilities, atol=1e-5)
        named = dict(zip(names(super_model.contents), weights.tolist(), strict=True))
        assert {name: weight for name, weight in named.items() if weight > 0} == pytest.approx(wanted.weights, abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"rule": "only"}, id="one_global_model"),
        pytest.param({"rule": "mean"}, id="mean", marks=pytest.mark.slow),
        pytest.param({"scores": (0.3, 0.7)}, id="site"),
        pytest.param({"scores": (0.45, 0.55)}, id="fallback", marks=pytest.mark.slow),
        pytest.param(
            {"scores": (0.2, 0.5, 0.3), "threshold": None, "outputs": ("global", "north", "south")},
            id="extra",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_program_says_what_the_super_model_says_of_cases_of_any_length(make_contents, tmp_path, options):
    cases = [images(1), images(11, seed=1)]
    assert_equal(SuperModel(make_contents(**options), CPU), tmp_path / "model.pt2", cases)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"super_model": {"answer": "ensemble"}}, id="ensemble"),
        pytest.param({"labels": {1: "organ"}}, id="sigmoid", marks=pytest.mark.slow),
        pytest.param({"input": "harmofl", "amplitude": {"band": 0}}, id="band", marks=pytest.mark.slow),
        pytest.param({"input": "harmofl", "amplitude": {"band": "full"}}, id="full_band"),
        pytest.param({"model": {"normalization": "batch_stateless"}}, id="stateless", marks=pytest.mark.slow),
        pytest.param({"model": {"precision": "bfloat16"}}, id="bfloat16", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_study_has_its_program(make_contents, make_study, tmp_path, settings):
    super_model = SuperModel(make_contents(scores=None, study=make_study(**settings)), CPU)
    assert_equal(super_model, tmp_path / "model.pt2", [images(10)])


@pytest.mark.parametrize("band", [0, "full"])
def test_a_blank_case_takes_amplitude_normalisations_other_way_in_the_program_too(
    make_contents, make_study, tmp_path, band
):
    # It has no phase at any frequency.
    study = make_study(input="harmofl", amplitude={"band": band})
    super_model = SuperModel(make_contents("only", study=study), CPU)
    assert_equal(super_model, tmp_path / "model.pt2", [np.zeros((3, *SHAPE), np.float32), images(2)])


def test_an_amplitude_that_nothing_is_known_of_is_refused(make_contents, make_study):
    contents = make_contents("only", study=make_study(input="harmofl"))
    contents.models["global"]["input_norm.running_amplitude"].zero_()
    contents.models["global"]["input_norm.is_fixed"].fill_(False)
    with pytest.raises(TrainingError, match="the amplitude must be learned or fixed before evaluation"):
        to_program(SuperModel(contents, CPU))


@pytest.mark.slow
def test_an_untrained_selector_chooses_in_the_program_case_by_case(make_contents, tmp_path):
    super_model = SuperModel(make_contents(scores=None, threshold=0.5), CPU)
    cases = [images(2), 3 * images(2), np.zeros((2, *SHAPE), np.float32)]
    assert_equal(super_model, tmp_path / "model.pt2", cases)


@pytest.mark.slow
def test_classes_have_their_program(make_contents, make_study, tmp_path):
    super_model = SuperModel(make_contents("only", study=make_study("classification")), CPU)
    assert_equal(super_model, tmp_path / "model.pt2", [images(1), images(3)])


def convolutions(model, case):
    """Count the convolutions that a model runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
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


def test_images_of_another_shape_are_refused_by_the_program(make_contents, tmp_path):
    model = saved_and_loaded(SuperModel(make_contents("only"), CPU), tmp_path / "model.pt2")
    for shape in ((2, 1, 48, 32), (1, 32, 32), (2, 3, 32, 32)):
        with pytest.raises((AssertionError, RuntimeError, ValueError)):
            model(torch.zeros(shape))


def test_a_file_says_its_version_and_its_fingerprint(make_contents, tmp_path):
    super_model = SuperModel(make_contents("mean"), CPU)
    save(to_program(super_model), tmp_path / "model.pt2", super_model.contents, "f1")
    found = {ABOUT: ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=found)
    about = json.loads(found[ABOUT])
    assert about["silofl"] == __version__ and about["fingerprint"] == "f1"
    assert about["members"] == ["north", "south"] and about["image_shape"] == [1, 32, 32]
    assert about["labels"] == {"1": "organ", "2": "lesion"}


def test_a_program_is_made_and_read_without_a_warning(make_contents, tmp_path):
    super_model = SuperModel(make_contents(), CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved_and_loaded(super_model, tmp_path / "model.pt2")


def test_a_network_that_cannot_be_exported_is_refused_in_one_sentence(make_contents):
    class Looks(torch.nn.Module):
        def forward(self, images):
            return images if images.sum() > 0 else -images

    super_model = SuperModel(make_contents("only"), CPU)
    super_model._models["global"] = Looks()
    with pytest.raises(ConfigError, match="unet must be a network that torch.export takes; it is not"):
        to_program(super_model)
