"""What a lead learns of a hospital that lets no number of few patients leave: three, where all have two to validate."""

from dataclasses import replace

import pytest

from silofl.federation.egress import Gate, Request
from silofl.federation.outcome import finished_results
from silofl.parts.task import Message

HIDDEN = {"value": None, "num_cases": 0, "num_excluded": 0, "withheld": {"least": 3}}


def let_three_speak(game, *sites):
    """Give some sites a floor that their two validation and test patients are below."""
    for site in sites:
        game.sites[site].site = game.settings.model_copy(update={"min_patients": 3})


def test_withheld_validation_has_no_vote_and_is_named(play):
    game = play(name="fedbn")
    let_three_speak(game, "west")
    tests = game.finish()
    assert game.answers["validate"]["west"].meta["metrics"]["validation"] == HIDDEN
    assert all(record.validated.keys() == {"east", "north"} for record in game.server.ledger)
    results = finished_results(game.server, tests)
    assert results.values["west"] is None and results.values["east"] is not None
    assert results.tests["west"].is_withheld and results.status == "COMPLETE"


@pytest.mark.parametrize("key", ["num_patients", "label_cases"])
def test_gate_lets_no_score_of_few_patients_out(play, key):
    game = play(name="fedavg", rounds=1)
    game.finish()
    answer = game.answers["test"]["east"]
    test = dict(answer.meta["metrics"]["test"])
    numbers = {"num_cases": 9, "num_patients": 9} | {key: {"1": 2} if key == "label_cases" else 2}
    forged = replace(answer, meta=answer.meta | {"metrics": {"test": test | numbers}})
    gate = Gate.of(game.study, game.settings.model_copy(update={"min_patients": 3}))
    bare = Message(meta=forged.meta)
    assert gate.refusal(Request("test", "run", 1), bare) == (
        "the site lets a score leave only of 3 patients or more; it has fewer"
    )
