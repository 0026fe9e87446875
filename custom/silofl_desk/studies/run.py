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
from silofl.base.files import copy_file, copy_folder, hold_lock, is_free, read_json, write_json, write_text
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
from silofl_desk.studies.print_results import describe_end, print_notes, print_results
from silofl_desk.studies.processes import enable_interrupts
from silofl_desk.studies.progress import RoundLines
from silofl_desk.studies.simulate import print_json
from silofl_desk.studies.simulation import study_file
from silofl_desk.studies.watched import RUNNING, describe_in_flight
from silofl_hospital.report.tables import format_bytes, format_duration

POLL_S = 1.0
# A server that was stopped may need its operator.
PATIENCE_S = 1800.0
# In the folder of the results: the job as it goes on, to be submitted again at any time.
JOB = "job"
# Held for as long as a command writes that folder.
LOCK = "lock"
UNNAMED = "federation.sites names no hospitals: a run can be COMPLETE although one of them never came"
# NVFlare's word for a job that was ended by hand.
ABORTED = "FINISHED:ABORTED"


def run(options: argparse.Namespace) -> int:
    """Run a job on a network and return the exit code of its result."""
    kit, study = read_kit(options.kit, ("admin",)), load_study(study_file(options.job))
    if study.rehearsal:
        raise ConfigError("rehearsal must be left out of study.yaml; call silofl run --rehearse, which sets it")
    if options.rehearse:
        return rehearse(options.job, study, kit, options)
    if options.out is None:
        raise ConfigError("--out must name a new folder for the results; give it")
    check_new(options.out)
    return carry_out_job(options.job, kit, options.out, options)


def check_new(out: Path) -> None:
    """Refuse a folder for results that holds something.

    Raises:
        ConfigError: It does.
    """
    if not is_free(out):
        raise ConfigError(f"--out must be a new or empty folder, not {out}; name another")


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
        raise ConfigError("--out must be left out with --rehearse, which leaves no results; remove it")
    if not study.rounds:
        raise ConfigError(f"--rehearse must go with a study that trains, not {study.name}, which has no rounds")
    console = make_console(options)
    for notice in check_job(job, study):
        console.print(notice, markup=False, soft_wrap=True)
    with Lead(kit, PATIENCE_S) as lead, ExitStack() as open_files:
        scratch = Path(open_files.enter_context(TemporaryDirectory()))
        copy = copy_folder(job, scratch / job.resolve().name)
        path, meta = study_file(copy), copy / META
        # In no digest, as little as what a run goes on with.
        write_text(path, dump_yaml(read_yaml(path) | {"rehearsal": True}))
        write_json(meta, read_json(meta) | {"name": f"{study.name}-rehearsal", "min_clients": 1})
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
        print(json.dumps({site: dump_record(one) for site, one in reports.items()}, indent=1))
    print_reports(reports, study, console)
    return ExitCode.INCOMPLETE if any(one.faults for one in reports.values()) else ExitCode.COMPLETE


