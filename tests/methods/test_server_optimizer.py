import numpy as np
import pytest

from silofl.algorithms.fedopt import server_update


@pytest.fixture
def fedopt(play):
    def start(folder="state", rounds=3, **constants):
        return play(folder=folder, name="fedopt", rounds=rounds, server_optimizer=constants)

    return start


def parameters_of(game):
    part = game.server.parts["model"]
    return {name: array for name, array in part.common.items() if name not in part.buffers}


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad", "momentum"])
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


def test_momentum_of_zero_and_rate_one_is_fedavg(fedopt, play):
    ours, plain = fedopt(rule="momentum", momentum=0.0, learning_rate=1.0), play(folder="plain")
    ours.rounds(2), plain.rounds(2)
    for name, array in plain.models("east").items():
        np.testing.assert_allclose(ours.models("east")[name], array, rtol=1e-4, atol=1e-6)


def test_a_run_goes_on_from_its_checkpoint_with_the_same_moments(fedopt):
    whole, halved = fedopt(), fedopt(folder="other")
    halved.goes_on_as(whole)


def test_nothing_travels_for_it(fedopt, play):
    ours, plain = fedopt(), play(folder="plain")
    assert ours.round().bytes_to == plain.round().bytes_to
    assert ours.server.ledger[0].bytes_from == plain.server.ledger[0].bytes_from


def test_a_variance_never_turns_negative(fedopt):
    game = fedopt(rule="momentum", momentum=0.9, learning_rate=1.0)
    game.rounds(3)
    variances = [array for name, array in game.server.parts["model"].common.items() if name.endswith("running_var")]
    assert variances and all((array >= 0).all() for array in variances)
