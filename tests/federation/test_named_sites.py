"""A study that names its hospitals: one of them that is missing at the end makes its run INCOMPLETE, by name."""

import pytest

from silofl.base.errors import ConfigError
from silofl.federation.checkpoint import checkpoint, restore_run
from silofl.federation.outcome import finished_results
from silofl.federation.roster import NEVER, is_expected, list_expected_sites
from silofl.federation.site import SiteRounds

SITES = ("east", "north", "west")


@pytest.fixture
def named(play, make_study):
    """Begin a run of three sites by name, each of which may be there or not."""

    def begin(here=SITES, names=SITES, name="fedavg", **federation):
        study = make_study(rounds=2, federation={"sites": names, **federation}, name=name)
        return play(list_expected_sites(study, here), study=study)

    return begin


def test_a_site_that_never_came_is_missed_by_name(named):
    game = named(here=("east", "north"))
    tests = game.finish()
    results = finished_results(game.server, tests)
    assert results.status == "INCOMPLETE" and results.sites["west"] is None
    assert results.reasons == (
        f"site west missed rounds [1, 2] ({NEVER}); the study allows 0",
        f"site west did not test the model ({NEVER})",
    )
    assert all(record.failed == {"west": NEVER} and record.missed == ["west"] for record in game.server.ledger)


@pytest.mark.parametrize(("may_miss", "status"), [(0, "INCOMPLETE"), (1, "COMPLETE")])
def test_late_site_is_one_that_may_be_missed(named, may_miss, status):
    game = named(here=("east", "north"), may_miss=may_miss)
    game.rounds(1)
    game.server.join("west")
    game.sites["west"] = SiteRounds("west", game.study, game.settings)
    results = finished_results(game.server, game.finish())
    assert results.status == status and "west" in results.tests


@pytest.mark.parametrize(
    ("absent", "may_miss", "status"),
    [(("west",), 1, "COMPLETE"), (("north", "west"), 1, "INCOMPLETE"), (("north", "west"), 2, "COMPLETE")],
)
def test_study_says_how_many_may_miss_the_end(named, absent, may_miss, status):
    game = named(may_miss=may_miss)
    results = finished_results(game.server, game.finish(absent=absent))
    assert results.status == status
    assert all(any(f"site {site} missed" in one for one in results.reasons) for site in absent) or not results.reasons


@pytest.mark.parametrize(
    ("federation", "expected"),
    [
        ({}, True),
        ({"sites": ("east", "north")}, False),
        ({"sites": ("east", "west")}, True),
        ({"sites_left": ["west"]}, False),
        ({"sites": ("east", "west"), "sites_left": ["west"]}, False),
    ],
)
def test_site_is_expected_while_named_and_not_let_go(make_study, federation, expected):
    assert is_expected(make_study(federation=federation), "west") is expected


def test_continued_run_leaves_out_only_departed_sites(named, make_study):
    game = named()
    game.round()
    study = make_study(rounds=2, federation={"sites": ("east", "north")})
    with pytest.raises(ConfigError, match="sites must name all sites of run run, not leave out west; add them, or"):
        restore_run(study, checkpoint(game.server))
    left = make_study(rounds=2, federation={"sites": ("east", "north"), "sites_left": ["west"]})
    assert restore_run(left, checkpoint(game.server)).sites == [*SITES]
