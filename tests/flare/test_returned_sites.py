"""A site that was started again: when it is given a job that runs, and what of NVFlare is asked for it."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import RunProcessKey
from nvflare.apis.job_def import Job
from nvflare.private.admin_defs import error_reply, ok_reply
from nvflare.private.defs import ERROR_MSG_PREFIX
from nvflare.private.fed.server.job_runner import JobRunner
from nvflare.private.fed.server.message_send import ClientReply

from silofl.flare import returned_sites
from silofl.flare.returned_sites import RETURNED, ReturnedSites, find_app, give_job

BACK = Client("north", "n2")
TAKEN = {"data": {"is_taken": True}}
STARTED = ok_reply(body="Start the client app...")


@pytest.fixture
def server():
    """Return a server with a job that runs, of which each step may go otherwise, and what was asked of it."""

    def make(taken=TAKEN, free=(True, "reserved"), deployed=STARTED, started=STARTED, here=BACK, **of_job):
        asked = []

        def answer(what, value):
            asked.append(what)
            return value

        @contextmanager
        def new_context():
            yield None

        def start(job, sites, context):
            ((name, dispatch),) = sites.items()
            assert (name, dispatch.app_name, dispatch.token) == ("north", "app", free[1])
            assert runner.is_client_outcome_pending("one", "north")
            return answer("start", [ClientReply("n2", "north", None, started)])

        def send(requests, timeout_secs):
            assert requests["n2"].body == b"signed" and timeout_secs == 10.0
            return answer("deploy", {"n2": deployed})

        def tell(job, topic, data, timeout):
            assert (job, topic, data) == ("one", RETURNED, {"site": BACK})
            return answer("job", taken)

        job, runner = Job("one", {}, {"app": ["@ALL"]}, {}), JobRunner("")
        job.run_aborted, job.get_application = of_job.get("aborted", False), lambda app, context: b"signed"
        runner.running_jobs = {of_job.get("number", "one"): job}
        runner._pending_client_outcomes = {of_job.get("pending", "one"): {"east"}}
        runner.abort_client_run = lambda number, sites, context: answer("abort", None)
        process = {
            RunProcessKey.PARTICIPANTS: {one.token: one for one in (Client("east", "e1"), Client("north", "n1"))}
        }
        engine = SimpleNamespace(
            job_runner=runner,
            run_processes={"one": process},
            new_context=new_context,
            send_app_command=tell,
            check_client_resources=lambda job, needs, context: answer("resources", {"north": free}),
            cancel_client_resources=lambda found, needs, context: answer("cancel", None),
            start_client_job=start,
            get_client_from_name=lambda name: here,
            server=SimpleNamespace(admin_server=SimpleNamespace(timeout=10.0, send_requests_and_get_reply_dict=send)),
        )
        return engine, asked, process

    return make


def test_returned_site_gets_job_under_new_token(server):
    engine, asked, process = server()
    give_job(engine, "one", BACK)
    assert asked == ["job", "resources", "deploy", "start"]
    assert [*process[RunProcessKey.PARTICIPANTS]] == ["e1", "n2"]


@pytest.mark.parametrize(
    ("goes", "asked", "reason"),
    [
        ({"number": "another"}, [], "the job has ended, or has just begun"),
        ({"aborted": True}, [], "the job has ended, or has just begun"),
        # The study does not name the site, or lets it go; the job's process does not answer.
        ({"taken": {"data": {}}}, ["job"], "does not name the site, or lets it go"),
        ({"taken": {"data": {"is_taken": 1}}}, ["job"], "does not name the site, or lets it go"),
        ({"taken": None}, ["job"], "does not name the site, or lets it go"),
        ({"free": (False, "")}, ["job", "resources"], "resources free"),
        ({"deployed": error_reply("no right")}, ["job", "resources", "deploy", "cancel"], "it said 'no right'"),
        ({"deployed": None}, ["job", "resources", "deploy", "cancel"], "it said None"),
        (
            {"started": ok_reply(body=f"{ERROR_MSG_PREFIX}: no disk")},
            ["job", "resources", "deploy", "start", "cancel"],
            "no disk",
        ),
        ({"started": None}, ["job", "resources", "deploy", "start", "cancel"], "did not answer that it starts"),
        ({"pending": "another"}, ["job", "resources", "deploy", "cancel"], "the job has ended meanwhile"),
        (
            {"here": Client("north", "n3")},
            ["job", "resources", "deploy", "start", "abort", "cancel"],
            "the site was started once more",
        ),
    ],
)
def test_failed_step_leaves_site_out_and_gpus_free(server, goes, asked, reason):
    engine, seen, process = server(**goes)
    with pytest.raises(RuntimeError, match=reason):
        give_job(engine, "one", BACK)
    assert seen == asked and [*process[RunProcessKey.PARTICIPANTS]] == ["e1", "n1"]
    assert not engine.job_runner.is_client_outcome_pending("one", "north")


@pytest.mark.parametrize(
    ("deploy_map", "app"),
    [
        ({"app": ["@ALL"]}, "app"),
        ({"a": ["server", "east"], "b": ["north"]}, "b"),
        ({"a": [{"sites": ["server", "north"]}]}, "a"),
    ],
)
def test_app_of_a_site_follows_deploy_map(deploy_map, app):
    assert find_app(Job("one", {}, deploy_map, {}), "north") == app


def at_once(target, args, daemon):
    return SimpleNamespace(start=lambda: target(*args))


@pytest.fixture
def heartbeats(monkeypatch):
    """Let a returned site be heard at some seconds; returns when it was given the job, and when it was waited for."""

    def hear(seconds, does):
        clock, given = [0.0], []

        def give(engine, job, site):
            given.append(clock[0])
            does(len(given))

        monkeypatch.setattr(returned_sites.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(returned_sites.threading, "Thread", at_once)
        monkeypatch.setattr(returned_sites, "give_job", give)
        returned, waited = ReturnedSites(), []
        for clock[0] in seconds:
            waited += [clock[0]] * returned.give(None, "one", BACK)
        return given, waited

    return hear


def test_failed_site_is_tried_again_and_then_rarely(heartbeats):
    def fails(times):
        raise RuntimeError("it must answer")

    # After the second failure 60 s, after the third one 180 s.
    assert heartbeats(range(0, 260, 10), fails) == ([0, 10, 70, 250], [0])
