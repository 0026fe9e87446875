"""Models that are made for single sites tell each site's update; they leave only where all of these sites let them."""

import numpy as np
import pytest

from silofl.models.roles import select_role
from silofl.parts.model import ModelPart
from silofl.parts.task import Message
from silofl.setup.site import Site

SITES = ("east", "north", "west")
FEDSM = {"name": "fedsm", "model": {"normalization": "instance"}}
METHODS = [
    {"name": "adafed"},
    {"name": "softpull", "softpull": {"self_weight": 1.0}},
    {"name": "finetuning", "extra_rounds": 1},
]


def sharing(*sites):
    """Return a change by which these sites let personalised models leave, and no others do."""

    def change(task, site, answer):
        return (
            answer if "error" in answer.meta else Message(answer.arrays, answer.meta | {"shares_models": site in sites})
        )

    return change


def list_delivered(game, tests):
    """Return role -> the names of the models that a lead downloads, of files and of the super model."""
    outcomes = {role: part.outcome(game.server, tests.scores) for role, part in game.server.reported.parts.items()}
    names = {role: sorted(outcome.models) for role, outcome in outcomes.items() if outcome.models}
    contents = [made for outcome in outcomes.values() if (made := outcome.make_contents())]
    return names | ({"super model": sorted(contents[0].models)} if contents else {})


@pytest.mark.parametrize("options", METHODS)
def test_own_models_stay_where_a_share_is_kept(play, options):
    game = play(rounds=2, **options)
    tests = game.finish(change=sharing("east", "north"))
    assert list_delivered(game, tests) == {}
    notes = [note for record in game.server.ledger for note in record.notes if "personalised model stays" in note]
    assert notes == [
        "each site's personalised model stays with it; personal_model is missing in may_leave of site.yaml at west"
    ]
    # Each site tests and keeps its own all the same.
    assert tests.scores.keys() == {*SITES}


@pytest.mark.parametrize("options", METHODS)
def test_models_of_single_sites_leave_where_all_let_them(play, options):
    game = play(rounds=2, **options)
    tests = game.finish(change=sharing(*SITES))
    assert {name for names in list_delivered(game, tests).values() for name in names} >= {*SITES}


@pytest.mark.parametrize("variant", [{}, {"extra_rounds": 1, "selector": {"labels": "best_model"}}])
def test_fedsm_delivers_global_model_and_own_rows(play, variant):
    game = play(rounds=2, **FEDSM, **variant)
    tests = game.finish(change=sharing("north", "west"))
    assert list_delivered(game, tests) == {"global": [""]}
    task = "assemble" if "assemble" in game.sent else "test_super_model"
    for site in SITES:
        sent = select_role("super_model", game.sent[task][site].arrays)
        shared = select_role("global", sent)
        for other in SITES:
            row = select_role(other, sent)
            is_global = all(np.array_equal(row[name], shared[name]) for name in shared)
            assert is_global == (other != site)


def test_a_restarted_server_knows_who_keeps_its_share(play):
    game = play(name="softpull", rounds=2)
    game.rounds(2, change=sharing("east", "west"))
    game.resume()
    assert [part.keepers for part in game.server.parts.values() if isinstance(part, ModelPart)] == [{"north"}]
    assert list_delivered(game, game.finish(change=sharing(*SITES))) == {}


def test_site_is_told_its_weight_in_leaving_models(play):
    game = play(name="softpull", rounds=3, softpull={"self_weight": 0.7})
    game.rounds(2, change=sharing(*SITES))
    told = game.upcoming("train")["east"].meta["rows"]
    assert told == pytest.approx({"east": 0.7, "north": 0.15, "west": 0.15})
    kept = play(name="softpull", rounds=3, folder="kept")
    kept.rounds(2, change=sharing("east"))
    assert "rows" not in kept.upcoming("train")["east"].meta


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, False),
        ({"may_leave": ["weights", "personal_model"]}, True),
        ({"may_leave": ["weights"]}, False),
        ({"min_partners": 0}, True),
    ],
)
def test_site_shares_what_it_names_or_needs_no_partners(settings, shares):
    assert Site(data="/d", state_dir="/s", **settings).shares_models is shares
