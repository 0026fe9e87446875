import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.harmofl import AmplitudeNorm, drift, mean_amplitude, perturbed_step
from silofl.algorithms.harmofl.amplitude import amplitude_level, find_outlying_levels
from silofl.base.errors import ConfigError, TrainingError
from silofl.core.steps import plain_step, squared_distance
from silofl.training.loop import set_learning_rate

PRECISIONS = [(torch.float64, 1e-6), (torch.float32, 1e-4)]


def close(actual, expected, rtol):
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize(("dtype", "rtol"), PRECISIONS)
@pytest.mark.parametrize(("band", "key"), [("full", "full"), (0, "dc")])
def test_training_follows_the_reference_over_three_batches(vectors, dtype, rtol, band, key):
    v = vectors("amplitude_norm")
    norm = AmplitudeNorm((2, 16, 12), momentum=float(v["momentum"]), band=band).to(dtype)
    for i, batch in enumerate(torch.from_numpy(v["batches"]).to(dtype)):
        close(norm(batch), v[f"{key}_{i}"], rtol)
        close(norm.running_amplitude, v[f"running_{i}"], rtol)


@pytest.mark.parametrize(("dtype", "rtol"), PRECISIONS)
def test_fixed_amplitude_follows_the_reference(vectors, dtype, rtol):
    v = vectors("amplitude_norm")
    amplitude = mean_amplitude(v["site_amplitudes"])
    close(amplitude, v["global_amplitude"], 1e-12)
    for band, key in (("full", "fixed_full"), (int(v["radius"]), "fixed_radius")):
        norm = AmplitudeNorm((2, 16, 12), band=band).to(dtype)
        norm.fix(amplitude)
        close(norm(torch.from_numpy(v["fixed_input"]).to(dtype)), v[key], rtol)


@pytest.mark.parametrize(("dtype", "rtol"), PRECISIONS)
def test_volumes_follow_the_reference(vectors, dtype, rtol):
    v = vectors("amplitude_norm")
    norm = AmplitudeNorm((1, 6, 8, 10)).to(dtype)
    close(norm(torch.from_numpy(v["volumes"]).to(dtype)), v["volume_full"], rtol)
    close(norm.running_amplitude, v["volume_running"], rtol)


def test_band_zero_sets_every_image_to_the_running_mean_intensity():
    norm = AmplitudeNorm((1, 4, 4), band=0)
    out = norm(torch.stack([torch.full((1, 4, 4), 1.0), torch.full((1, 4, 4), 3.0)]))
    # the amplitude at frequency 0 is 16 * mean: (16 + 48) / 2 = 32, so every image gets mean 2
    torch.testing.assert_close(out, torch.full((2, 1, 4, 4), 2.0))


def test_an_image_of_one_value_has_phase_zero():
    norm = AmplitudeNorm((1, 4, 4))
    norm.fix(np.ones((1, 4, 3)))
    # every bin 1 with phase 0 is a unit impulse at the origin
    impulse = torch.zeros(1, 1, 4, 4)
    impulse[0, 0, 0, 0] = 1
    torch.testing.assert_close(norm(torch.full((1, 1, 4, 4), 7.0)), impulse)


def test_a_blank_first_batch_counts_like_any_other():
    norm, images = AmplitudeNorm((1, 8, 8), momentum=0.25), torch.rand(2, 1, 8, 8)
    assert torch.isfinite(norm(torch.zeros(2, 1, 8, 8))).all()
    assert norm.is_known and not norm.running_amplitude.any()
    norm(images)
    # 0.75 * 0 of the blank batch + 0.25 * the mean amplitude of the second
    mean = torch.fft.rfft2(images).abs().mean(dim=0)
    torch.testing.assert_close(norm.running_amplitude, 0.25 * mean)


def test_a_fixed_amplitude_stays_and_is_in_the_state():
    norm = AmplitudeNorm((1, 8, 8))
    norm.fix(np.full((1, 8, 5), 2.0))
    norm.train()(torch.rand(2, 1, 8, 8))
    assert (norm.running_amplitude == 2).all()
    copy = AmplitudeNorm((1, 8, 8))
    copy.load_state_dict(norm.state_dict())
    assert copy.is_fixed and (copy.running_amplitude == 2).all()


def test_evaluation_changes_neither_the_amplitude_nor_the_callers_images():
    norm, images = AmplitudeNorm((1, 8, 8)), torch.rand(2, 1, 8, 8)
    before = images.clone()
    norm(images)
    running = norm.running_amplitude.clone()
    norm.eval()(images + 1)
    assert torch.equal(norm.running_amplitude, running) and torch.equal(images, before)


def test_autocast_keeps_float32():
    with torch.autocast("cpu", torch.bfloat16):
        out = AmplitudeNorm((1, 8, 8))(torch.rand(2, 1, 8, 8))
    assert out.dtype == torch.float32
    assert AmplitudeNorm((1, 8, 8))(torch.rand(2, 1, 8, 8).bfloat16()).dtype == torch.float32


