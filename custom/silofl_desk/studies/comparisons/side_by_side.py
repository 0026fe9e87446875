"""Carry out several runs of a comparison at a time, each as the command that a user would give, in its own process."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from silofl.base.files import make_folder
from silofl.federation.ledger import read_ledger
from silofl.federation.results import read_results
from silofl_desk.options import format_set_options
from silofl_desk.studies.comparisons.compared_runs import ComparedRun
from silofl_desk.studies.runs.processes import ProcessTree, enable_interrupts
from silofl_desk.studies.runs.progress import QUIET_S
from silofl_desk.studies.runs.simulate import is_finished
from silofl_desk.studies.runs.simulation import changed_study
from silofl_hospital.report.tables import format_number

POLL_S = 0.3
LOGS = "logs"


def run_side_by_side(runs: Sequence[ComparedRun], out: Path, processes: int, console: Console) -> dict[Path, str]:
    """Carry out the runs that are not finished, and print a line where one ends, or none has for `QUIET_S`.

    On Ctrl-C all processes are ended, and each run can go on.

    Args:
        runs: In the order in which they start.
        out: Folder of the comparison; each run's output goes to a file under ``logs``.
        processes: Runs at a time.

    Returns:
        Folder of a run that could not be carried out -> why.
    """
    make_folder(out / LOGS)
    waiting = [run for run in runs if not (run.has_started and is_finished(run.path))]
    finished = len(runs) - len(waiting)
    number = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    console.print(f"{number}, {min(processes, len(runs))} at a time; {finished} already finished")
    running: list[tuple[ComparedRun, ProcessTree]] = []
    failures: dict[Path, str] = {}
    printed = time.monotonic()
    # Without this, SIGTERM would leave the processes running.
    enable_interrupts()
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                run = waiting.pop(0)
                running.append((run, ProcessTree(build_command(run), log_path(run, out))))
            time.sleep(POLL_S)
            if time.monotonic() - printed > QUIET_S:
                printed = time.monotonic()
                console.print("; ".join(f"{_name_run(run)}: {_count_rounds(run)}" for run, _ in running), markup=False)
            # The list is copied, as runs that have ended leave it.
            for run, tree in list(running):
                if tree.poll() is None:
                    continue
                running.remove((run, tree))
                printed = time.monotonic()
                results = read_results(run.path)
                ending = results.status if results else "ended early"
                # The cause stands in the process's own output.
                if results is None or not results.is_finished:
                    failures[run.path] = f"it ended early, and {log_path(run, out)} says why"
                validation = format_number(results.validation_mean if results else None)
                console.print(
                    f"{_name_run(run)}: {ending}, validation {validation}; {len(waiting) + len(running)} left",
                    markup=False,
                )
    finally:
        for _, tree in running:
            tree.end()
    return failures


def _name_run(run: ComparedRun) -> str:
    return f"{run.name}, seed {run.seed}"


def _count_rounds(run: ComparedRun) -> str:
    # A study that may end early says "at most" before its number.
    planned = changed_study(run.job, run.changes).length
    return f"{len(read_ledger(run.path) or ())} of {planned} finished"


def build_command(run: ComparedRun) -> list[str]:
    """Return the command that starts a run, or goes on with it."""
    silofl = [sys.executable, "-m", "silofl"]
    if run.has_started:
        return [*silofl, "resume", str(run.path)]
    wanted = run.wanted
    options: dict[str, object] = {
        "--out": run.path,
        "--data": wanted.data,
        "--cache": wanted.cache,
        "--pretrained": wanted.pretrained,
        "--weights": wanted.weights,
        "--skip-unreadable": wanted.skip_unreadable or None,
        "--leave-out": wanted.left_out,
        "--sites": ",".join(wanted.sites) or None,
    }
    # Defaults are left out, so that the command is as short as a user would type it.
    command = [*silofl, "simulate", str(run.job)]
    for option, value in options.items():
        if value is not None:
            command += [option, str(value)]
    if wanted.is_in_process:
        command.append("--in-process")
    return [*command, *format_set_options(run.changes)]


def log_path(run: ComparedRun, out: Path) -> Path:
    """Return the file of a run's output."""
    return out / LOGS / f"{run.path.name}.txt"
