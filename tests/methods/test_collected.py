"""FedSM with another personalisation in SoftPull's place: the personal models travel once, in the end."""

import numpy as np
import pytest

from silofl.errors import ConfigError
from silofl.federation.egress import Gate, Request
from silofl.methods.part import COLLECT
from silofl.methods.super_model import ASSEMBLE, TEST
from silofl.models.roles import with_role
from silofl.site import Site
from silofl.studies.methods import algorithm_of
from silofl.studies.traffic import count_traffic

SITES = ("east", "north", "west")
SGD = {"optimizer": "sgd", "momentum": 0.0, "batch_size": 2, "learning_rate": 0.05}
NAMES = ("ditto", "apfl", "pfedme")


@pytest.fixture
def inside(play):
    """Begin a run of an algorithm with a personal model inside FedSM."""

    def start(name="ditto", folder="inside", **options):
        return play(folder=folder, training=SGD, **algorithm_of(f"fedsm-{name}"), **options)

    return start


def models_of(game):
    return game.server.parts["super_model"].contents(game.server).models


def assert_equal(left, right):
    for name, value in right.items():
        np.testing.assert_array_equal(np.asarray(left[name]), np.asarray(value), err_msg=name)


def collected(game, site):
    return game.answers[COLLECT][site].of("collected")


@pytest.mark.parametrize("name", NAMES)
def test_the_super_model_holds_the_very_models_of_the_algorithm_alone(inside, play, name):
    game, alone = inside(name, rounds=2), play(folder="alone", training=SGD, rounds=2, name=name)
    game.finish()
    alone.rounds(2)
    states = models_of(game)
    assert list(states) == ["global", *SITES]
    # one round may be better than the other in one run alone: what is compared is the last one's
    assert_equal(game.server.parts["global"].common, alone.server.parts["global"].common)
    for site in SITES:
        assert_equal(states[site], collected(game, site))
        kept, of_alone = (one.kept(site, 2)["models"]["home"] for one in (game, alone))
        own = {key: value for key, value in of_alone.items() if key.startswith("personal/")}
        assert own and all(np.array_equal(kept[key], value) for key, value in own.items())


def test_what_is_collected_is_the_personal_model_of_the_reported_round(inside):
    game = inside(rounds=3)
    game.finish()
    number = game.server.reported.round
    for site in SITES:
        home = with_role("personal", collected(game, site))
        assert_equal(game.kept(site, number)["models"]["home"], home)
        other = game.kept(site, 3 if number < 3 else 2)["models"]["home"] if number < 3 else None
        assert other is None or any(not np.array_equal(other[key], home[key]) for key in home)


def test_it_is_asked_for_once_and_before_the_super_model_is_assembled(inside):
    game = inside(rounds=2)
    game.finish()
    assert game.asked.count(COLLECT) == 1
    assert game.asked.index(COLLECT) < game.asked.index(ASSEMBLE) < game.asked.index(TEST)
    # every other answer holds nothing of a personal model
    for task, answers in game.answers.items():
        names = {name.partition("/")[0] for answer in answers.values() for name in answer.arrays}
        assert ("collected" in names) == (task == COLLECT) and "personal" not in names


def test_the_global_model_answers_for_a_site_whose_own_did_not_come(inside):
    game = inside(rounds=1)

    def refuse(task, site, answer):
        return answer.failed("it may not leave") if (task, site) == (COLLECT, "north") else answer

    game.finish(change=refuse)
    states = models_of(game)
    assert_equal(states["north"], states["global"])
    said = "site 'north' sent no personal model, and the global one answers in its place: it may not leave"
    assert said in game.warnings
    assert_equal(states["east"], collected(game, "east"))


def test_an_array_of_another_shape_costs_the_model(inside):
    game = inside(rounds=1)

    def cut(task, site, answer):
        if (task, site) == (COLLECT, "west"):
            name = next(iter(answer.arrays))
            answer.arrays[name] = answer.arrays[name][..., :1]
        return answer

    game.finish(change=cut)
    (note,) = [warning for warning in game.warnings if "sent no personal model" in warning]
    assert "'west'" in note and "shape" in note
    states = models_of(game)
    assert_equal(states["west"], states["global"])


def test_a_resumed_run_asks_once_more(inside):
    game = inside(rounds=1)
    game.finish()
    before = models_of(game)
    game.resume()
    assert game.server.parts["collected"].received == {}
    game.finish()
    for site in SITES:
        assert_equal(models_of(game)[site], before[site])


def test_a_site_may_keep_its_personal_model(inside, tmp_path):
    game = inside(rounds=1)
    game.finish()
    message = game.answers[COLLECT]["east"]
    request = Request(COLLECT, "run", 1)
    assert Gate.of(game.study, Site(data="d", state_dir=str(tmp_path))).refusal(request, message) is None
    kinds = ["weights", "batchnorm", "selector"]
    gate = Gate.of(game.study, Site(data="d", state_dir=str(tmp_path), may_leave=kinds))
    assert "not personal_model" in gate.refusal(request, message)


def test_the_estimate_counts_the_models_that_travel_once(inside):
    game = inside(rounds=1)
    game.finish()
    size = game.answers[COLLECT]["east"].num_bytes
    traffic = count_traffic(game.study, 3, (1, 32, 32))
    assert size > 0 and traffic.finish_bytes_from == size
    assert traffic.bytes_from == [game.answers["train"]["east"].num_bytes]


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ({"name": "fedavg", "parts": ["fedsm"]}, "with an algorithm that keeps a personal model at each site"),
        ({"name": "ditto", "parts": ["ditto", "apfl", "fedsm"]}, "one algorithm with a personal model"),
        ({"name": "ditto", "parts": ["ditto", "fedsm"], "mixing": "softpull"}, "mixing must be shared"),
        ({"name": "ditto", "parts": ["ditto", "fedsm"], "selector": {"labels": "best_model"}}, "extra_rounds"),
    ],
)
def test_what_does_not_go_together_is_refused(play, algorithm, sentence):
    with pytest.raises(ConfigError, match=sentence):
        play(**algorithm)
