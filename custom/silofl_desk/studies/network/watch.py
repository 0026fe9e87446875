"""``silofl watch``: follow a job that runs on a network, in the terminal, or once for a program."""

import argparse
import json
import math
import re
import time
from pathlib import Path
from shlex import quote

from rich.console import Console

from silofl.base.errors import ConfigError, ExitCode, TrainingError, make_printable
from silofl.base.files import make_folder
from silofl.base.options import make_console
from silofl.base.schema import read_record
from silofl.federation.ledger import FILE as LEDGER
from silofl.federation.ledger import Round
from silofl.federation.results import read_results
from silofl.federation.round_line import round_line
from silofl.flare.kit import read_kit
from silofl_desk.flare.lead import ABANDONED, SUBMITTED, Lead, Progress, has_ended
from silofl_desk.studies.network.watched import COMPLETED, RUNNING, Watched, status_line
from silofl_desk.studies.runs.processes import enable_interrupts
from silofl_desk.studies.runs.progress import QUIET_S

POLL_S = 2.0
# It asks so often for machines that the server refused, with a command of its own.
ASK_S = 30.0
# Whoever watches can begin again at any time.
PATIENCE_S = 60.0
LOST = (
    "the server was stopped while it ran, so that there is no result: go on with silofl continue and the folder that "
    "silofl run wrote, or the run's id and --job"
)


def run(options: argparse.Namespace) -> int:
    """Follow a job to its end, or print once how far it is; returns 0, or 1 where the job did not complete."""
    kit = read_kit(options.kit, ("admin",))
    console = make_console(options)
    if not re.fullmatch("[0-9A-Za-z-]+", options.job):
        raise ConfigError(f"JOB must be the id that submitting printed, of letters, digits and -, not {options.job!r}")
    if options.json and options.download:
        raise ConfigError("--json looks once and ends, so that it downloads nothing. Leave out --json or --download.")
    # The job runs at the server: whatever ends this command does not end it.
    with Lead(kit, PATIENCE_S) as lead:
        try:
            enable_interrupts()
            watch = WatchedJob(lead, options.job)
            if not options.json:
                return follow_job(watch, console, options.download)
            print(json.dumps(watch.ask_progress().as_dict(), indent=1))
            return ExitCode.COMPLETE
        except TrainingError as error:
            console.print(make_printable(str(error)), markup=False)
            return ExitCode.FAILED
        except KeyboardInterrupt:
            console.print(f"\nstopped watching; job {options.job} goes on", markup=False)
            return ExitCode.INTERRUPTED


class WatchedJob:
    """A job as it can be asked about again and again.

    Args:
        lead: The connection to the server.
        job: NVFlare's id of the job.
    """

    def __init__(self, lead: Lead, job: str) -> None:
        self.lead = lead
        self.job = job
        self._progress = Progress(None, [])
        self._second_machines: dict[str, str] = {}
        self._asked_at = -math.inf

    def ask_progress(self) -> Watched:
        """Ask how far the job is.

        Raises:
            ConfigError: The server knows no such job, or does not let this person ask for its rounds.
            TrainingError: The server cannot be reached.
        """
        status, details = self.lead.status(self.job)
        progress = self._progress
        if status == RUNNING:
            self.lead.update(self.job, progress)
            if not progress.may_ask:
                raise ConfigError(
                    f"{self.lead.kit.name} has no right app_command for job {self.job}: the server's "
                    "authorization.json gives it to who submitted the job. Take the kit of that lead."
                )
        if time.monotonic() - self._asked_at > ASK_S:
            self._second_machines = self.lead.second_machines()
            self._asked_at = time.monotonic()
        ledger = [read_record(Round, record, LEDGER) for record in progress.ledger]
        return Watched(
            job=self.job,
            status=status,
            has_ended=has_ended(status),
            run=progress.run,
            study=progress.study,
            total_rounds=progress.total_rounds or len(ledger),
            metric=progress.metric or "value",
            ends_early=progress.ends_early,
            quiet_rounds=progress.quiet_rounds,
            ledger=ledger,
            in_flight=progress.in_flight,
            heard=self.lead.last_heard() if progress.in_flight else {},
            second_machines=self._second_machines,
            queue=details if status == SUBMITTED else "",
        )


def follow_job(watch: WatchedJob, console: Console, folder: Path | None = None) -> int:
    """Show a job's rounds until it has ended, one line each, and from time to time how far it is.

    Args:
        console: Shows the rounds.
        folder: Where the job's result goes once it has ended, which it may have done before; None for nowhere.

    Returns:
        0 where NVFlare calls the job completed, else 1.

    Raises:
        ConfigError: As for `WatchedJob.ask_progress`.
        TrainingError: As for `WatchedJob.ask_progress`.
    """
    seen = watch.ask_progress()
    shown = 0
    # The first look is printed at once.
    printed = -math.inf
    while True:
        for number in range(shown, len(seen.ledger)):
            console.print(round_line(seen, seen.ledger[: number + 1]), markup=False)
        shown = len(seen.ledger)
        if seen.has_ended or time.monotonic() - printed > QUIET_S:
            console.print(status_line(seen), markup=False)
            printed = time.monotonic()
        if seen.has_ended:
            break
        time.sleep(POLL_S)
        seen = watch.ask_progress()
    if seen.status == ABANDONED:
        result = LOST
    elif folder is not None:
        result = _download_result(watch, folder)
    else:
        kit = quote(str(watch.lead.kit.folder))
        result = f"fetch its result: python -m silofl watch {watch.job} --kit {kit} --download DIR"
    console.print(make_printable(f"job {watch.job} has ended, {seen.status}; {result}"), markup=False)
    return ExitCode.COMPLETE if seen.status == COMPLETED else ExitCode.FAILED


def _download_result(watch: WatchedJob, folder: Path) -> str:
    """Download the job's result, and say where it is, how the run ended and how to go on."""
    make_folder(folder)
    files = watch.lead.download(watch.job, folder.resolve())
    results = read_results(files / "workspace" / "silofl")
    # A job that never began has files all the same.
    if results is None:
        return f"it has no result, because it never began; its files are in {files}: submit it again"
    sentence = f"study {results.study} is {results.status}"
    if results.reasons:
        sentence += f" ({'; '.join(results.reasons)})"
    sentence += f"; its result is in {files}; its report: python -m silofl report {quote(str(files))}"
    # Only a run that was begun has an id by which it goes on.
    if results.run and results.status == "FAILED":
        kit = quote(str(watch.lead.kit.folder))
        sentence += f"; to go on: python -m silofl continue {quote(results.run)} --job STUDY --kit {kit} --out NEW"
    return sentence
