"""What the server's lasting process tells a job of its sites, from NVFlare's own records of tokens."""

from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.f3.cellnet.defs import CellChannelTopic
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys

from silofl.flare import left_sites
from silofl.flare.left_sites import AGAIN, FAILED, FAILED_AGAIN, LEFT, UNBEGUN, LeftSites, find_left_sites

JOB = [Client("east", "e1"), Client("north", "n1")]


@pytest.mark.parametrize(
    ("connected", "left"),
    [
        (JOB, set()),
        ([Client("east", "e1"), Client("north", "n2")], {"north"}),
        # Without a word: its network may be cut, and come back with the job.
        ([Client("east", "e1")], set()),
        # A site that is no part of the job.
        ([*JOB, Client("west", "w2")], set()),
    ],
    ids=["all there", "started again", "silent", "others"],
)
def test_a_site_has_left_a_job_once_it_is_back_without_it(connected, left):
    assert find_left_sites(JOB, connected) == left


@pytest.fixture
def told():
    """Send an event to the component of a server with two jobs; returns what their processes were told."""

    def send(event, connected):
        said = []
        engine = SimpleNamespace(
            run_processes={
                "one": {RunProcessKey.PARTICIPANTS: {one.token: one for one in JOB}},
                "two": {RunProcessKey.PARTICIPANTS: {"e1": JOB[0]}},
            },
            get_clients=lambda: connected,
            send_app_command=lambda job, topic, data, timeout: said.append((job, topic, data)),
            job_runner=None,
        )
        context = FLContext()
        context.get_engine = lambda: engine
        LeftSites().handle_event(event, context)
        return said

    return send


@pytest.fixture
def ended_at(monkeypatch):
    """Let heartbeats come at some seconds after the end of a job; returns what was done to its sites."""

    def beat(seconds, pending=("north",)):
        done, clock, waited_for = [], [0.0], set(pending)
        monkeypatch.setattr(left_sites.time, "monotonic", lambda: clock[0])
        runner = SimpleNamespace(
            is_client_outcome_pending=lambda job, site: site in waited_for,
            resolve_client_outcome=lambda job, site: waited_for.discard(site),
            abort_client_run=lambda job, sites, context: done.append((clock[0], job, sites, sorted(waited_for))),
        )
        running = {"one": {RunProcessKey.PARTICIPANTS: {one.token: one for one in JOB}}}
        engine = SimpleNamespace(run_processes=running, get_clients=lambda: JOB, job_runner=runner)
        context, component = FLContext(), LeftSites()
        context.get_engine = lambda: engine
        component.handle_event(EventType.CLIENT_HEARTBEAT_PROCESSED, context)
        running.clear()
        for clock[0] in seconds:
            component.handle_event(EventType.CLIENT_HEARTBEAT_PROCESSED, context)
        return done

    return beat


def test_a_site_that_hangs_after_a_jobs_end_is_ended_once_and_waited_for_no_longer(ended_at):
    assert ended_at((10, 60)) == []
    assert ended_at((10, 60, 70, 80, 200)) == [(70, "one", ["north"], [])]


def test_sites_that_have_ended_are_left_alone(ended_at):
    assert ended_at((10, 70, 200), pending=()) == []


def test_a_heartbeat_under_a_new_token_is_told_to_the_sites_own_jobs_alone(told):
    back = [JOB[0], Client("north", "n2")]
    assert told(EventType.CLIENT_HEARTBEAT_PROCESSED, back) == [("one", LEFT, {"sites": {"north": AGAIN}})]
    assert told(EventType.CLIENT_HEARTBEAT_PROCESSED, JOB) == []


def test_other_events_are_not_told(told):
    assert told(EventType.CLIENT_REGISTER_PROCESSED, [JOB[0], Client("north", "n2")]) == []


@pytest.fixture
def report():
    """Send a report of a job's process to a server's component; returns what NVFlare saw and what jobs are told."""

    def send(code, token="n1", pending=("north",), job="one", answer=None):
        component, callbacks, seen, said = LeftSites(), {}, [], []

        def tell(job, topic, data, timeout):
            said.append((job, topic, data))
            return answer

        server = SimpleNamespace(
            cell=SimpleNamespace(register_request_cb=lambda channel, topic, cb: callbacks.update({topic: cb})),
            client_manager=SimpleNamespace(clients={one.token: one for one in JOB}),
            engine=SimpleNamespace(
                job_runner=SimpleNamespace(
                    is_client_outcome_pending=lambda job, name: name in pending, running_jobs={"one": meta("organs")}
                ),
                run_processes={"one": {RunProcessKey.PARTICIPANTS: {one.token: one for one in JOB}}},
                get_clients=lambda: JOB,
                send_app_command=tell,
            ),
            process_job_failure=lambda request: seen.append(dict(request.payload)),
        )
        context = FLContext()
        context.get_engine = lambda: server.engine
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
def test_a_process_that_cannot_begin_is_told_to_its_job_and_ends_it_not(report, code, words):
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
        (101, {}, False),
        (101, None, False),
    ],
)
def test_the_job_itself_says_whether_it_goes_on_without_a_process_that_failed(report, code, answer, goes_on):
    seen, said = report(code, answer=answer)
    told = [("one", LEFT, {"sites": {"north": FAILED_AGAIN}})] if goes_on else []
    assert (seen, said) == (None if goes_on else code, [("one", FAILED, {"site": "north", "again": False}), *told])


def meta(name, lead="lead"):
    return SimpleNamespace(meta={JobMetaKey.JOB_NAME: name, JobMetaKey.SUBMITTER_NAME: lead})


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
    component, said, times = LeftSites(), [], iter([1000.0, 1000.0 + later_s])
    monkeypatch.setattr("silofl.flare.left_sites.time.monotonic", lambda: next(times))
    engine = SimpleNamespace(
        job_runner=SimpleNamespace(running_jobs={"one": meta("organs"), "two": job}),
        send_app_command=lambda *told: said.append(told[2]),
    )
    for number in ("one", "two"):
        component._goes_on(engine, number, "north")
    assert said == [{"site": "north", "again": False}, {"site": "north", "again": is_again}]
