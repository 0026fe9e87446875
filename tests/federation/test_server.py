import numpy as np
import pytest

from silofl.errors import ConfigError
from silofl.federation.server import ServerRounds
from silofl.parts.task import TEST, TRAIN, VALIDATE, Exchange
from silofl.software import read_software

from ..conftest import assert_alike

FIRST = {"run": "run", "round": 1, "step": 1, "best_round": None, "held": 0}
SOFTWARE = {"software": read_software().model_dump()}
SCORE = {"value": 0.5, "num_cases": 2, "num_excluded": 0}


def validating(*values):
    """Return a change by which the rounds validate with these values, one after the other; None is no validation."""

    def change(task, site, answer):
        number = answer.meta["round"] - (task == "train")
        if task not in ("train", "validate") or number < 1:
            return answer
        value = values[number - 1]
        answer.meta["metrics"]["validation"] = None if value is None else SCORE | {"value": value}
        return answer

    return change


def test_all_sites_start_from_the_same_model_drawn_from_the_seed(make_study):
    first, again, other = (ServerRounds.start(make_study(seed=seed), "run", ["a", "b"]) for seed in (1, 1, 2))
    tasks = [[server.task(site, Exchange(TRAIN, 1)).arrays for site in "ab"] for server in (first, again, other)]
    assert_alike(tasks[0][0], tasks[0][1])
    assert_alike(tasks[0][0], tasks[1][0])
    name = "model/network.model.0.conv.weight"
    assert not np.array_equal(tasks[0][0][name], tasks[2][0][name])


def test_sites_are_in_the_order_of_their_names_whatever_order_they_came_in(make_study):
    assert ServerRounds.start(make_study(), "run", ["b", "c", "a"]).sites == ["a", "b", "c"]


def test_a_task_says_its_run_and_round_the_best_round_and_the_state_to_begin_from(play):
    game = play()
    first = FIRST | {"digest": game.study.digest}
    assert game.upcoming("train")["east"].meta == first | SOFTWARE
    game.rounds(2)
    assert game.upcoming("train")["east"].meta == first | {"round": 3, "best_round": 1, "held": 2}
    game.resume()
    assert game.upcoming("train")["east"].meta == first | SOFTWARE | {"round": 3, "best_round": 1, "held": 2}


@pytest.mark.parametrize("name", ["model", "amplitude"])
def test_a_site_that_is_called_as_something_that_travels_is_refused(make_study, name):
    with pytest.raises(ConfigError, match=f"a site must not be called '{name}'.*give it another name"):
        ServerRounds.start(make_study(name="harmofl"), "run", ["a", name])


@pytest.mark.parametrize("site", ["global", "personal", "selector", "super_model"])
def test_a_site_that_joins_under_such_a_name_is_refused_too(play, site):
    game = play(name="fedsm", model={"normalization": "instance"})
    with pytest.raises(ConfigError, match=f"a site must not be called '{site}'"):
        game.server.join(site)


@pytest.mark.parametrize("guard", [False, True])
def test_a_site_that_joins_late_is_asked_from_then_on_and_has_the_shared_model(play, guard):
    game, late = play(sites=("east", "west"), guard=guard), play(sites=("north",), folder="late", guard=guard)
    game.rounds(1)
    game.server.join("north")
    game.sites["north"] = late.sites["north"]
    assert game.server.sites == ["east", "north", "west"]
    tasks = game.upcoming("train")
    assert_alike(tasks["north"].arrays, tasks["east"].arrays)
    assert game.round().answered == ["east", "north", "west"]


def test_examples_weigh_by_default_and_a_study_may_have_all_sites_weigh_the_same(play):
    by_examples, uniform = play(), play(folder="uniform", weights="uniform")
    # 5, 4 and 3 training images
    assert by_examples.round().weights["west"] == pytest.approx({"east": 5 / 12, "north": 4 / 12, "west": 3 / 12})
    assert uniform.round().weights["west"] == pytest.approx(dict.fromkeys(("east", "north", "west"), 1 / 3))


def test_the_first_site_tells_the_server_the_size_of_the_images(play):
    game = play()
    assert game.server.image_shape is None
    game.round()
    assert game.server.image_shape == (1, 32, 32)


# --- the best round


def test_the_best_round_is_the_one_that_validates_best_and_its_model_is_kept(play):
    game = play(rounds=3)
    game.rounds(2)
    second = game.models("east")
    game.finish(change=validating(0.1, 0.9, 0.5))
    assert game.server.best_round == game.server.reported.round == 2
    assert [record.validation_mean for record in game.server.ledger[1:]] == [0.9, 0.5]
    reported = game.server.reported.parts["model"].common
    assert_alike({f"model/{name}": array for name, array in reported.items()}, second)
    assert_alike(game.sent["test"]["east"].of("model"), reported)


def test_among_equals_the_first_round_is_the_best(play):
    game = play(rounds=3)
    game.finish(change=validating(0.5, 0.5, 0.5))
    assert game.server.best_round == 1


def test_the_best_round_of_real_scores_has_the_highest_mean(play):
    game = play(rounds=3)
    game.finish()
    means = [record.validation_mean for record in game.server.ledger]
    assert game.server.best_round == 1 + means.index(max(means))


def test_a_site_that_goes_for_good_does_not_freeze_the_best_round(play):
    game = play(rounds=4)
    game.rounds(2, change=validating(0.3))
    game.finish(absent=("north", "west"), change=validating(0.3, 0.6, 0.9, 0.7))
    assert [len(record.validated) for record in game.server.ledger] == [3, 1, 1, 1]
    assert game.server.best_round == 3


def test_without_validation_the_last_round_is_reported(play):
    game = play(rounds=2)
    game.finish(change=validating(None, None))
    assert game.server.best_round is None and game.server.reported.round == 2
    assert game.server.best_parts == {} and game.server.reported.parts == game.server.parts


def test_what_does_not_follow_the_best_round_is_reported_as_it_is_last(play):
    game = play(name="harmofl", preset="paper", rounds=2)
    game.finish(change=validating(0.9, 0.1))
    assert game.server.best_parts.keys() == {"model"}
    assert game.server.reported.parts["amplitude"] is game.server.parts["amplitude"]


@pytest.mark.parametrize("task", [VALIDATE, TEST])
def test_only_the_evaluation_of_the_best_round_takes_its_models(play, task):
    game = play(rounds=2)
    game.finish(change=validating(0.9, 0.1))
    server, name = game.server, "network.model.0.conv.weight"
    best, last = (server.task("east", Exchange(task, number, models_round=number)).of("model") for number in (1, 2))
    np.testing.assert_array_equal(best[name], server.best_parts["model"].common[name])
    np.testing.assert_array_equal(last[name], server.parts["model"].common[name])
    assert not np.array_equal(best[name], last[name])
