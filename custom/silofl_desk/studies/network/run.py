"""``silofl run``: run a job on a network as its study lead, and go on by itself where a process or the server stops."""

import argparse
import json
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from silofl.base.bundled_jobs import META
from silofl.base.errors import ConfigError, ExitCode, TrainingError, make_printable, suggest_nearest
from silofl.base.files import copy_file, copy_folder, hold_lock, read_json, write_json, write_text
from silofl.base.options import make_console
from silofl.base.schema import dump_record, read_record
from silofl.base.settings import dump_yaml, read_yaml
from silofl.federation.ledger import FILE as LEDGER
from silofl.federation.outcome import stopped_results
from silofl.federation.rehearsal import FILE as REHEARSAL
from silofl.federation.rehearsal import SiteReport
from silofl.federation.results import FILE as RESULT
from silofl.federation.results import Results, read_results
from silofl.federation.run_folder import result_files
from silofl.flare.kit import Kit, read_kit
from silofl.study import Study, load_study
from silofl_desk.flare.lead import ABANDONED, Lead, Progress, has_ended
from silofl_desk.flare.submission import check_job
from silofl_desk.report.run_page import write_report
from silofl_desk.studies.network.watched import RUNNING, describe_in_flight
from silofl_desk.studies.runs.print_results import describe_end, print_notes, print_results
from silofl_desk.studies.runs.processes import enable_interrupts
from silofl_desk.studies.runs.progress import RoundLines
from silofl_desk.studies.runs.simulate import print_json
from silofl_desk.studies.runs.simulation import check_new, study_file
from silofl_hospital.report.tables import format_bytes, format_duration

POLL_S = 1.0
# A server that was stopped may need its operator.
PATIENCE_S = 1800.0
# In the folder of the results this is the job as it goes on, to be submitted again at any time.
JOB = "job"
# This file is locked for as long as a command writes that folder.
LOCK = "lock"
UNNAMED = "federation.sites names no hospitals: a run can be COMPLETE although one of them never came"
# NVFlare's word for a job that was ended by hand.
ABORTED = "FINISHED:ABORTED"


def run(options: argparse.Namespace) -> int:
    """Run a job on a network and return the exit code of its result."""
    kit = read_kit(options.kit, ("admin",))
    study = load_study(study_file(options.job))
    if study.rehearsal:
        raise ConfigError("study.yaml sets rehearsal. Remove it; silofl run --rehearse sets it for one run.")
    if options.rehearse:
        return rehearse(options.job, study, kit, options)
    check_new(options.out)
    return carry_out_job(options.job, kit, options.out, options)


