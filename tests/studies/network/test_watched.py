"""What a study lead sees of a running job: a status line, and plain values."""

from dataclasses import replace

from silofl.federation.ledger import Round
from silofl.flare.in_flight import InFlight
from silofl_desk.studies.network.watched import Watched, status_line
from tests.conftest import score

SITES = ["east", "west"]


def record(number, **changes):
    base = {"asked": SITES, "answered": SITES, "metrics": {"east": {"loss": 0.2}, "west": {"loss": 0.6}}}
    return Round(number, **(base | {"seconds": 3.0} | changes))


FIRST = record(1, validation={"east": score(0.25), "west": score(0.75)}, is_best=True)
SECOND = record(2, answered=["east"], failed={"west": "no room"}, metrics={"east": {"loss": 0.1}})


def watched(*ledger, **changes):
    known = {"run": "small-1", "study": "small", "total_rounds": 4, "metric": "dice", "ledger": ledger}
    return Watched(**({"job": "abc-1", "status": "RUNNING", "has_ended": False} | known | changes))


def test_the_line_says_how_far_the_job_is():
    # two rounds of 3 s are left
    assert status_line(watched(FIRST, SECOND)) == "small is RUNNING; 2 of 4 rounds, about 6.0 s left"
    assert status_line(watched(status="SUBMITTED", study=None)) == "job abc-1 is SUBMITTED; no round has finished"
    ended = watched(FIRST, status="FINISHED:ABORTED", has_ended=True)
    assert status_line(ended) == "small is FINISHED:ABORTED; 1 of 4 rounds"
    tested = watched(FIRST, SECOND, total_rounds=2)
    assert status_line(tested) == "small is RUNNING; 2 of 2 rounds; the sites are testing the model"


def test_the_line_of_a_job_that_may_end_early_says_when_and_calls_its_rounds_the_most():
    early = {"total_rounds": 9, "ends_early": True, "quiet_rounds": 2}
    # Seven rounds of 3 s.
    assert status_line(watched(FIRST, SECOND, **early)) == (
        "small is RUNNING; 2 of at most 9 rounds, at most 21.0 s left; last rise in round 1, ends in round 3 if "
        "nothing rises"
    )
    # Two rounds have raised nothing: what goes on is the test.
    ended = watched(FIRST, SECOND, record(3), **early)
    assert status_line(ended) == "small is RUNNING; 3 of at most 9 rounds; the sites are testing the model"


# A round takes 3 s.
TASK = InFlight("train", 3, seconds=207.0, answered=["east"], failed=[], waiting=["west"], now=1000.0)


def test_a_round_in_flight_shows_its_age_who_has_answered_and_when_the_others_were_last_heard():
    seen = watched(FIRST, SECOND, in_flight=TASK, heard={"east": 998.0, "west": 820.0})
    first, second = status_line(seen).split("\n")
    # West was last heard 1000 - 820 = 180 s ago. The rounds that are left are no estimate any more.
    assert first == "small is RUNNING; 2 of 4 rounds" and seen.seconds_left is None
    assert second == (
        "round 3 has run for 3.5 min (usually 3.0 s); answered: east; "
        "waiting for west (last heard 3.0 min ago: stopped or cut off?)"
    )
    # A site at work is heard every few seconds.
    slow = replace(seen, heard={"east": 998.0, "west": 991.0})
    assert status_line(slow).endswith("; waiting for west (last heard 9.0 s ago)")
    gone = replace(seen, heard={"east": 998.0}, in_flight=replace(TASK, answered=[], failed=["east"]))
    assert status_line(gone).endswith("; failed: east; waiting for west (not connected)")
    assert "in flight" not in status_line(replace(seen, has_ended=True))
    # Two rounds of 3 s, of which 2 s have gone; of a late one no more than a whole round can have gone.
    seen = watched(FIRST, SECOND, in_flight=replace(TASK, seconds=2.0))
    assert seen.seconds_left == 4.0 and replace(seen, in_flight=replace(TASK, seconds=5.0)).seconds_left == 3.0
    # A task that is no training is named.
    seen = watched(FIRST, in_flight=replace(TASK, task="validate", round=1, seconds=2.0, waiting=[]))
    assert status_line(seen).endswith("\nvalidating the models of round 1 for 2.0 s; answered: east")
