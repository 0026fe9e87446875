"""A command that is killed leaves no process: neither those that it has started, nor those that they have."""

import os
import signal

import psutil
import pytest

from ..end_to_end.conftest import Federation
from .conftest import LIMIT_S, wait_for

pytestmark = pytest.mark.faults

# In which they notice that the command is gone.
NOTICE_S = 10


@pytest.fixture
def command():
    """Start a command."""
    started = []

    def start(*arguments):
        started.append(Federation(*arguments))
        return started[-1]

    yield start
    for one in started:
        for process in one.alive():
            process.kill()
        one.process.kill()
        one.process.wait(timeout=LIMIT_S)


def check_nothing_is_left(running):
    assert running.alive()
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait(timeout=LIMIT_S)
    _, alive = psutil.wait_procs(running.alive(), timeout=NOTICE_S)
    assert [process.cmdline() for process in alive if process.is_running()] == []


@pytest.mark.parametrize("how", [("--in-process",), ()])
def test_a_comparison_that_is_killed_leaves_no_process(command, tmp_path, job, site_data, how):
    out = tmp_path / "out"
    arguments = ("compare", job, "--data", site_data, "--out", out, "--seeds", "0,1", "--rounds", "200")
    running = command(*arguments, "--processes", "2", *how)
    wait_for(lambda: len([*out.glob("runs/*/ledger.json")]) == 2, running)
    check_nothing_is_left(running)


def test_a_command_that_is_killed_at_once_leaves_no_process(command, tmp_path, job, site_data):
    # Its runs have not loaded their libraries yet.
    out = tmp_path / "out"
    running = command("compare", job, "--data", site_data, "--out", out, "--processes", "2", "--in-process")
    wait_for(lambda: running.descendants(), running)
    check_nothing_is_left(running)
