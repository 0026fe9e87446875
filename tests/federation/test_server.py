import numpy as np
import pytest

from silofl.base.errors import ConfigError
from silofl.federation.server import ServerRounds
from silofl.parts.task import TEST, TRAIN, VALIDATE, Exchange
from silofl.setup.software import read_software

from ..conftest import assert_alike

FIRST = {"run": "run", "round": 1, "step": 1, "best_round": None, "held": 0}
SOFTWARE = {"software": read_software().model_dump()}
ALL, CONV = ("east", "north", "west"), "network.model.0.conv.weight"
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


def test_all_sites_start_from_one_seeded_model(make_study):
    servers = [ServerRounds.start(make_study(seed=seed), "run", ["a", "b"]) for seed in (1, 1, 2)]
    first, again, other = ([server.task(site, Exchange(TRAIN, 1)).arrays for site in "ab"] for server in servers)
    assert_alike(first[0], first[1])
    assert_alike(first[0], again[0])
    assert not np.array_equal(first[0][f"model/{CONV}"], other[0][f"model/{CONV}"])


def test_task_says_run_round_best_round_and_state(play):
    game = play(("east", "west"))
    first = FIRST | {"digest": game.study.digest, "sites": 2, "partners": ["east", "west"]}
    assert game.upcoming("train")["east"].meta == first | SOFTWARE
    game.rounds(2)
    later = {"round": 3, "best_round": 1, "held": 2, "mixed": [2, 2]}
    assert game.upcoming("train")["east"].meta == first | later
    game.resume()
    assert game.upcoming("train")["east"].meta == first | SOFTWARE | later


@pytest.mark.parametrize("name", ["model", "amplitude"])
def test_site_named_like_a_role_is_refused(make_study, name):
    with pytest.raises(ConfigError, match=f"site '{name}' has the name of a model; give it another one"):
        ServerRounds.start(make_study(name="harmofl"), "run", ["a", name])
    with pytest.raises(ConfigError, match=f"site '{name}' has the name of a model"):
        ServerRounds.start(make_study(name="harmofl"), "run", ["a"]).join(name)


@pytest.mark.parametrize("baseline_comparison", [False, True])
def test_late_site_is_asked_and_has_the_shared_model(play, baseline_comparison):
    game, late = (
        play(("east", "west"), baseline_comparison=baseline_comparison),
        play(("north",), "late", baseline_comparison=baseline_comparison),
    )
    game.round()
    game.server.join("north")
    game.sites["north"] = late.sites["north"]
    assert game.round().answered == ["east", "north", "west"]
    assert_alike(game.sent["train"]["north"].arrays, game.sent["train"]["east"].arrays)


@pytest.mark.parametrize(
    ("options", "weights"),
    # 5, 4 and 3 training images
    [({}, {"east": 5 / 12, "north": 4 / 12, "west": 3 / 12}), ({"weights": "uniform"}, dict.fromkeys(ALL, 1 / 3))],
)
def test_examples_weigh_by_default_or_all_sites_alike(play, monkeypatch, options, weights):
    game, computed, compute = play(**options), [], ServerRounds._weights
    monkeypatch.setattr(ServerRounds, "_weights", lambda *asked: computed.append(asked[1]) or compute(*asked))
    assert game.server.image_shape is None
    assert game.round().weights["west"] == pytest.approx(weights)
    # Once a round.
    assert computed == ["model"]
    # The first answers tell the size of the images.
    assert game.server.image_shape == (1, 32, 32)


# --- the best round


def test_best_round_validates_best_and_its_model_is_kept(play):
    game = play(("east", "west"), rounds=3)
    game.rounds(2)
    second = game.models("east")
    game.finish(change=validating(0.1, 0.9, 0.8))
    assert game.server.best_round == game.server.reported.round == 2
    assert [record.validation_mean for record in game.server.ledger[1:]] == [0.9, 0.8]
    reported = game.server.reported.parts["model"].common
    assert_alike({f"model/{name}": array for name, array in reported.items()}, second)
    assert_alike(game.sent["test"]["east"].of("model"), reported)


def test_without_validation_the_last_round_is_reported(play):
    game = play(("east",), rounds=2)
    game.finish(change=validating(None, None))
    assert game.server.best_round is None and game.server.reported.round == 2
    assert game.server.best_parts == {} and game.server.reported.parts == game.server.parts


def test_only_the_evaluation_of_the_best_round_takes_its_models(play):
    game = play(("east",), rounds=2)
    game.finish(change=validating(0.9, 0.1))
    server = game.server
    for task in (VALIDATE, TEST):
        best, last = (server.task("east", Exchange(task, n, models_round=n)).of("model") for n in (1, 2))
        np.testing.assert_array_equal(best[CONV], server.best_parts["model"].common[CONV])
        np.testing.assert_array_equal(last[CONV], server.parts["model"].common[CONV])
        assert not np.array_equal(best[CONV], last[CONV])
