import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest
from rich.console import Console

from silofl.command_line.cli import COMMANDS, CommandParser
from silofl_desk.options import read_changes
from silofl_desk.studies.comparisons import side_by_side
from silofl_desk.studies.comparisons.compared_runs import ComparisonPlan, plan_runs

from ..conftest import JOB

pytestmark = pytest.mark.timeout(120)
PYTHON = [sys.executable, "-S", "-c"]
# A made-up run: it takes note of its start, then waits for others or writes a result.
START = "import pathlib, sys, time; run = pathlib.Path(sys.argv[1]); run.mkdir(parents=True); "


@pytest.fixture(scope="module")
def planned(tmp_path_factory, phantoms):
    """Plan three runs, with changes of every kind."""
    tmp_path = tmp_path_factory.mktemp("plan")
    asked = ComparisonPlan(
        (JOB,),
        ("harmofl:paper",),
        {"small": {"training.betas": [0.8, 0.99], "training.learning_rate": 0.1}},
        {"rounds": 2, "training.local_epochs": 1},
        seeds=(3,),
        data=str(phantoms),
        cache=str(tmp_path / "cache"),
    )
    return plan_runs(asked, tmp_path / "out")


@pytest.fixture
def runs(planned, tmp_path):
    return [replace(run, path=tmp_path / "out" / "runs" / run.path.name) for run in planned]


@pytest.fixture
def carry_out(runs, tmp_path, monkeypatch, capsys):
    """Carry out the runs with a program in place of their commands; returns the failures and what was printed."""

    def run(program, processes=2):
        monkeypatch.setattr(side_by_side, "build_command", lambda one: [*PYTHON, program, str(one.path)])
        failures = side_by_side.run_side_by_side(runs, tmp_path / "out", processes, Console(soft_wrap=True))
        return failures, capsys.readouterr().out

    return run


def test_the_command_of_a_run_means_the_run(runs):
    parser = CommandParser(prog="simulate", fill=COMMANDS["simulate"].add_arguments)
    for run in runs:
        _, _, _, command, *arguments = side_by_side.build_command(run)
        options = parser.parse_args(arguments)
        assert command == "simulate" and read_changes(options) == dict(run.changes)
        assert (options.job, options.out, options.in_process) == (run.job, run.path, False)
        assert (str(options.data), str(options.cache)) == (run.wanted.data, run.wanted.cache)


def test_runs_that_end_without_a_result_are_told_with_their_logs(carry_out, runs, tmp_path):
    failures, out = carry_out(START + "print('no disk'); sys.exit(1)")
    assert list(failures) == [run.path for run in runs]
    log = tmp_path / "out" / "logs" / f"{runs[0].path.name}.txt"
    assert log.read_text() == "no disk\n" and str(log) in failures[runs[0].path]
    assert "fedavg, seed 3: ended early" in out and "; 0 left" in out


def test_as_many_run_at_a_time_as_were_asked_for(carry_out, runs):
    # each waits until two have begun; the third one finds them both
    both = "\nwhile len(list(run.parent.iterdir())) < 2: time.sleep(0.01)"
    failures, _ = carry_out(START + both)
    assert len(failures) == len(runs) == 3


def test_a_finished_run_is_not_run_again(carry_out, runs, monkeypatch):
    monkeypatch.setattr(side_by_side, "is_finished", lambda path: True)
    for run in runs:
        run.path.mkdir(parents=True)
        (run.path / "run.json").write_text("{}")
        # One that has begun is resumed.
        assert side_by_side.build_command(run)[3:] == ["resume", str(run.path)]
    failures, out = carry_out("raise SystemExit(1)")
    assert failures == {} and "3 runs, 2 at a time; 3 already finished" in out


def test_an_interrupt_ends_every_process(carry_out, runs):
    pids = "import os; (run / 'pid').write_text(str(os.getpid())); time.sleep(300)"

    def interrupt():
        while len(list(runs[0].path.parent.glob("*/pid"))) < 2:
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        carry_out(START + pids)
    for path in runs[0].path.parent.glob("*/pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(json.loads(path.read_text())), 0)
