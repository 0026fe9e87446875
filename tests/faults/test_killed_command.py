"""A command that is killed leaves no process: neither those that it has started, nor those that they have."""

import os
import signal

import psutil
import pytest

from ..end_to_end.conftest import Federation
from .conftest import LIMIT_S, silofl, wait_for

pytestmark = pytest.mark.faults

# In which they notice that the command is gone.
NOTICE_S = 10


class Command(Federation):
    """A command in the background."""

    def is_alive(self):
        self.descendants()
        return self.process.poll() is None


@pytest.fixture
def command():
    """Start a command."""
    started = []

    def start(*arguments):
        started.append(Command(*arguments))
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


@pytest.mark.parametrize("how", [("--alone",), ()])
def test_a_comparison_that_is_killed_leaves_no_process(command, tmp_path, job, site_data, how):
    out = tmp_path / "out"
    arguments = ("compare", job, "--data", site_data, "--out", out, "--seeds", "0,1", "--rounds", "200")
    running = command(*arguments, "--processes", "2", *how)
    wait_for(lambda: len([*out.glob("runs/*/ledger.json")]) == 2, running)
    check_nothing_is_left(running)


def test_a_simulation_that_is_killed_leaves_no_process(command, tmp_path, job, site_data):
    run = tmp_path / "run"
    running = command("simulate", job, "--data", site_data, "--out", run, "--set", "rounds=200")
    wait_for(lambda: (run / "ledger.json").is_file(), running)
    check_nothing_is_left(running)


def test_what_a_killed_export_has_left_goes_with_the_next_one(command, tmp_path, super_model):
    running = command("export", super_model, "-o", tmp_path / "bundle")
    wait_for(lambda: [*tmp_path.glob(".bundle.*.unfinished")], running)
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait(timeout=LIMIT_S)
    assert [path.suffix for path in tmp_path.iterdir()] == [".unfinished"]
    code, said = silofl("export", super_model, "-o", tmp_path / "another")
    assert code == 0, said
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


def test_a_command_that_is_killed_at_once_leaves_no_process(command, tmp_path, job, site_data):
    # Its runs have not loaded their libraries yet.
    out = tmp_path / "out"
    running = command("compare", job, "--data", site_data, "--out", out, "--processes", "2", "--alone")
    wait_for(lambda: running.descendants(), running)
    check_nothing_is_left(running)


def test_a_search_that_is_killed_leaves_no_process_and_goes_on_with_the_same_command(command, tmp_path, job, site_data):
    arguments = ("tune", job, "--data", site_data, "--out", tmp_path / "out", "--rounds", "1", "--processes", "2")
    running = command(*arguments)
    wait_for(lambda: [*tmp_path.glob("out/runs/*/results.json")], running)
    check_nothing_is_left(running)
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/runs/*/results.json")}
    code, said = silofl(*arguments)
    assert code == 0 and f"; {len(done)} already finished" in said
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert said.splitlines()[-1].startswith("silofl simulate")
