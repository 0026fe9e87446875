"""``silofl continue``: go on with a run that was stopped on a network, after its last finished round."""

import argparse
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.base.files import copy_file, copy_folder, hold_lock
from silofl.base.options import make_console
from silofl.federation.ledger import FILE as LEDGER
from silofl.federation.ledger import read_ledger
from silofl.federation.results import FILE as RESULT
from silofl.federation.results import Results, read_results
from silofl.flare.kit import Kit, read_kit
from silofl_desk.flare.lead import ABANDONED, Lead, check_signed, has_ended
from silofl_desk.options import read_changes
from silofl_desk.studies.run import JOB, LOCK, PATIENCE_S, carry_out_job, check_new, set_run
from silofl_desk.studies.simulation import change_job, changed_study, study_file
from silofl_hospital.report.page import FIGURES, NUMBERS, REPORT

# NVFlare's ids of jobs.
JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def run(options: argparse.Namespace) -> int:
    """Go on with a run and return the exit code of its result."""
    kit, folder, changes = read_kit(options.kit, ("admin",)), Path(options.run), read_changes(options)
    if folder.is_dir() and options.job is None:
        _check_unfinished(folder, changes)
        out = options.out or folder
        if out != folder:
            check_new(out)
            copy_folder(folder, out)
        with hold_lock(out / LOCK):
            return _carry_out_or_restore(out, kit, options, changes)
    if options.out is None:
        raise ConfigError(
            f"--out must name a new folder for the results where {quote_value(options.run)} is none; give it"
        )
    check_new(options.out)
    with TemporaryDirectory() as scratch:
        job = _prepare_job(options.run, options.job, kit, Path(scratch), changes)
        change_job(job, changes)
        return carry_out_job(job, kit, options.out, options)


def _carry_out_or_restore(out: Path, kit: Kit, options: argparse.Namespace, changes: Mapping[str, object]) -> int:
    """Go on with the job in a folder of results; where no round followed, the folder is left as it was."""
    names = (JOB, RESULT, REPORT, FIGURES, NUMBERS)
    finished, kept = len(read_ledger(out) or []), [name for name in names if (out / name).exists()]
    with TemporaryDirectory() as scratch:
        for name in kept:
            _replace_path(out / name, Path(scratch) / name)
        code: int | None = None
        try:
            change_job(out / JOB, changes)
            code = carry_out_job(out / JOB, kit, out, options)
        finally:
            # A setting that the server refused must not stand in the way of the next attempt.
            if code in (None, ExitCode.FAILED) and len(read_ledger(out) or []) == finished:
                for name in kept:
                    _replace_path(Path(scratch) / name, out / name)
                if code is not None:
                    make_console(options).print(f"no round was added: {out} is as it was", markup=False)
        return code


def _replace_path(source: Path, target: Path) -> None:
    """Put a file or folder in the place of another."""
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        copy_folder(source, target)
    else:
        copy_file(source, target)


def _prepare_job(run: str, job: Path | None, kit: Kit, scratch: Path, changes: Mapping[str, object]) -> Path:
    """Return a copy of a run's job that goes on with it.

    Args:
        run: The run's id, or without a job NVFlare's id of the job.
        job: The run's job folder.
        changes: To its study, by dotted key; still to be made.
    """
    if job is not None:
        study_file(job)
        copy = copy_folder(job, scratch / JOB)
        set_run(copy, run)
        return copy
    if JOB_ID.fullmatch(run):
        return _download_job(run, kit, scratch, changes)
    raise ConfigError(
        f"run must be a folder that silofl run has written, or NVFlare's id of a job, not {quote_value(run)}; of a "
        "run's id give --job too"
    )


def _check_unfinished(folder: Path, changes: Mapping[str, object]) -> None:
    """Refuse a folder without a job that could go on; the errors of `_check_incomplete`."""
    if not (folder / JOB).is_dir():
        raise ConfigError(
            f"{folder} must hold the job that goes on, as a folder that silofl run has written; of another, name the "
            "job by NVFlare's id, or the run by its own and give --job"
        )
    _check_incomplete(folder / JOB, changes, read_results(folder))


def _check_incomplete(job: Path, changes: Mapping[str, object], results: Results | None) -> None:
    """Refuse to go on with a run that has all that its study asks for."""
    if results and results.status == "COMPLETE" and results.rounds >= changed_study(job, changes).rounds:
        raise ConfigError(
            f"Run {results.run} is COMPLETE. Ask for more than {results.rounds} rounds with --rounds N, or begin anew "
            "with silofl run."
        )


def _download_job(number: str, kit: Kit, scratch: Path, changes: Mapping[str, object]) -> Path:
    """Download a job that has ended, and have it go on with its run; anew where that had not begun."""
    with Lead(kit, PATIENCE_S) as lead:
        status, _ = lead.status(number)
        if not has_ended(status):
            raise ConfigError(f"job {number} must have ended, not be {status}: end it with nvflare job abort")
        if status == ABANDONED:
            raise ConfigError(
                f"job {number} must have left its run's id, not be {status}, as what runs while the server stops: give "
                "the folder that silofl run has written, or the run's id and --job"
            )
        found = lead.download(number, scratch)
    left = found / "workspace" / "silofl"
    results, ledger = read_results(left), read_ledger(left)
    if results is None or results.run is None:
        raise ConfigError(
            f"job {number} must have begun a run; it left no {RESULT} with one: submit it with silofl run"
        )
    jobs = [path.parent for path in (found / "job").glob("*/meta.json")]
    if len(jobs) != 1:
        raise ConfigError(
            f"the download of job {number} must hold one job, not {len(jobs)}: go on with the folder that silofl run "
            "has written, or with the run's id and --job"
        )
    (job,) = jobs
    check_signed(job, kit)
    _check_incomplete(job, changes, results)
    if ledger or results.was_stopped:
        set_run(job, results.run)
    if ledger:
        copy_file(left / LEDGER, job.with_name(LEDGER))
    return job