def test_another_size_and_evaluation_without_an_amplitude_are_refused():
    with pytest.raises(TrainingError, match=r"images of \(1, 9, 8\) .* the amplitude, \(1, 8, 8\)"):
        AmplitudeNorm((1, 8, 8))(torch.rand(1, 1, 9, 8))
    with pytest.raises(TrainingError, match="no amplitude"):
        AmplitudeNorm((1, 8, 8)).eval()(torch.rand(1, 1, 8, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (8, 8)}, "shape must be"),
        ({"shape": (1, 0, 8)}, "at least 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        AmplitudeNorm(**arguments)


# --- the perturbed step


@pytest.mark.parametrize(("dtype", "rtol"), PRECISIONS)
def test_perturbed_step_follows_the_reference(vectors, dtype, rtol):
    v = vectors("weight_perturbation")
    alpha, learning_rate, momentum, weight_decay = v["hyper"].tolist()
    model = nn.Linear(4, 2).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(v["w0"].T))
        model.bias.copy_(torch.from_numpy(v["b0"]))
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=momentum, weight_decay=weight_decay)
    step = perturbed_step(alpha)
    for i in range(4):
        batch = torch.from_numpy(v["x"][i]).to(dtype), torch.from_numpy(v["y"][i]).to(dtype)
        step(model, optimizer, nn.functional.mse_loss, batch)
        close(model.weight.detach().T, v[f"w{i + 1}"], rtol)
        close(model.bias.detach(), v[f"b{i + 1}"], rtol)


def small_network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        AmplitudeNorm((1, 8, 8)),
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(144, 2),
    )


def batch_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(4, 1, 8, 8, generator=generator), torch.randint(2, (4,), generator=generator)


def stepped(step, rate=0.1, falls_to=None):
    """Return a network after one step."""
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    if falls_to:
        set_learning_rate(optimizer, falls_to)
    torch.manual_seed(5)
    return model, step(model, optimizer, nn.functional.cross_entropy, batch_of(1))


def test_a_perturbation_that_follows_the_rate_falls_in_its_proportion():
    steps = perturbed_step(0.4, follows_rate=True), perturbed_step(0.1)
    (left, _), (right, _) = (stepped(step, 0.2, falls_to=0.05) for step in steps)
    torch.testing.assert_close(left.state_dict(), right.state_dict())


def test_statistics_move_once_and_the_loss_is_at_theta():
    (perturbed, loss), (plain, wanted) = stepped(perturbed_step(0.5)), stepped(plain_step)
    assert loss == wanted
    for (name, left), right in zip(perturbed.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(left, right), name
    assert perturbed[2].momentum == 0.1 and perturbed[0].momentum == 0.1


def test_both_passes_of_a_step_draw_the_same_dropout():
    masks = []
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    model[1].register_forward_hook(lambda module, inputs, output: masks.append(output == 0))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    for _ in range(2):
        perturbed_step(0.05)(model, optimizer, nn.functional.mse_loss, (torch.ones(2, 16), torch.zeros(2, 16)))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])


def test_the_direction_is_found_in_full_precision_alone(casting):
    optimizer = torch.optim.SGD(casting.parameters(), 0.1)
    perturbed_step(0.05)(casting, optimizer, nn.functional.mse_loss, (torch.rand(2, 3), torch.zeros(2, 1)))
    assert casting.dtypes == [torch.float32, torch.bfloat16] and casting.is_autocast


def test_learning_rate_zero_restores_the_weights_bit_by_bit():
    model = small_network()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    perturbed_step(0.3)(model, torch.optim.SGD(model.parameters(), 0.0), nn.functional.cross_entropy, batch_of(3))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_drift_is_the_mean_of_the_sites_squared_distances(vectors):
    here = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]
    # 3^2 + 4^2 = 25
    assert squared_distance(here, [torch.zeros(2), torch.zeros(1)]) == 25
    assert drift([[[3, 0, 4]]], [0, 0, 0]) == 25
    v = vectors("server_rules")
    np.testing.assert_allclose(drift(v["drift_trajectory"], v["global"]), v["drift"], rtol=1e-12)


# --- levels of amplitudes


def test_the_level_is_near_the_root_mean_square():
    def level(image):
        return amplitude_level(np.abs(np.fft.rfftn(image, axes=(1, 2))), image.shape[1:])

    assert level(np.full((1, 4, 6), 0.25)) == pytest.approx(0.25)
    image = np.random.default_rng(0).normal(0, 2, (1, 32, 32))
    rms = np.sqrt(np.mean(image**2))
    assert np.sqrt(0.5) * rms < level(image) < rms


LEVELS = {"a": 1.0, "b": 2.0, "c": 10.0}
# As those of the nuclei: three bright sites, four dark ones, none alone.
NUCLEI = {"a": 0.7, "b": 0.55, "c": 0.6, "d": 0.01, "e": 0.012, "f": 0.008, "g": 0.02}
ALIKE = dict.fromkeys("abcdef", 1.0)


@pytest.mark.parametrize(
    ("levels", "min_sites", "odd"),
    [
        (LEVELS, 3, {}),
        (LEVELS | {"c": 10.1}, 3, {"c": pytest.approx(5.05)}),
        (LEVELS | {"c": 0.19}, 3, {"c": pytest.approx(0.19)}),
        (LEVELS | {"c": 0.0}, 3, {"c": 0.0}),
        (NUCLEI, 3, {}),
        (NUCLEI | {"a": 7.0}, 3, {"a": pytest.approx(7 / 0.6)}),
        (ALIKE | {"x": 10.0, "y": 10.0}, 3, {"x": 10.0, "y": 10.0}),
        # of three far apart the farthest, and two are left
        ({"a": 1.0, "b": 10.0, "c": 200.0}, 3, {"c": 20.0}),
        ({"a": 0.0, "b": 0.0, "c": 1.0}, 3, {"c": np.inf}),
        ({"a": 0.0, "b": 0.0, "c": 0.0}, 3, {}),
        ({"a": 1.0, "c": 200.0}, 2, {"a": 1 / 200}),
        ({}, 3, {}),
    ],
)
def test_a_level_far_beyond_all_others_is_odd_either_way(levels, min_sites, odd):
    assert find_outlying_levels(levels, 5.0, min_sites) == odd
