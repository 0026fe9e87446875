import pytest

from silofl.errors import ConfigError
from silofl.federation.outcome import finished_results, without_numbers


def test_a_choice_among_rounds_that_fewer_sites_validated_is_said(play):
    game = play(rounds=2)
    for count in (3, 2):
        game.round()
        sites = list(game.sites)[:count]
        game.server.note_validation({s: {"value": 0.5, "num_cases": 1, "num_excluded": 0} for s in sites})
    assert (
        finished_results(game.server, {}, {}).model
        == "best validation, round 1, among the rounds that 3 sites validated"
    )


def test_a_site_that_missed_a_round_makes_the_run_incomplete(play):
    game = play(rounds=2)
    game.round(absent=("north",))
    game.server.ledger[0].failed["north"] = "no GPU"
    game.round()
    tests = {n: a.meta["metrics"]["test"] for n, a in game.evaluate("test", 2).items()}
    values = finished_results(game.server, tests, {})
    assert values.status == "INCOMPLETE"
    assert list(values.reasons) == ["site north missed rounds [1] (no GPU); the study allows 0"]


def test_a_site_without_a_test_makes_the_run_incomplete_and_its_value_empty(play):
    game = play(rounds=2).all_rounds()
    tests = {n: a.meta["metrics"]["test"] for n, a in game.evaluate("test", 2).items()}
    del tests["west"]
    values = finished_results(game.server, tests, {"west": "an unexpected MemoryError"})
    assert values.status == "INCOMPLETE" and values.sites["west"] is None
    assert "site west did not test the model (an unexpected MemoryError)" in values.reasons


def test_a_test_that_is_none_is_refused_with_its_site(play):
    game = play(rounds=1).all_rounds()
    with pytest.raises(ConfigError, match="the test of site 'east': num_cases must be given; it is missing"):
        finished_results(game.server, {"east": {"value": 0.5}}, {})


def test_a_run_without_numbers_says_what_is_known_of_its_study(make_study):
    failed, unknown = without_numbers(make_study(seed=7), "FAILED", ["no disk"]), without_numbers("x", "UNFINISHED")
    assert (failed.status, failed.reasons, failed.seed, failed.sites) == ("FAILED", ("no disk",), 7, {})
    assert (unknown.study, unknown.seed, unknown.is_finished) == ("x", None, False)
