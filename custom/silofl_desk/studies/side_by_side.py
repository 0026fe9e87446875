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
from silofl_desk.studies.compared_runs import ComparedRun
from silofl_desk.studies.processes import ProcessTree, enable_interrupts
from silofl_desk.studies.progress import QUIET_S
from silofl_desk.studies.simulate import is_finished
from silofl_desk.studies.simulation import changed_study
from silofl_hospital.report.tables import format_duration, format_number

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
    finished = f"; {len(runs) - len(waiting)} already finished" if len(waiting) < len(runs) else ""
    console.print(f"{len(runs)} run{'s' * (len(runs) != 1)}, {min(processes, len(runs))} at a time{finished}")
    # Where all have one seed it says nothing.
    has_seeds = len({run.seed for run in runs}) > 1
    names = {run.path: f"{run.name}, seed {run.seed}" if has_seeds else run.name for run in runs}
    running: list[tuple[ComparedRun, ProcessTree, float]] = []
    failures: dict[Path, str] = {}
    total = len(waiting)
    started = printed = time.monotonic()
    enable_interrupts()
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                run = waiting.pop(0)
                running.append((run, ProcessTree(build_command(run), log_path(run, out)), time.monotonic()))
            time.sleep(POLL_S)
            if time.monotonic() - printed > QUIET_S:
                printed = time.monotonic()
                done = (f"{names[run.path]}: {_count_rounds(run)}" for run, *_ in running)
                console.print("; ".join(done), markup=False)
            for run, tree, since in list(running):
                if tree.poll() is None:
                    continue
                running.remove((run, tree, since))
                left, printed = len(waiting) + len(running), time.monotonic()
                results = read_results(run.path)
                ending = results.status if results else "ended early"
                ending += f", validation {format_number(results and results.validation_mean)}"
                if results is None or not results.is_finished:
                    failures[run.path] = f"it ended early, and {log_path(run, out)} says why"
                took = format_duration(printed - since)
                coming = format_duration((printed - started) / (total - left) * left)
                rest = f"; {left} left, about {coming}" * bool(left)
                console.print(f"{names[run.path]}: {ending}, {took}{rest}", markup=False)
    finally:
        for _, tree, _ in running:
            tree.end()
    return failures


def _count_rounds(run: ComparedRun) -> str:
    planned = changed_study(run.job, run.changes).length
    return f"{len(read_ledger(run.path) or ())} of {planned} finished"


def build_command(run: ComparedRun) -> list[str]:
    """Return the command that starts a run, or goes on with it."""
    silofl = [sys.executable, "-m", "silofl"]
    if run.has_started:
        return [*silofl, "resume", str(run.path)]
    wanted = run.wanted
    options = {"--out": run.path, "--data": wanted.data}
    options |= {"--cache": wanted.cache, "--pretrained": wanted.pretrained, "--weights": wanted.weights}
    options |= {"--skip-unreadable": wanted.skip_unreadable or None, "--leave-out": wanted.left_out}
    given = [str(part) for option, value in options.items() if value is not None for part in (option, value)]
    given += ["--sites", ",".join(wanted.sites)] if wanted.sites else []
    given += ["--alone"] if wanted.is_alone else []
    changes = format_set_options(run.changes)
    return [*silofl, "simulate", str(run.job), *given, *changes]


def log_path(run: ComparedRun, out: Path) -> Path:
    """Return the file of a run's output."""
    return out / LOGS / f"{run.path.name}.txt"
