"""Local training: each site reports its own best round, and its number is that of the guard's own model."""

from itertools import count

import pytest

from silofl.federation.outcome import finished_results
from silofl.inference import SuperModel
from silofl.training import local_model
from silofl.training.metrics import Score

from ..conftest import assert_alike
from .conftest import COUNTS

pytestmark = pytest.mark.long

SITES = tuple(COUNTS)
SEEDS = count(500)


@pytest.fixture(autouse=True)
def trained_to_its_end(monkeypatch):
    """Let every federated model be finished, and the local ones learn in few rounds more."""
    monkeypatch.setattr("silofl.federation.server.measure_last_rise", lambda ledger, patience: 0.0)
    monkeypatch.setattr(local_model, "MOST_ROUNDS", 12)


def forget(data):
    """Remove what runs have left to one another."""
    for path in data.glob(".cache/*/local-*.pt"):
        path.unlink()


def finish(game):
    return finished_results(game.server, game.finish())


def state_of_test(game, site):
    (state,) = SuperModel.load(game.folder(site) / "supermodel", "cpu").contents.models.values()
    return state


def test_each_site_reports_its_own_best_round(play):
    game = play(name="local", seed=3, rounds=4, training={"learning_rate": 0.05})
    states = {}
    for number in range(1, 5):
        game.round()
        states[number] = {site: game.kept(site, number)["models"]["home"] for site in SITES}
    found = finish(game)
    for site in SITES:
        values = {record.round: record.validation[site].value for record in game.server.ledger}
        best = max(values, key=lambda number: (values[number], number))
        own = found.local_models[site]
        assert (own.rounds, own.best_round, own.is_finished) == (4, best, False)
        assert found.validation[site].value == values[best]
        assert_alike({f"model/{name}": value for name, value in state_of_test(game, site).items()}, states[best][site])
    assert len({own.best_round for own in found.local_models.values()}) > 1
    assert found.best_round is None and found.model == "of each site its own best round on its own validation data"


@pytest.mark.parametrize(
    "names",
    [("local", "fedavg"), ("fedavg", "local")],
    ids=["local first", "the guard first"],
)
def test_local_training_goes_on_as_the_guards_own_model(play, names):
    options = {"baseline_comparison": True, "seed": next(SEEDS), "federation": {"patience": 3}}
    games, results = {}, {}
    for name in names:
        games[name] = play(name=name, folder=name, **options)
        results[name] = finish(games[name])
    # What the second run needs beyond the rounds, the first has left.
    assert [games[name].asked.count("guard_train") > 1 for name in names] == [True, False]
    (guarded,) = {*names} - {"local"}
    for site, one in results[guarded].joining.items():
        own = results["local"].local_models[site]
        assert results["local"].values[site] == one.test["local_uncalibrated"]
        assert (own.rounds, own.best_round) == (one.local_rounds, one.local_best_round) and own.rounds > 3
        states = [game.kept(site, 3)["guard"]["local"]["best"]["state"] for game in games.values()]
        assert_alike(*states)
        assert_alike(state_of_test(games["local"], site), states[0])


def test_without_the_guard_it_learns_in_the_studys_rounds(play):
    for options in (
        {},
        {"baseline_comparison": True, "step": "harmofl"},
        {"baseline_comparison": True, "input": "harmofl"},
    ):
        game = play(name="local", folder=f"state {len(options)} {options.get('step')}", rounds=2, **options)
        found = finish(game)
        assert "guard_train" not in game.asked
        assert {own.rounds for own in found.local_models.values()} == {2}


def test_a_local_run_that_is_taken_up_reports_the_same(play, monkeypatch):
    monkeypatch.setattr(local_model, "evaluate", lambda *_: (None, Score.of({"a": 0.5})))
    seed = next(SEEDS)
    straight, broken = (
        play(name="local", baseline_comparison=True, seed=seed, folder=folder, rounds=2) for folder in "ab"
    )
    whole = finish(straight)
    forget(straight.settings.data_folder("small", "east").parent)
    broken.round()
    broken.resume()
    again = finish(broken)
    assert (again.sites, again.local_models) == (whole.sites, whole.local_models)
