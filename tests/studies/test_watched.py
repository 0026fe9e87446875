"""What a study lead sees of a running job: a table of sites, a page, and plain values."""

import json
from dataclasses import replace

import pytest

from silofl.base.errors import ConfigError
from silofl.federation.ledger import Round
from silofl.flare.in_flight import InFlight
from silofl_desk.studies.watched import Watched, rounds_table, sites_table, status_line, write_watched
from tests.conftest import score

pytestmark = pytest.mark.usefixtures("undrawn")

SITES = ["east", "west"]


def record(number, **changes):
    base = {"asked": SITES, "answered": SITES, "metrics": {"east": {"loss": 0.2}, "west": {"loss": 0.6}}}
    return Round(number, **(base | {"seconds": 3.0} | changes))


FIRST = record(1, validation={"east": score(0.25), "west": score(0.75)}, is_best=True)
SECOND = record(2, answered=["east"], failed={"west": "no room"}, metrics={"east": {"loss": 0.1}})


def watched(*ledger, **changes):
    known = {"run": "small-1", "study": "small", "total_rounds": 4, "metric": "dice", "ledger": ledger}
    return Watched(**({"job": "abc-1", "status": "RUNNING", "has_ended": False} | known | changes))


def test_each_site_has_its_last_round_and_its_newest_numbers():
    table = sites_table(watched(FIRST, SECOND))
    assert table.columns == ("site", "last round", "answered", "loss", "validation dice")
    assert table.rows == (
        ("east", "answered", "2 of 2", "0.100", "0.250"),
        ("west", "failed", "1 of 2", "0.600", "0.750"),
    )


def test_a_site_that_joined_another_round_was_not_asked_in_this_one():
    joined = record(1, asked=[*SITES, "new"], answered=SITES, late=["new"])
    assert [row[1] for row in sites_table(watched(joined)).rows] == ["answered", "late", "answered"]
    assert dict(row[:2] for row in sites_table(watched(joined, record(2))).rows)["new"] == "not asked"


def test_the_newest_round_stands_first_with_who_is_missing():
    rows = rounds_table(watched(FIRST, SECOND)).rows
    # loss of round 1: (0.2 + 0.6) / 2; its validation: (0.25 + 0.75) / 2
    assert rows == (("2", "west failed", "0.100", "-", "1 of 2", "3.0"), ("1", "-", "0.400", "0.500", "2 of 2", "3.0"))


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


def test_a_program_gets_the_same_numbers():
    values = json.loads(json.dumps(watched(FIRST, SECOND).as_dict()))
    wanted = {"job": "abc-1", "status": "RUNNING", "run": "small-1", "rounds": {"finished": 2, "total": 4}}
    wanted |= {"best_round": 1, "seconds_left": 6.0}
    assert {key: values[key] for key in wanted} == wanted
    second = {"round": 2, "seconds": 3.0, "loss": pytest.approx(0.1), "validation": None, "answered": ["east"]}
    assert values["ledger"][1] == second | {"late": [], "failed": {"west": "no room"}, "refused": {}}
    values = json.loads(json.dumps(watched(FIRST, in_flight=TASK, heard={"west": 820.0}).as_dict()))
    assert values["in_flight"]["waiting"] == ["west"] and values["in_flight"]["seconds"] == 207.0
    assert values["heard"] == {"west": 820.0} and values["seconds_left"] is None


def test_the_page_loads_itself_again_until_the_job_has_ended(tmp_path):
    seen = watched(FIRST, SECOND, in_flight=TASK)
    page = write_watched(seen, tmp_path / "page.html").read_text()
    assert "waiting for west (not connected)." in page
    assert '<meta http-equiv="refresh" content="5">' in page and "prefers-color-scheme: dark" in page
    assert "2 of 4 rounds" in page and "west: failed in round 2: no room" in page and "data:image/png" in page
    ended = replace(seen, status="FINISHED:COMPLETED", has_ended=True)
    page = write_watched(ended, tmp_path / "page.html").read_text()
    assert "http-equiv" not in page and "FINISHED:COMPLETED" in page and "does not change any more" in page
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("ledger", "status", "tone"),
    [
        ((), "SUBMITTED", "warning"),
        ((FIRST,), "RUNNING", "good"),
        ((FIRST, SECOND), "RUNNING", "warning"),
        ((SECOND, replace(FIRST, round=3)), "RUNNING", "good"),
        ((SECOND, replace(FIRST, round=3)), "FINISHED:COMPLETED", "warning"),
        ((FIRST,), "FINISHED:COMPLETED", "good"),
        ((FIRST,), "FINISHED:ABORTED", "bad"),
    ],
)
def test_the_page_is_green_only_where_no_site_is_missing(tmp_path, ledger, status, tone):
    known = {} if ledger else {"run": None, "study": None, "total_rounds": 0}
    seen = watched(*ledger, status=status, has_ended=status.startswith("FINISHED"), **known)
    page = write_watched(seen, tmp_path / "page.html").read_text()
    assert f'class="banner {tone}"' in page
    assert ("the run&#39;s report says how it ended" in page) == (status == "FINISHED:COMPLETED")
    # Before the job has begun, its page has no numbers.
    assert ledger or ("Job abc-1" in page and "SUBMITTED" in page and "<img" not in page)


def test_names_and_reasons_of_others_are_text_on_the_page_which_needs_a_file(tmp_path):
    bad = "<script>alert(1)</script>"
    seen = watched(record(1, asked=[bad], answered=[], failed={bad: bad}, metrics={}), study=bad, status=bad)
    page = write_watched(seen, tmp_path / "page.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    with pytest.raises(ConfigError, match="must be a file to write, not a folder"):
        write_watched(seen, tmp_path)
