"""A run that ends early: after which round, with which result, and the same after every stop."""

import pytest

from silofl.base.errors import StateError
from silofl.base.schema import dump_record
from silofl.federation.outcome import finished_results
from silofl_desk.report.sentences import early_sentence

from ..conftest import assert_alike

pytestmark = pytest.mark.long


def scoring(values):
    """Let all sites give the models of each round a value of the validation."""

    def change(task, site, answer):
        number = answer.meta["round"] - (task == "train")
        if number > 0 and task in ("train", "validate"):
            score = {"value": values[number - 1], "num_cases": 2, "num_excluded": 0}
            answer.meta["metrics"] = answer.meta["metrics"] | {"validation": score}
        return answer

    return change


SHORT = {"sites": ("east", "west"), "rounds": 3}
PATIENT = SHORT | {"rounds": 9, "federation": {"patience": 2}}
# Of rounds 1 to 4: none is better than 2, with which 4 is level. Round 4 is validated before another one is trained.
VALUES = [0.3, 0.5, 0.4, 0.5]


def test_a_run_ends_after_as_many_rounds_without_a_better_validation_as_it_has_patience(play):
    game = play(**PATIENT)
    tests = game.finish(change=scoring(VALUES))
    assert game.asked == [*["train"] * 4, "validate", "test"] and tests.scores.keys() == {"east", "west"}
    results = finished_results(game.server, tests)
    assert (results.status, results.best_round) == ("COMPLETE", 4)
    assert results.ended_early == (
        "training ended after round 4 of 9 by federation.patience: none of its last 2 rounds raised the sites' "
        "validation by more than 0.005, the median of their changes"
    )
    assert early_sentence(results) == f"T{results.ended_early[1:]}."


def test_more_patience_than_there_are_rounds_changes_nothing(play):
    whole, patient = (play(**SHORT, folder=str(most), federation={"patience": most}) for most in (None, 3))
    results = [finished_results(game.server, game.finish(change=scoring(VALUES))) for game in (whole, patient)]
    assert whole.server.finished_rounds == patient.server.finished_rounds == 3
    assert_alike(whole.models("east"), patient.models("east"))
    assert [one.ended_early for one in results] == [None, None] and "ended_early" not in dump_record(results[0])


def test_a_run_that_was_stopped_ends_where_one_ends_that_never_stopped(play):
    whole = play(folder="whole", **PATIENT)
    whole.finish(change=scoring(VALUES))
    for stop in (3, 4):
        halved = play(folder=f"stopped after {stop}", **PATIENT)
        halved.rounds(stop, change=scoring(VALUES))
        halved.resume()
        halved.finish(change=scoring(VALUES))
        assert halved.server.finished_rounds == whole.server.finished_rounds
        assert halved.server.best_round == whole.server.best_round
        assert_alike(halved.models("east"), whole.models("east"))


def test_a_run_that_seemed_to_end_goes_on_where_its_last_round_is_better(play):
    game = play(**PATIENT)
    # Rounds 3 and 4 would be the end, but 4 rises by .1; rounds 5 and 6 do not.
    game.finish(change=scoring([0.3, 0.5, 0.4, 0.6, 0.6, 0.6]))
    assert game.asked == [*["train"] * 4, "validate", *["train"] * 2, "validate", "test"]
    assert game.server.finished_rounds == 6


def test_a_run_that_was_stopped_after_its_last_validation_trains_no_more(play):
    game, change = play(**PATIENT), scoring(VALUES)
    game.finish(change=change)
    game.resume()
    game.asked.clear()
    game.finish(change=change)
    assert game.asked == ["test"] and game.server.best_round == 4


def test_a_run_goes_on_when_its_lead_has_more_patience(play, make_study):
    game = play(**PATIENT | {"rounds": 6})
    game.finish(change=scoring([*VALUES, 0.1, 0.2]))
    game.take(make_study(rounds=6))
    game.finish(change=scoring([*VALUES, 0.1, 0.2]))
    assert game.server.finished_rounds == 6


def test_more_rounds_do_not_move_an_early_end_and_none_are_had_once_extra_rounds_have_begun(play):
    change = scoring([*VALUES, *[0.5] * 9])
    game = play(**PATIENT)
    game.finish(change=change)
    game.ask_for(12)
    game.finish(change=change)
    assert game.server.finished_rounds == 4
    tuned = play(folder="tuned", **PATIENT, name="finetuning", extra_rounds=1)
    tuned.finish(change=change)
    assert tuned.server.finished_rounds == 5
    with pytest.raises(StateError, match="Run run cannot go on to 12 rounds: its extra rounds have begun"):
        tuned.ask_for(12)