def carry_out_job(job: Path, kit: Kit, out: Path, options: argparse.Namespace) -> int:
    """Submit a job, show its rounds, download its result, and submit its continuation where it was stopped.

    Args:
        job: An NVFlare job folder with ``app/config/study.yaml``. Where it goes on with a run, the ledger beside it
            says for which sites is waited.
        kit: The lead's.
        out: Folder of the results, which then holds the job too.
        options: ``retries``, how often a run that was stopped goes on, and ``json``.

    Returns:
        The exit code: 0 COMPLETE, 1 FAILED, 3 INCOMPLETE, 130 interrupted.

    Raises:
        ConfigError: The server cannot be reached, or would not take the job.
    """
    console = make_console(options)
    study = load_study(study_file(job))
    for sentence in [*describe_end(study), *check_job(job, study)]:
        console.print(sentence, markup=False, soft_wrap=True)
    if not study.federation.named:
        console.print(UNNAMED, soft_wrap=True)
    with Lead(kit, PATIENCE_S) as lead, ExitStack() as open_files:
        watch = WatchedRun(lead, study, job, out, console, open_files)
        try:
            enable_interrupts()
            if study.continue_run:
                watch.progress = Progress(study.continue_run, read_json(job.with_name(LEDGER), list, absent=[]))
            if missing := watch.wait_for_sites():
                watch.give_up_without(missing)
            results = watch.carry_out()
            for attempt in range(1, options.retries + 1):
                if not results.was_stopped or watch.is_aborted:
                    break
                # The rest of the sentence is for whoever has to go on by hand.
                reason = make_printable(results.reasons[0]).partition(";")[0]
                console.print(
                    f"stopped: {reason}; going on by itself, {attempt} of {options.retries} times", markup=False
                )
                watch.wait_for_sites()
                results = watch.carry_out()
        except TrainingError as error:
            console.print(make_printable(str(error)), markup=False)
            return ExitCode.FAILED
        except KeyboardInterrupt:
            if watch.number is None:
                console.print("\ninterrupted before the job was submitted; nothing runs: give the same command again")
                return ExitCode.INTERRUPTED
            console.print(
                f"\ninterrupted; job {watch.number} runs on: fetch its result with silofl watch {watch.number} "
                f"--kit {quote(str(kit.folder))} --download DIR, or end it with nvflare job abort and go on later with "
                f"{continue_command(out, kit)}",
                markup=False,
            )
            return ExitCode.INTERRUPTED
    print_results(results, console)
    print_notes(out, results, console)
    console.print(f"downloaded to {out}; report: {write_report(out)}", markup=False)
    if results.status == "FAILED":
        console.print(f"correct this, then go on: {continue_command(out, kit)}", markup=False)
    if options.json:
        print_json(out)
    return ExitCode[results.status]


def rehearse(job: Path, study: Study, kit: Kit, options: argparse.Namespace) -> int:
    """Rehearse a study at all its sites and print what each has shown; no folder of results is left.

    Returns:
        The exit code: 0 where nothing would fail, 1 where the rehearsal did, 3 where something would, 130 interrupted.
    """
    if options.out is not None:
        raise ConfigError("A rehearsal leaves no results. Leave out --out.")
    if not study.rounds:
        raise ConfigError(f"{study.name} has no rounds to rehearse. Leave out --rehearse.")
    console = make_console(options)
    # What a hospital would refuse is said before anything is sent.
    for notice in check_job(job, study):
        console.print(notice, markup=False, soft_wrap=True)
    with Lead(kit, PATIENCE_S) as lead, ExitStack() as open_files:
        scratch = Path(open_files.enter_context(TemporaryDirectory()))
        copy = copy_folder(job, scratch / job.resolve().name)
        path = study_file(copy)
        # The digest that hospitals compare does not cover this key.
        write_text(path, dump_yaml(read_yaml(path) | {"rehearsal": True}))
        meta = read_json(copy / META) | {"name": f"{study.name}-rehearsal", "min_clients": 1}
        write_json(copy / META, meta)
        watch = WatchedRun(lead, study, copy, scratch / "out", console, open_files)
        try:
            enable_interrupts()
            reports = watch.rehearse()
        except TrainingError as error:
            console.print(make_printable(str(error)), markup=False)
            return ExitCode.FAILED
        except KeyboardInterrupt:
            how = f"; end the rehearsal with nvflare job abort {watch.number}" if watch.number else ""
            console.print(f"\ninterrupted{how}", markup=False)
            return ExitCode.INTERRUPTED
    if options.json:
        print(json.dumps({site: dump_record(report) for site, report in reports.items()}, indent=1))
    print_reports(reports, study, console)
    return ExitCode.INCOMPLETE if any(report.faults for report in reports.values()) else ExitCode.COMPLETE


