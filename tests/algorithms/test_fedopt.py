import numpy as np
import pytest
import torch

from silofl.algorithms.fedopt import server_update

from .conftest import KEYS

VARIANTS = {
    "adam": ("adam", {}),
    "adam_corrected": ("adam", {"is_corrected": True}),
    "yogi": ("yogi", {}),
    "adagrad": ("adagrad", {}),
    "momentum": ("momentum", {}),
    "nesterov": ("momentum", {"is_nesterov": True}),
}


def one(value, dtype=np.float64):
    return {"w": np.array([value], dtype)}


def test_the_first_step_of_each_rule_is_that_of_the_formula():
    common = {"learning_rate": 0.1, "beta1": 0.5, "beta2": 0.75, "tau": 0.25}
    # d = 1, v_0 = 1/16: m = 0.5; Adam v = 0.75 / 16 + 0.25 = 0.296875
    adam, _ = server_update("adam", one(2.0), one(1.0), None, **common)
    np.testing.assert_allclose(adam["w"], 2 + 0.1 * 0.5 / (0.296875**0.5 + 0.25))
    # Yogi: v - d^2 < 0, so v = 1/16 + 0.25 = 0.3125
    yogi, _ = server_update("yogi", one(2.0), one(1.0), None, **common)
    np.testing.assert_allclose(yogi["w"], 2 + 0.1 * 0.5 / (0.3125**0.5 + 0.25))
    # Adagrad: m = d, v = 1/16 + 1
    adagrad, _ = server_update("adagrad", one(2.0), one(1.0), None, **common)
    np.testing.assert_allclose(adagrad["w"], 2 + 0.1 * 1 / (1.0625**0.5 + 0.25))


def test_momentum_gathers_differences_without_weakening_them():
    first, state = server_update("momentum", one(0.0), one(1.0), None, learning_rate=1.0, momentum=0.5)
    second, state = server_update("momentum", first, one(1.0), state, learning_rate=1.0, momentum=0.5)
    # u = 1, then 0.5 * 1 + 1
    assert first["w"] == [1.0] and second["w"] == [2.5] and state.steps == 2
    ahead, _ = server_update("momentum", one(0.0), one(1.0), None, learning_rate=1.0, momentum=0.5, is_nesterov=True)
    # d + beta * u
    assert ahead["w"] == [1.5]


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad", "momentum"])
def test_a_parameter_without_a_difference_stays(kind):
    new, _ = server_update(kind, one(3.0), one(0.0), None, learning_rate=1.0)
    assert new["w"] == [3.0]


def test_the_dtype_stays_and_what_is_given_is_not_changed():
    parameters, difference = one(1.0, np.float32), one(0.5, np.float32)
    new, state = server_update("adam", parameters, difference, None, learning_rate=0.1)
    assert new["w"].dtype == state.mean["w"].dtype == state.square["w"].dtype == np.float32
    assert parameters["w"] == [1.0] and difference["w"] == [0.5]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_rule_follows_the_reference(vectors, variant):
    v, (kind, changes) = vectors("baselines/fedopt"), VARIANTS[variant]
    constants = {
        "learning_rate": 1.0 if kind == "momentum" else float(v["hyper_eta"]),
        "beta1": float(v["hyper_beta1"]),
        "beta2": float(v["hyper_beta2"]),
        "tau": float(v["hyper_tau"]),
        "momentum": float(v["hyper_server_momentum"]),
    }
    parameters, state = {key: v[f"init/{key}"] for key in KEYS}, None
    for number in range(3):
        difference = {key: v[f"delta/{key}"][number] for key in KEYS}
        parameters, state = server_update(kind, parameters, difference, state, **constants, **changes)
        for key in KEYS:
            np.testing.assert_allclose(parameters[key], v[f"{variant}.global/{key}"][number], rtol=1e-6)
            np.testing.assert_allclose(state.mean[key], v[f"{variant}.m/{key}"][number], rtol=1e-6, atol=1e-15)
            if kind != "momentum":
                np.testing.assert_allclose(state.square[key], v[f"{variant}.v/{key}"][number], rtol=1e-6, atol=1e-15)


def test_with_corrected_bias_it_is_torchs_adam():
    weight = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.99), eps=1e-3)
    parameters, state = one(1.0), None
    for difference in (0.5, -0.25, 1.0):
        weight.grad = torch.tensor([-difference], dtype=torch.float64)
        optimizer.step()
        parameters, state = server_update(
            "adam", parameters, one(difference), state, learning_rate=0.1, tau=1e-3, is_corrected=True
        )
        np.testing.assert_allclose(parameters["w"], weight.detach().numpy(), rtol=1e-12)


@pytest.fixture
def fedopt(play):
    def start(folder="state", rounds=3, **constants):
        return play(folder=folder, name="fedopt", rounds=rounds, server_optimizer=constants)

    return start


def parameters_of(game):
    part = game.server.parts["model"]
    return {name: array for name, array in part.common.items() if name not in part.buffers}


@pytest.mark.parametrize("rule", ["adam", "momentum"])
def test_the_server_steps_along_the_mean_difference_and_buffers_are_averaged(fedopt, play, rule):
    ours, plain = fedopt(rule=rule, learning_rate=0.1), play(folder="plain")
    start = parameters_of(ours)
    ours.round(), plain.round()
    mixed = parameters_of(plain)
    difference = {name: mixed[name].astype(np.float64) - start[name] for name in start}
    expected, _ = server_update(rule, start, difference, None, learning_rate=0.1)
    for name, array in parameters_of(ours).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-7)
    for name in ours.server.parts["model"].buffers & ours.server.parts["model"].common.keys():
        np.testing.assert_array_equal(ours.server.parts["model"].common[name], plain.server.parts["model"].common[name])


@pytest.mark.parametrize(
    "options",
    [
        {"name": "fedopt", "server_optimizer": {"rule": "momentum", "momentum": 0.9, "learning_rate": 1.0}},
        {"name": "fednova", "training": {"optimizer": "sgd", "learning_rate": 0.02, "local_epochs": 2}},
    ],
    ids=lambda options: options["name"],
)
def test_a_variance_never_turns_negative(play, options):
    game = play(rounds=3, **options)
    game.rounds(3)
    variances = [array for name, array in game.server.parts["model"].common.items() if name.endswith("running_var")]
    assert variances and all((array >= 0).all() for array in variances)
