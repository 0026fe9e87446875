"""What the server's lasting process tells a job of its sites, from NVFlare's own records of tokens."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job, JobMetaKey
from nvflare.fuel.f3.cellnet.defs import CellChannelTopic
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.server.job_runner import JobRunner

from silofl.flare import left_sites
from silofl.flare.left_sites import AGAIN, FAILED, FAILED_AGAIN, LEFT, UNBEGUN, LeftSites, find_returned_sites
from silofl_desk.flare.lead import ABANDONED, has_ended


class Heard(Client):
    """A site that is heard all the time."""

    last_connect_time = property(lambda self: time.time(), lambda self, at: None)


JOB = [Heard("east", "e1"), Heard("north", "n1")]
GONE = Client("south", "s2")
GONE.last_connect_time = time.time() - 61


@pytest.fixture(autouse=True)
def kept_alive(monkeypatch):
    """What the component has kept alive: NVFlare's loop of jobs, its manager, and the kit that says so."""
    found = []
    monkeypatch.setattr(left_sites, "JobLoop", lambda *arguments: found.append(arguments))
    return found


@pytest.mark.parametrize(
    ("connected", "tokens"),
    [
        (JOB, []),
        ([Heard("east", "e1"), Heard("north", "n2")], ["n2"]),
        # It was not there when the job began, which names it.
        ([*JOB, Heard("south", "s2")], ["s2"]),
        # Without a word: its network may be cut, and come back with the job.
        ([Heard("east", "e1")], []),
        ([*JOB, GONE], []),
        # A site that is no part of the job.
        ([*JOB, Heard("west", "w2")], []),
    ],
    ids=["all there", "started again", "late", "silent", "gone", "others"],
)
def test_site_has_returned_once_back_without_its_job(connected, tokens):
    assert [site.token for site in find_returned_sites(JOB, connected, {"north", "south"})] == tokens


def server_with(connected=JOB, answer=None, **runner):
    """Return a server's engine with two jobs, its context, and what the jobs' processes are told."""
    said, participants = [], {"one": {one.token: one for one in JOB}, "two": {"e1": JOB[0]}}

    def tell(job, topic, data, timeout):
        said.append((job, topic, data))
        return answer

    engine, context = SimpleNamespace(get_clients=lambda: connected, send_app_command=tell), FLContext()
    engine.get_component = lambda name: None
    engine.run_processes = {job: {RunProcessKey.PARTICIPANTS: sites} for job, sites in participants.items()}
    runner = {"running_jobs": {}, "update_unfinished_jobs": lambda context: None} | runner
    engine.job_runner = SimpleNamespace(**runner)
    context.get_engine = lambda: engine
    return engine, context, said


@pytest.fixture
def ended_at(monkeypatch):
    """Let heartbeats come at some seconds after the end of a job; returns what was done to its sites."""

    def beat(seconds, pending=("north",)):
        done, clock, waited_for = [], [0.0], set(pending)
        monkeypatch.setattr(left_sites.time, "monotonic", lambda: clock[0])
        engine, context, _ = server_with(
            is_client_outcome_pending=lambda job, site: site in waited_for,
            resolve_client_outcome=lambda job, site: waited_for.discard(site),
            abort_client_run=lambda job, sites, context: done.append((clock[0], job, sites, sorted(waited_for))),
        )
        component = LeftSites()
        component.handle_event(EventType.CLIENT_HEARTBEAT_PROCESSED, context)
        engine.run_processes.clear()
        for clock[0] in seconds:
            component.handle_event(EventType.CLIENT_HEARTBEAT_PROCESSED, context)
        return done

    return beat


def test_hanging_site_is_ended_once_and_not_awaited(ended_at):
    assert ended_at((10, 60)) == []
    assert ended_at((10, 60, 70, 80, 200)) == [(70, "one", ["north"], [])]
    # Sites that have ended are left alone.
    assert ended_at((10, 70, 200), pending=()) == []


@pytest.fixture
def give(monkeypatch):
    """Have jobs be given to returned sites by a stand-in that waits for them, or not; returns what it was asked."""

    def answer(is_waited_for):
        asked = []

        def give(self, engine, job, site):
            asked.append((job, site.name, site.token))
            return is_waited_for

        monkeypatch.setattr(left_sites.ReturnedSites, "give", give)
        return asked

    return answer


@pytest.mark.parametrize(
    ("event", "token", "asked"),
    [
        (EventType.CLIENT_HEARTBEAT_PROCESSED, "n2", [("one", "north", "n2")]),
        (EventType.CLIENT_HEARTBEAT_PROCESSED, "n1", []),
        (EventType.CLIENT_REGISTER_PROCESSED, "n2", []),
    ],
)
def test_returned_site_is_given_its_own_jobs_alone(give, event, token, asked):
    given = give(True)
    _, context, said = server_with([JOB[0], Heard("north", token)])
    LeftSites().handle_event(event, context)
    assert (given, said) == (asked, [])


def test_late_site_is_given_jobs_that_name_it(give):
    given, deploy_maps = give(True), {"one": ["server", "east", "north", "south"], "two": ["@ALL"]}
    jobs = {number: Job(number, {}, {"app": sites}, {}) for number, sites in deploy_maps.items()}
    _, context, _ = server_with([*JOB, Heard("south", "s1")], running_jobs=jobs)
    LeftSites().handle_event(EventType.CLIENT_HEARTBEAT_PROCESSED, context)
    assert given == [("one", "south", "s1")]