def print_reports(reports: Mapping[str, SiteReport], study: Study, console: Console) -> None:
    """Print what a rehearsal has shown of each site."""
    table = Table("site", "a round", study.length, "memory", "to it", "from it", box=SIMPLE_HEAD)
    for site, report in reports.items():
        # A site that failed early has measured nothing.
        if report.round_seconds is None or report.run_hours is None:
            continue
        memory = format_bytes(report.peak_bytes or 0)
        if report.device == "cuda":
            memory += " (GPU)"
        table.add_row(
            site,
            format_duration(report.round_seconds),
            format_duration(3600 * report.run_hours),
            memory,
            format_bytes(report.bytes_to or 0),
            format_bytes(report.bytes_from or 0),
        )
    console.print(table)
    for site, report in reports.items():
        if report.left_out:
            console.print(f"{site}: {report.left_out} cases cannot be read and are left out", markup=False)
        for fault in report.faults:
            console.print(f"FAILED {make_printable(f'{site}: {fault}')}", markup=False, soft_wrap=True)
    if not any(report.faults for report in reports.values()):
        console.print(f"nothing would have failed at {', '.join(reports)}", markup=False)


def continue_command(out: Path, kit: Kit) -> str:
    """Return the command that goes on with the job in a folder of results."""
    return f"silofl continue {quote(str(out))} --kit {quote(str(kit.folder))}"


