import numpy as np
import pytest

from silofl.algorithms.fedopt import server_update

from .conftest import KEYS

VARIANTS = {
    "adam": ("adam", {}),
    "adam_corrected": ("adam", {"is_corrected": True}),
    "yogi": ("yogi", {}),
    "adagrad": ("adagrad", {}),
    "momentum": ("momentum", {}),
    "nesterov": ("momentum", {"nesterov": True}),
}


def one(value, dtype=np.float64):
    return {"w": np.array([value], dtype)}


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


@pytest.fixture
def fedopt(play):
    def start(folder="state", rounds=3, **constants):
        return play(folder=folder, name="fedopt", rounds=rounds, fedopt=constants)

    return start


def parameters_of(game):
    part = game.server.parts["model"]
    return {name: array for name, array in part.common.items() if name not in part.buffers}


@pytest.mark.parametrize("rule", ["adam", "momentum"])
def test_the_server_steps_along_the_mean_difference_buffers_are_averaged(fedopt, play, rule):
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
