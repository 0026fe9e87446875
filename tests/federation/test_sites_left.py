"""A site that leaves a run for good, by name: the others go on as if it were absent, and the run can be COMPLETE."""

import pytest

from silofl.base.errors import ConfigError
from silofl.federation.outcome import finished_results
from silofl.federation.run_folder import RunFolder

from ..conftest import assert_alike

SITES = ("east", "north", "west")


def let_go(game, *sites):
    """Go on with a run from its checkpoint, as a lead who has named the sites that left."""
    federation = game.study.federation.model_copy(update={"sites_left": sites})
    game.study = game.study.model_copy(update={"federation": federation})
    game.resume()


def test_others_models_are_those_of_its_absence(play):
    game, whole = (play(folder=folder, name="softpull") for folder in ("left", "absent"))
    for one in (game, whole):
        one.round()
        one.round(absent=("north",))
    let_go(game, "north")
    record, other = game.round(), whole.round(absent=("north",))
    assert record.asked == ["east", "west"] and record.missed == [] and other.missed == ["north"]
    assert record.notes == ["site 'north' has left the study, after round 1"]
    for site in SITES:
        assert_alike(game.models(site), whole.models(site))


@pytest.mark.parametrize("left", [(), ("north",)])
def test_run_without_departed_site_is_complete_and_says_so(play, left):
    game = play(("east", "north"), rounds=3)
    game.round()
    let_go(game, *left)
    game.round(absent=() if left else ("north",))
    results = finished_results(game.server, game.finish(absent=() if left else ("north",)))
    assert results.status == ("COMPLETE" if left else "INCOMPLETE")
    assert (results.sites["north"] is None) and results.sites["east"] is not None
    # Once, in its first round without it.
    notes = [record.round for record in game.server.ledger if any("has left" in note for note in record.notes)]
    assert notes == ([2] if left else [])


def test_only_some_of_the_runs_own_sites_can_leave_it(play):
    game = play()
    for left in (("south",), ("north", "south"), SITES):
        with pytest.raises(ConfigError, match="sites_left must name some of the sites of run run, east, north"):
            let_go(game, *left)


def test_no_site_has_left_a_run_that_begins(make_study, tmp_path):
    study = make_study(federation={"sites_left": ["north"]})
    with pytest.raises(ConfigError, match="federation.sites_left must be empty where a run begins"):
        RunFolder(tmp_path, study).load()
