"""Two runs of one study, one with a hospital and one without it, tell its update: a site takes part in one of them."""

import fcntl
from contextlib import nullcontext

import pytest

from silofl.base.errors import AggregationError, TrainingError
from silofl.base.files import open_own
from silofl.federation.egress import Request
from silofl.federation.past_runs import FILE, check_past_runs
from silofl.federation.server import ServerRounds

ALL = ("east", "north", "west")


@pytest.fixture
def begin(play):
    """Begin a run of its own id, whose sites have their states where those of the others have them."""

    def start(run, sites, partners=1, **settings):
        game = play(sites, rounds=1, min_partners=partners)
        game.server = ServerRounds.start(game.study, run, sites)
        for site in game.sites.values():
            site.site = game.settings.model_copy(update=settings)
        return game

    return start


def test_a_second_run_without_one_hospital_gets_no_update(begin):
    begin("first", ALL).finish()
    wanted = "trained in another run of study 'small' that differs from this one in west alone, whose update"
    with pytest.raises(AggregationError, match=wanted):
        begin("second", ("east", "north")).finish()


@pytest.mark.parametrize(("partners", "is_refused"), [(1, False), (2, False), (3, True)])
def test_two_missing_together_are_safe_with_three_partners(begin, partners, is_refused):
    game = begin("first", ALL, partners)
    check_past_runs(game.settings, game.study, "east", Request("train", "first", partners=("east", "north", "a", "b")))
    check_past_runs(game.settings, game.study, "east", Request("test", "first", partners=("east", "north", "a", "b")))
    second = Request("train", "second", partners=("east", "north"))
    with pytest.raises(TrainingError, match="in a, b alone") if is_refused else nullcontext():
        check_past_runs(game.settings, game.study, "east", second)


def test_same_hospitals_or_allowed_ones_may_train_again(begin):
    begin("first", ALL).finish()
    begin("again", ALL).finish()
    begin("allowed", ("east", "north"), repeats=("small",)).finish()


def test_a_run_that_delivered_nothing_does_not_count(begin):
    begin("stopped", ALL).round()
    begin("second", ("east", "north")).finish()


def test_a_run_that_goes_on_at_the_same_time_counts(begin):
    first = begin("first", ALL)
    first.round()
    with open_own(first.settings.run_folder("small", "east", "first") / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        second = begin("second", ("east", "north"))
        answer = second.sites["east"].answer("train", second.upcoming("train")["east"])
    assert "in west alone" in answer.meta["error"]


def test_a_record_that_cannot_be_read_stops_the_training(begin):
    game = begin("first", ALL)
    game.finish()
    for site in ALL:
        (game.settings.state_folder("small", site) / FILE).write_text("{")
    with pytest.raises(AggregationError, match=f"cannot read {FILE}, which says with whom it has trained; restore"):
        begin("second", ALL).finish()


def test_a_second_evaluation_may_have_a_hospital_more(play):
    game = play(ALL, min_partners=1)
    evaluation = game.study.model_copy(update={"rounds": 0})
    for run, sites in (("first", ("east", "north")), ("second", ALL)):
        check_past_runs(game.settings, evaluation, "east", Request("evaluation", run, partners=sites))