@dataclass
class WatchedRun:
    """One run as its study lead sees it, through all jobs that carry it out.

    Attributes:
        lead: The connection to the server.
        study: The study.
        job: The job's folder; once it is submitted, the copy in the folder of the results.
        out: Folder of the results.
        console: Shows rounds.
        open_files: Takes the lock of a new folder of results.
        progress: What is known of the run.
        number: Id of the last job; None before the first.
        is_aborted: Whether a person aborted the last job.
    """

    lead: Lead
    study: Study
    job: Path
    out: Path
    console: Console
    open_files: ExitStack
    progress: Progress = field(default_factory=lambda: Progress(None, []))
    number: str | None = None
    is_aborted: bool = False

    def __post_init__(self) -> None:
        self._lines = RoundLines(self.study, self.out, self.console)

    def carry_out(self) -> Results:
        """Submit the job, follow it to its end, and download what it left.

        Raises:
            ConfigError: The server cannot be reached, or does not take the job.
            TrainingError: The job never began, or the server did not come back.
        """
        number = self.number = self.lead.submit(self.job)
        if self.job != self.out / JOB:
            # The folder is made only now: none is left where the server takes no job.
            self.job = copy_folder(self.job, self.out / JOB)
            self.open_files.enter_context(hold_lock(self.out / LOCK))
        self.console.print(f"{self.study.name}: submitted as job {number}", markup=False)
        status, details = self._follow(number)
        if status == ABANDONED:
            # The server lost the job when it stopped: nothing can be downloaded.
            lost = stopped_results(self.study, self.progress.run, len(self.progress.ledger), "the server stopped")
            write_json(self.out / RESULT, dump_record(lost))
            return lost
        self.is_aborted = status == ABORTED
        return self._download(number, status, details)

    def rehearse(self) -> dict[str, SiteReport]:
        """Submit the rehearsal for the sites that are there in time, and return what each has shown.

        Raises:
            TrainingError: It did not come to an end.
        """
        missing = self.wait_for_sites()
        number = self.number = self.lead.submit(self.job)
        self.console.print(f"{self.study.name}: rehearsed as job {number}", markup=False)
        status, details = self._follow(number)
        records: dict[str, object] = {}
        if status != ABANDONED:
            folder = self.lead.download(number, self.out) / "workspace" / "silofl"
            records = read_json(folder / REHEARSAL, absent={})
        if not records:
            raise TrainingError(
                f"NVFlare ended rehearsal {number} as {status}: {details or 'no reason'}; see nvflare job logs {number}"
            )
        reports = {site: read_record(SiteReport, record, REHEARSAL) for site, record in records.items()}
        for site, name in missing.items():
            # A site may have come after the others had begun.
            if reports[site].round_seconds is None:
                reports[site] = replace(reports[site], faults=(f"{name} was not connected",))
        return reports

    def wait_for_sites(self) -> dict[str, str]:
        """Wait until the sites that the study names, and those of the last round, are connected.

        NVFlare gives a job to the sites that are there when it starts, and to no other afterwards.

        Returns:
            The sites that were not there in time, each as a sentence has it.
        """
        federation = self.study.federation
        wanted = {*federation.named}
        if self.progress.ledger:
            wanted |= {*self.progress.ledger[-1]["asked"]}
        wanted -= {*federation.sites_left}
        shown: dict[str, str] = {}
        deadline = time.monotonic() + federation.join_timeout_s
        while wanted:
            connected = self.lead.connected()
            # A name that is nearly that of a site which is there and not named is a slip of the pen.
            strangers = connected - wanted
            missing = {site: f"{site}{suggest_nearest(site, strangers)}" for site in sorted(wanted - connected)}
            if not missing:
                break
            if missing != shown:
                self.console.print(
                    f"waiting for {', '.join(missing.values())}, at most {federation.join_timeout_s:g} s "
                    f"(federation.join_timeout_s); connected: {', '.join(sorted(connected)) or 'none'}",
                    markup=False,
                )
            shown = missing
            if time.monotonic() >= deadline:
                return missing
            time.sleep(POLL_S)
        return {}

    def give_up_without(self, missing: Mapping[str, str]) -> None:
        """Refuse to begin, and not to go on, where more named sites are missing than the study may miss at its end."""
        federation = self.study.federation
        absent = [name for site, name in missing.items() if site in federation.named]
        if not self.study.continue_run and len(absent) > federation.may_miss:
            raise TrainingError(
                f"{', '.join(absent)} did not connect within {federation.join_timeout_s:g} s, and nothing was "
                "submitted. Have them started, correct the names in federation.sites or let the study miss some "
                "(federation.may_miss), and give the same command again."
            )

    def _follow(self, number: str) -> tuple[str, str]:
        """Show the rounds of a job until it ends."""
        while True:
            status, details = self.lead.status(number)
            if has_ended(status):
                return status, details
            if status == RUNNING:
                self.lead.update(number, self.progress)
            self._show(status, details)
            time.sleep(POLL_S)

    def _show(self, status: str, details: str) -> None:
        self._lines.print_if_quiet(lambda: self._describe(status, details))
        # What answers has begun; by its id the sites find what they have done of a round.
        self._keep_run()
        if self.progress.ledger:
            write_json(self.out / LEDGER, self.progress.ledger)
            self._lines.print_new_rounds()

    def _describe(self, status: str, details: str) -> str:
        """Say what goes on, where no round has ended for long."""
        task = self.progress.in_flight
        if task is None:
            return make_printable(f"job {self.number} is {status}; {details}")
        return describe_in_flight(task, self.lead.last_heard(), self.study, self._lines.shown)

    def _keep_run(self) -> None:
        """Have the job go on with the run when it is submitted again, be it by hand or after days."""
        if self.progress.run:
            set_run(self.job, self.progress.run)

    def _download(self, number: str, status: str, details: str) -> Results:
        """Bring the job's results to the folder, and the server's log to ``jobs/`` in it."""
        folder = self.lead.download(number, self.out / "jobs") / "workspace" / "silofl"
        results = read_results(folder)
        if results is None:
            raise TrainingError(
                f"Job {number} never began; NVFlare ended it as {status}: {details or 'no reason'}; to go on once "
                f"that is put right: {continue_command(self.out, self.lead.kit)}"
            )
        # The server could have put other files in the place of the job, which is signed and submitted again.
        for path in result_files(folder):
            # Each is copied atomically: a program that reads the ledger while the run goes on finds it whole.
            copy_file(path, self.out / path.relative_to(folder))
        shutil.rmtree(folder)
        self._lines.print_new_rounds()
        # A round may have finished since the job was last asked.
        self.progress = Progress(results.run, read_json(self.out / LEDGER, list, absent=[]))
        # A job may have failed before its run was begun.
        if results.was_stopped or self.progress.ledger:
            self._keep_run()
        return results


def set_run(job: Path, run: str) -> None:
    """Have a job go on with a run; comments in its study.yaml are lost."""
    path = study_file(job)
    content = read_yaml(path)
    if content.get("continue_run") != run:
        write_text(path, dump_yaml(content | {"continue_run": run}))