def test_the_rounds_in_which_all_sites_have_the_same_model_do_not_count(play):
    statistics = {"source": "running", "rounds": 2}
    game = play(**PATIENT | {"federation": {"patience": 1}}, name="adafed", statistics=statistics)
    game.finish(change=scoring([0.5, *[0.4] * 8]))
    # round 1 is the best; of the rounds after the second, the third is the last
    assert game.server.finished_rounds == 3


def test_the_guard_chooses_among_the_models_of_a_run_that_ended_early(play):
    game = play(**PATIENT | {"federation": {"patience": 1}}, guard=True)
    game.finish(change=scoring([0.5, 0.4, 0.4]))
    first, last = game.asked[:4], [*dict.fromkeys(game.asked[4:])]
    assert (first, last) == ([*["train"] * 2, "validate", "test"], ["guard_train", "guard_choose"])
    choices = game.server.parts["guard"].choices
    assert choices.keys() == {"east", "west"} and all(one.test["local"] is not None for one in choices.values())


def test_only_runs_of_the_same_patience_share_a_local_model(play, site_data):
    # Nothing is learnt, so all models are trained to their end.
    options = {"sites": ("east", "west"), "rounds": 4, "seed": 91, "guard": True, "training": {"learning_rate": 1e-9}}
    left = [{*site_data.glob(".cache/*/local-*.pt")}]
    for folder, patience in (("hasty", 1), ("patient", 2), ("again", 1)):
        play(folder=folder, federation={"patience": patience}, **options).finish()
        left.append({*site_data.glob(".cache/*/local-*.pt")})
    assert [len(found - left[0]) for found in left] == [0, 2, 4, 4]


INSTANCE = {"normalization": "instance"}
EXTRA = {
    "fine-tuning": {"name": "finetuning"},
    "BatchNorm at home": {"name": "finetuning", "stays_home": "batchnorm"},
    "a personal model": {"name": "finetuning", "parts": ["fedsm"], "model": INSTANCE},
    "after own models": {"name": "adafed", "statistics": {"source": "running", "rounds": 1}},
    "a selector": {"name": "fedsm", "selector": {"learning": "local_steps", "labels": "best_model"}, "model": INSTANCE},
    "an ensemble": {
        "name": "fedsm",
        "selector": {"labels": "ensemble"},
        "super_model": {"answer": "ensemble"},
        "model": INSTANCE,
    },
}


def models_of(game):
    """Return all arrays that the server has of a run in the end."""
    selector = game.server.parts["selector"].parameters if "selector" in game.server.parts else {}
    models = {site: game.models(site) for site in game.sites}
    return selector | {f"{site}/{name}": array for site, own in models.items() for name, array in own.items()}


@pytest.mark.parametrize("name", EXTRA)
def test_extra_rounds_follow_the_early_end_as_they_would_follow_the_last_planned_round(play, name):
    options = EXTRA[name] | {"extra_rounds": 2}
    planned = play(folder="planned", **SHORT | {"rounds": 4}, **options)
    patient = play(folder="patient", **PATIENT, **options)
    stopped = play(folder="stopped", **PATIENT, **options)
    change = scoring([*VALUES, 0.4, 0.4])
    # After the first of the extra rounds the server begins anew, and so do the sites with each task.
    stopped.rounds(5, change=change)
    stopped.resume()
    for game in (planned, patient, stopped):
        tests = game.finish(change=change)
        assert tests.scores.keys() == {"east", "west"} and game.server.finished_rounds == 6
        assert_alike(models_of(game), models_of(planned))
    # The end is known only after one validation more.
    asked = [[task for task in game.asked if task != "validate"] for game in (planned, patient)]
    assert asked[0] == asked[1]
    results = finished_results(patient.server, tests)
    assert results.ended_early.startswith("training ended after round 4 of 9") and results.rounds == 9


def test_extra_rounds_that_have_begun_are_not_taken_back_by_more_patience(play, make_study):
    options = {"name": "finetuning", "extra_rounds": 2}
    game, change = play(**PATIENT, **options), scoring([*VALUES, 0.4, 0.4])
    game.rounds(5, change=change)
    with pytest.raises(StateError, match="its extra rounds have begun"):
        game.ask_for(12)
    game.take(make_study(rounds=9, **options))
    game.finish(change=change)
    assert game.server.finished_rounds == 6


def test_a_run_that_is_asked_for_more_rounds_still_ends_early(play):
    game, change = play(**PATIENT | {"rounds": 3}), scoring(VALUES)
    game.finish(change=change)
    assert game.server.finished_rounds == 3
    game.ask_for(9)
    game.finish(change=change)
    assert game.server.finished_rounds == 4
