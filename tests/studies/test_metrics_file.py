"""The numbers for Prometheus: who is missing by name, and a text that a scraper can read."""

import stat
from dataclasses import replace

from silofl.federation.ledger import Round
from silofl.flare.in_flight import InFlight
from silofl.training.site_score import SiteScore
from silofl_desk.studies.metrics_file import HELP, format_metrics, write_metrics
from silofl_desk.studies.watched import Watched

SCORE = SiteScore(value=0.5, num_cases=1, num_excluded=0)
TASK = InFlight("train", 2, seconds=207.0, answered=["east"], failed=[], waiting=["north", "west"], now=1000.0)
ROUND = Round(
    1,
    asked=["east", "north", "west"],
    answered=["east", "north", "west"],
    validation={"east": SCORE},
    bytes_from={"east": 10},
    bytes_to={"east": 2_000_000_000},
    seconds=9.0,
)
SEEN = Watched(
    job="abc-1",
    status="RUNNING",
    has_ended=False,
    run="small-1",
    study="small",
    total_rounds=4,
    metric="dice",
    ledger=[ROUND],
    in_flight=TASK,
    heard={"east": 999.0, "north": 880.0},
    second_machines={"north": "10.0.0.9"},
)


def numbers_of(watched):
    """Return the values by name and site; names have the prefix and labels that all have left out."""
    lines = [line for line in format_metrics(watched).splitlines() if not line.startswith("#")]
    assert all('study="small",job_id="abc-1"' in line for line in lines)
    found = {}
    for line in lines:
        name, value = line.rsplit(" ", 1)
        site = name.partition('site="')[2].partition('"')[0]
        found[name.partition("{")[0].removeprefix("silofl_"), site] = float(value)
    return found


def test_a_site_that_is_not_connected_is_missing_by_its_name_and_one_that_works_is_not():
    found = numbers_of(SEEN)
    assert {site: found["site_missing", site] for site in ROUND.asked} == {"east": 0, "north": 0, "west": 1}
    assert SEEN.as_dict()["missing"] == ["west"]
    # North is heard 120 s before the server's now, long after the round began.
    assert found["site_heard_age_seconds", "north"] == 120 and ("site_heard_age_seconds", "west") not in found


def test_rounds_scores_bytes_and_second_machines_are_as_watched():
    found = numbers_of(SEEN)
    assert (found["rounds_finished", ""], found["rounds_planned", ""]) == (1, 4)
    assert (found["round_age_seconds", ""], found["round_usual_seconds", ""]) == (207, 9)
    assert (found["site_score", "east"], found["site_sent_bytes", "east"]) == (0.5, 10)
    assert found["site_received_bytes", "east"] == 2_000_000_000 and found["site_second_machine", "north"] == 1
    assert found["job_ended", ""] == found["job_failed", ""] == 0


def test_a_job_that_has_ended_has_no_round_and_nobody_is_missing():
    for status, failed in (("FINISHED:COMPLETED", 0), ("FINISHED:ABORTED", 1)):
        found = numbers_of(replace(SEEN, status=status, has_ended=True))
        assert found["job_ended", ""] == 1 and found["job_failed", ""] == failed
        assert not {"site_missing", "round_age_seconds"} & {name for name, _ in found}


def test_a_job_that_waits_says_no_more_than_that():
    waiting = replace(SEEN, status="SUBMITTED", run=None, ledger=[], in_flight=None, heard={}, second_machines={})
    assert {name for name, _ in numbers_of(waiting)} == {"written_seconds", "job_ended", "job_failed"}


def test_the_file_is_whole_for_other_accounts_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "silofl.prom"
    for _ in range(2):
        write_metrics(SEEN, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 and [one.name for one in tmp_path.iterdir()] == ["silofl.prom"]
    text = path.read_text()
    assert all(f"# TYPE silofl_{name} gauge" in text for name in HELP) and text.endswith("\n")


def test_names_are_quoted():
    assert 'study="a\\"b\\\\c\\nd"' in format_metrics(replace(SEEN, study='a"b\\c\nd'))
