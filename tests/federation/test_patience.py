"""A run that ends early: after which round, with which result, and the same after every stop."""

from dataclasses import replace

import numpy as np
import pytest

from silofl.federation.course import Course
from silofl.federation.ledger import Round, mark_best, rounds_since_best
from silofl.federation.outcome import finished_results
from silofl.report.sentences import early_sentence
from silofl.schema import dump_record
from silofl.training.site_score import SiteScore


def validated(number, value):
    return Round(number, validation={"a": SiteScore(value=value, num_cases=1, num_excluded=0)})


@pytest.mark.parametrize(
    ("values", "first", "expected"),
    [
        # 0.5 of round 2 is the best; of those after it 3 and 4 are validated, and 5, the last, not yet counted
        ([0.3, 0.5, 0.4, 0.5, 0.9], 0, 2),
        ([0.3, 0.5, 0.4, 0.6, 0.1], 0, 0),
        # round 2 is the best, but only those after round 3 count
        ([0.3, 0.5, 0.4, 0.5, 0.9], 3, 1),
        ([0.3, 0.2], 5, 0),
        ([0.3], 0, 0),
        ([], 0, 0),
    ],
)
def test_the_rounds_since_the_best_one_are_those_that_were_validated(values, first, expected):
    ledger = mark_best([validated(number, value) for number, value in enumerate(values, start=1)])
    assert rounds_since_best(ledger, first) == expected


def test_rounds_without_any_validation_are_no_reason_to_wait():
    assert rounds_since_best([Round(number) for number in range(1, 9)]) == 0


def scoring(values):
    """Let all sites give the models of each round a value of the validation."""

    def change(task, site, answer):
        number = answer.meta["round"] - (task == "train")
        if number > 0 and task in ("train", "validate"):
            score = {"value": values[number - 1], "num_cases": 2, "num_excluded": 0}
            answer.meta["metrics"] = answer.meta["metrics"] | {"validation": score}
        return answer

    return change


# Of rounds 1 to 5: the best is 2, and 3 and 4 are no better, which is known after round 5, the last one.
VALUES = [0.3, 0.5, 0.4, 0.5, 0.1]


def ends_alike(game, other):
    assert game.server.finished_rounds == other.server.finished_rounds
    assert game.server.best_round == other.server.best_round
    for name, array in game.models("east").items():
        np.testing.assert_array_equal(array, other.models("east")[name])


def test_a_run_ends_after_as_many_rounds_without_a_better_validation_as_it_has_patience(play):
    game = play(rounds=9, federation={"patience": 2})
    tests = game.finish(change=scoring(VALUES))
    assert game.asked == [*["train"] * 5, "validate", "test"] and tests.scores.keys() == {"east", "north", "west"}
    results = finished_results(game.server, tests)
    assert (results.status, results.best_round) == ("COMPLETE", 2)
    assert results.ended_early == (
        "the run ended after round 5 of 9 by federation.patience: in the 2 rounds before it validation was not "
        "better than in an earlier one"
    )
    assert early_sentence(results) == f"T{results.ended_early[1:]}."


def test_more_patience_than_there_are_rounds_changes_nothing(play):
    whole, patient = (play(folder=str(i), rounds=3, federation={"patience": i}) for i in (None, 3))
    tests = whole.finish(change=scoring(VALUES)), patient.finish(change=scoring(VALUES))
    ends_alike(whole, patient)
    results = [finished_results(game.server, one) for game, one in zip((whole, patient), tests, strict=True)]
    assert [one.ended_early for one in results] == [None, None] and "ended_early" not in dump_record(results[0])


def test_a_run_that_was_stopped_ends_where_one_ends_that_never_stopped(play):
    whole = play(folder="whole", rounds=9, federation={"patience": 2})
    whole.finish(change=scoring(VALUES))
    for stop in (1, 4, 5):
        halved = play(folder=f"stopped after {stop}", rounds=9, federation={"patience": 2})
        halved.rounds(stop, change=scoring(VALUES))
        halved.resume()
        halved.finish(change=scoring(VALUES))
        ends_alike(halved, whole)


def test_a_run_that_was_stopped_after_its_last_validation_trains_no_more_although_that_was_the_best(play):
    game, change = play(rounds=9, federation={"patience": 2}), scoring([*VALUES[:4], 0.9])
    game.finish(change=change)
    assert (game.server.finished_rounds, game.server.best_round) == (5, 5)
    # As now, and from a checkpoint of an older version, whose rounds say nothing of which were the best.
    for unmarked in ({}, {"is_best": None}):
        game.server.ledger = [replace(record, **unmarked) for record in game.server.ledger]
        game.resume()
        game.asked.clear()
        game.finish(change=change)
        assert game.asked == ["test"] and game.server.best_round == 5


def test_a_run_goes_on_when_its_lead_has_more_patience(play, make_study):
    game = play(rounds=6, federation={"patience": 2})
    game.finish(change=scoring([*VALUES, 0.2]))
    game.take(make_study(rounds=6))
    game.finish(change=scoring([*VALUES, 0.2]))
    assert game.server.finished_rounds == 6


def test_the_rounds_in_which_all_sites_have_the_same_model_do_not_count(play):
    statistics = {"source": "running", "rounds": 4}
    game = play(name="adafed", statistics=statistics, rounds=9, federation={"patience": 1})
    ends = []
    game.change = scoring([0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4])
    Course(game.server, game.ask, save=lambda: ends.append(game.server.finished_rounds)).run()
    # round 1 is the best; of the rounds after the fourth, the fifth is validated in the sixth, which is the last
    assert max(ends) == 6


def test_the_guard_chooses_among_the_models_of_a_run_that_ended_early(play):
    options = {"rounds": 10, "federation": {"patience": 1}, "guard": True}
    game = play(**options)
    game.finish(change=scoring([0.5, 0.4, 0.4]))
    assert game.asked == [*["train"] * 3, "validate", "test", "guard_choose"]
    joined = game.server.parts["guard"].choices
    assert joined.keys() == {"east", "north", "west"} and all(one.test["local"] is not None for one in joined.values())


def test_a_run_that_may_end_early_neither_takes_nor_leaves_a_local_model(play, site_data):
    options = {"rounds": 2, "seed": 91, "guard": True}
    play(folder="patient", federation={"patience": 1}, **options).finish()
    whole, again = play(folder="whole", **options), play(folder="again", federation={"patience": 1}, **options)
    whole.finish(), again.finish()
    assert "is_borrowed" not in whole.kept("east", 2)["guard"]["local"]
    assert "is_borrowed" not in again.kept("east", 2)["guard"]["local"]