def print_reports(reports: Mapping[str, SiteReport], study: Study, console: Console) -> None:
    """Print what a rehearsal has shown of each site."""
    table = Table("site", "a round", study.length, "memory", "to it", "from it", box=SIMPLE_HEAD)
    for site, one in reports.items():
        if one.round_seconds is None or one.run_hours is None:
            continue
        sizes = [format_bytes(size or 0) for size in (one.peak_bytes, one.bytes_to, one.bytes_from)]
        sizes[0] += " (GPU)" if one.device == "cuda" else ""
        table.add_row(site, format_duration(one.round_seconds), format_duration(3600 * one.run_hours), *sizes)
    console.print(table)
    for site, one in reports.items():
        if one.left_out:
            console.print(f"{site}: {one.left_out} cases cannot be read and are left out", markup=False)
        for fault in one.faults:
            console.print(f"FAILED {make_printable(f'{site}: {fault}')}", markup=False, soft_wrap=True)
    if not any(one.faults for one in reports.values()):
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
        self.number = self.lead.submit(self.job)
        if self.job != self.out / JOB:
            # Only now: no folder of results is left where the server takes no job.
            self.job = copy_folder(self.job, self.out / JOB)
            self.open_files.enter_context(hold_lock(self.out / LOCK))
        self.console.print(f"{self.study.name}: submitted as job {self.number}", markup=False)
        status, details = self._follow()
        if status == ABANDONED:
            # The server lost the job when it stopped: nothing can be downloaded.
            lost = stopped_results(self.study, self.progress.run, len(self.progress.ledger), "the server stopped")
            write_json(self.out / RESULT, dump_record(lost))
            return lost
        self.is_aborted = status == ABORTED
        return self._download(status, details)

    def rehearse(self) -> dict[str, SiteReport]:
        """Submit the rehearsal for the sites that are there in time, and return what each has shown.

        Raises:
            TrainingError: It did not come to an end.
        """
        missing = self.wait_for_sites()
        self.number = self.lead.submit(self.job)
        self.console.print(f"{self.study.name}: rehearsed as job {self.number}", markup=False)
        status, details = self._follow()
        found: dict[str, object] = {}
        if status != ABANDONED:
            left = self.lead.download(self.number, self.out) / "workspace" / "silofl"
            found = read_json(left / REHEARSAL, absent={})
        if not found:
            raise TrainingError(
                f"rehearsal {self.number} must end; NVFlare ended it as {status}: {details or 'no reason'}; see "
                f"nvflare job logs {self.number}"
            )
        reports = {site: read_record(SiteReport, one, REHEARSAL) for site, one in found.items()}
        for site in [site for site in missing if reports[site].round_seconds is None]:
            reports[site] = replace(reports[site], faults=(f"{missing[site]} was not connected",))
        return reports

    def wait_for_sites(self) -> dict[str, str]:
        """Wait until the sites that the study names, and those of the last round, are connected.

        NVFlare gives a job to the sites that are there when it starts, and to no other afterwards.

        Returns:
            The sites that were not there in time, each as a sentence has it.
        """
        federation, missing = self.study.federation, {}
        wanted = {*(self.progress.ledger[-1]["asked"] if self.progress.ledger else ()), *federation.named}
        wanted -= {*federation.sites_left}
        deadline = time.monotonic() + federation.join_timeout_s
        while wanted and (there := wanted - (here := self.lead.connected())):
            # A name that is nearly that of a site which is there and not named is a slip of the pen.
            found = {site: f"{site}{suggest_nearest(site, here - wanted)}" for site in sorted(there)}
            if found != missing:
                self.console.print(
                    f"waiting for {', '.join(found.values())}, at most {federation.join_timeout_s:g} s "
                    f"(federation.join_timeout_s); connected: {', '.join(sorted(here)) or 'none'}",
                    markup=False,
                )
            missing = found
            if time.monotonic() >= deadline:
                return missing
            time.sleep(POLL_S)
        return {}

    def give_up_without(self, missing: Mapping[str, str]) -> None:
        """Refuse to begin, and not to go on, where more named sites are missing than the study may miss at its end."""
        federation = self.study.federation
        absent = [told for site, told in missing.items() if site in federation.named]
        if not self.study.continue_run and len(absent) > federation.may_miss:
            raise TrainingError(
                f"all hospitals of federation.sites must be connected within {federation.join_timeout_s:g} s, not all "
                f"but {', '.join(absent)}; nothing was submitted: have them started or the names corrected, or let "
                "the study miss some (federation.may_miss), and give the same command again"
            )

    def _follow(self) -> tuple[str, str]:
        """Show the job's rounds until it ends."""
        while True:
            status, details = self.lead.status(self.number)
            if has_ended(status):
                return status, details
            if status == RUNNING:
                self.lead.update(self.number, self.progress)
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

    def _download(self, status: str, details: str) -> Results:
        """Bring the job's results to the folder, and the server's log to ``jobs/`` in it."""
        found = self.lead.download(self.number, self.out / "jobs") / "workspace" / "silofl"
        if not (found / RESULT).is_file():
            raise TrainingError(
                f"job {self.number} must begin; NVFlare ended it as {status}: {details or 'no reason'}; to go on once "
                f"that is put right: {continue_command(self.out, self.lead.kit)}"
            )
        # No others, which the server could have put there in the place of the job that is signed and submitted again.
        for path in result_files(found):
            # Atomically: a program that reads the ledger while the run goes on finds it whole.
            copy_file(path, self.out / path.relative_to(found))
        shutil.rmtree(found)
        self._lines.print_new_rounds()
        results = read_results(self.out)
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