def test_job_does_not_wait_for_a_failed_return(give):
    give(False)
    _, context, said = server_with([JOB[0], Heard("north", "n2")])
    LeftSites().handle_event(EventType.CLIENT_HEARTBEAT_PROCESSED, context)
    assert said == [("one", LEFT, {"sites": {"north": AGAIN}})]


def test_stopped_servers_jobs_end_and_loop_stays_alive(kept_alive):
    words = {"one": "RUNNING", "two": "DISPATCHED", "three": "SUBMITTED", "four": "FINISHED:COMPLETED"}
    engine, context, _ = server_with()
    found = {job: SimpleNamespace(job_id=job) for job in words}
    jobs = SimpleNamespace(
        get_jobs_by_status=lambda states, context: [found[job] for job in words if words[job] in states],
        set_status=lambda job, status, context: words.update({job: status.value}),
    )
    engine.get_component, engine.job_runner = lambda name: jobs, JobRunner("")
    site = SimpleNamespace(cell=SimpleNamespace(register_request_cb=lambda **how: None))
    context.set_prop(FLContextKey.SITE_OBJ, site, private=True)
    LeftSites().handle_event(EventType.SYSTEM_BOOTSTRAP, context)
    assert kept_alive == [(engine.job_runner, jobs, Path.cwd())]
    assert words == {"one": ABANDONED, "two": ABANDONED, "three": "SUBMITTED", "four": "FINISHED:COMPLETED"}
    assert has_ended(ABANDONED)


@pytest.fixture
def report():
    """Send a report of a job's process to a server's component; returns what NVFlare saw and what jobs are told."""

    def send(code, token="n1", pending=("north",), job="one", answer=None, connected=JOB):
        component, callbacks, seen = LeftSites(), {}, []
        engine, context, said = server_with(
            connected,
            answer=answer,
            is_client_outcome_pending=lambda job, name: name in pending,
            running_jobs={"one": meta("organs")},
        )
        server = SimpleNamespace(
            cell=SimpleNamespace(register_request_cb=lambda channel, topic, cb: callbacks.update({topic: cb})),
            client_manager=SimpleNamespace(clients={one.token: one for one in JOB}),
            engine=engine,
            process_job_failure=lambda request: seen.append(dict(request.payload)),
        )
        context.set_prop(FLContextKey.SITE_OBJ, server, private=True, sticky=False)
        component.handle_event(EventType.SYSTEM_BOOTSTRAP, context)
        message = Message({CellMessageHeaderKeys.TOKEN: token}, {"job_id": job, "code": code, "reason": "\x1b[2J"})
        callbacks[CellChannelTopic.REPORT_JOB_FAILURE](message)
        component.handle_event(EventType.CLIENT_HEARTBEAT_PROCESSED, context)
        return seen[0]["code"], said

    return send


@pytest.mark.parametrize(
    ("code", "words"), [(102, "unsafe component"), (103, "config error"), (104, "infrastructure error")]
)
def test_unbegun_process_is_told_and_ends_no_job(report, code, words):
    seen, said = report(code)
    assert seen is None and said == [("one", LEFT, {"sites": {"north": UNBEGUN.format(words)}})]


@pytest.mark.parametrize(
    "report_of",
    [
        {"code": 0},
        {"code": 103, "token": "nobody"},
        {"code": 103, "pending": ()},
        {"code": 101, "pending": ()},
        {"code": 101, "job": "another"},
    ],
)
def test_other_reports_are_nvflares_affair(report, report_of):
    assert report(**report_of) == (report_of["code"], [])


@pytest.mark.parametrize(
    ("code", "answer", "goes_on"),
    [
        # An exception, and a killed process.
        (101, {"data": {"goes_on": True}}, True),
        (9, {"data": {"goes_on": True}}, True),
        (9, {"data": {"goes_on": False}}, False),
        (101, {"data": {}}, False),
        (101, None, False),
    ],
)
def test_job_decides_whether_it_goes_on(report, code, answer, goes_on):
    seen, said = report(code, answer=answer)
    told = [("one", LEFT, {"sites": {"north": FAILED_AGAIN}})] if goes_on else []
    assert (seen, said) == (None if goes_on else code, [("one", FAILED, {"site": "north", "again": False}), *told])


def meta(name, lead="lead"):
    return Job("one", {}, {}, {JobMetaKey.JOB_NAME: name, JobMetaKey.SUBMITTER_NAME: lead})


@pytest.mark.parametrize(
    ("later_s", "job", "is_again"),
    [
        (86399, meta("organs"), True),
        (86400, meta("organs"), False),
        (60, meta("bones"), False),
        (60, meta("organs", "another"), False),
    ],
    ids=["within a day", "a day later", "another job", "another lead"],
)
def test_a_process_fails_again_in_a_continuation_of_the_day(monkeypatch, later_s, job, is_again):
    component, times = LeftSites(), iter([1000.0, 1000.0 + later_s])
    monkeypatch.setattr("silofl.flare.left_sites.time.monotonic", lambda: next(times))
    engine, _, said = server_with(running_jobs={"one": meta("organs"), "two": job})
    for number in ("one", "two"):
        component._goes_on(engine, number, "north")
    assert [data for *_, data in said] == [{"site": "north", "again": again} for again in (False, is_again)]
