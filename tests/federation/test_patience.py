"""A run that ends early: after which round, with which result, and the same after every stop."""

import pytest

from silofl.federation.outcome import finished_results

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


def test_run_ends_once_its_patience_is_over(play):
    game = play(**PATIENT)
    tests = game.finish(change=scoring(VALUES))
    assert game.asked == [*["train"] * 4, "validate", "test"] and tests.scores.keys() == {"east", "west"}
    results = finished_results(game.server, tests)
    assert (results.status, results.best_round) == ("COMPLETE", 4)
    assert results.ended_early == (
        "training ended after round 4 of 9 by federation.patience: none of its last 2 rounds raised the sites' "
        "validation by more than 0.005, the median of their changes"
    )


def test_better_last_round_lets_the_run_go_on(play):
    game = play(**PATIENT)
    # Rounds 3 and 4 would be the end, but 4 rises by .1; rounds 5 and 6 do not.
    game.finish(change=scoring([0.3, 0.5, 0.4, 0.6, 0.6, 0.6]))
    assert game.asked == [*["train"] * 4, "validate", *["train"] * 2, "validate", "test"]
    assert game.server.finished_rounds == 6


def test_rounds_with_one_shared_model_do_not_count(play):
    statistics = {"source": "running", "rounds": 2}
    game = play(**PATIENT | {"federation": {"patience": 1}}, name="adafed", statistics=statistics)
    game.finish(change=scoring([0.5, *[0.4] * 8]))
    # round 1 is the best; of the rounds after the second, the third is the last
    assert game.server.finished_rounds == 3


INSTANCE = {"normalization": "instance"}
EXTRA = {
    "fine-tuning": {"name": "finetuning"},
    "after own models": {"name": "adafed", "statistics": {"source": "running", "rounds": 1}},
    "a selector": {"name": "fedsm", "selector": {"learning": "local_steps", "labels": "best_model"}, "model": INSTANCE},
}


def models_of(game):
    """Return all arrays that the server has of a run in the end."""
    selector = game.server.parts["selector"].parameters if "selector" in game.server.parts else {}
    models = {site: game.models(site) for site in game.sites}
    return selector | {f"{site}/{name}": array for site, own in models.items() for name, array in own.items()}


@pytest.mark.parametrize("name", EXTRA)
def test_extra_rounds_follow_the_early_end(play, name):
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
