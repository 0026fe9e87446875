"""NVFlare's own loop that starts jobs, under errors that end it."""

import errno
import time
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.server import job_runner
from nvflare.private.fed.server.job_runner import JobRunner
from nvflare.private.fed.server.server_state import HotState

from silofl.flare import job_loop
from silofl.flare.job_loop import HEALTH, JobLoop


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server whose store of jobs does in each pass what a list says: an error, nothing, or an end of the loop."""
    monkeypatch.setattr(job_runner, "time", SimpleNamespace(sleep=lambda s: time.sleep(0.01), monotonic=time.monotonic))
    monkeypatch.setattr(
        job_loop, "time", SimpleNamespace(sleep=lambda seconds: time.sleep(0.01), monotonic=time.monotonic)
    )
    monkeypatch.setattr(job_loop, "EVERY_S", 0.0)
    runner, passes, seen = JobRunner(str(tmp_path)), [], []
    runner.scheduler = SimpleNamespace(schedule_job=lambda **how: (None, {}))

    def list_jobs(context):
        seen.append((tmp_path / HEALTH).read_text() if (tmp_path / HEALTH).exists() else None)
        action = passes.pop(0)
        if action == "end":
            runner.ask_to_stop = True
        elif action:
            raise action
        return []

    manager = SimpleNamespace(get_jobs_to_schedule=list_jobs)
    engine = SimpleNamespace(
        get_component=lambda name: manager,
        get_clients=lambda: ["north"],
        server=SimpleNamespace(server_state=HotState(host="server", port=8002, ssid="1")),
        run_processes={},
    )
    context = FLContext()
    context.get_engine = lambda: engine
    state = SimpleNamespace(runner=runner, manager=manager, engine=engine, passes=passes, seen=seen, context=context)
    yield state
    runner.ask_to_stop = True


NO_FILE = OSError(errno.EMFILE, "Too many open files")


def test_loop_goes_on_after_an_error_and_says_so(server, tmp_path):
    server.passes.extend([None, NO_FILE, None, None, "end"])
    JobLoop(server.runner, server.manager, tmp_path)
    server.runner.run(server.context)
    fault = "jobs cannot be started: [Errno 24] Too many open files"
    # What the file says when each pass begins; the third one is the first that comes to its end.
    assert server.seen == ["", "", fault, fault, ""]


@pytest.mark.parametrize(("running", "is_ended"), [({}, True), ({"one": None}, False)])
def test_lasting_error_ends_the_idle_process(server, tmp_path, monkeypatch, running, is_ended):
    codes = []
    monkeypatch.setattr(job_loop, "MOST_FAILURES", 3)
    monkeypatch.setattr(job_loop.os, "_exit", codes.append)
    server.runner._job_complete_process = lambda engine: None
    server.runner.running_jobs = running
    server.passes.extend([NO_FILE, NO_FILE, NO_FILE, "end"])
    JobLoop(server.runner, server.manager, tmp_path)
    server.runner.run(server.context)
    assert codes == [1] * is_ended
