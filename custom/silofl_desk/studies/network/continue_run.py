"""``silofl continue``: go on with a run that was stopped on a network, after its last finished round."""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.base.files import copy_file, copy_folder, hold_lock
from silofl.base.options import make_console
from silofl.federation.ledger import read_ledger
from silofl.federation.results import FILE as RESULT
from silofl.federation.results import read_results
from silofl.flare.kit import Kit, read_kit
from silofl_desk.options import read_changes
from silofl_desk.studies.network.run import JOB, LOCK, carry_out_job, set_run
from silofl_desk.studies.runs.simulation import change_job, changed_study, check_new, study_file
from silofl_hospital.report.page import FIGURES, NUMBERS, REPORT


def run(options: argparse.Namespace) -> int:
    """Go on with a run and return the exit code of its result."""
    kit = read_kit(options.kit, ("admin",))
    folder = Path(options.run)
    changes = read_changes(options)
    if folder.is_dir() and options.job is None:
        _check_unfinished(folder, changes)
        out = options.out or folder
        if out != folder:
            check_new(out)
            copy_folder(folder, out)
        # Two commands that go on with one folder would submit the run twice.
        with hold_lock(out / LOCK):
            return _carry_out_or_restore(out, kit, options, changes)
    # From here on the run is known by its id alone.
    if options.job is None:
        raise ConfigError(
            f"Folder {quote_value(options.run)} does not exist. Name one that silofl run has written, or a run's id "
            "with --job."
        )
    check_new(options.out)
    study_file(options.job)
    with TemporaryDirectory() as scratch:
        # The user's own job stays as it is.
        job = copy_folder(options.job, Path(scratch) / JOB)
        set_run(job, options.run)
        change_job(job, changes)
        return carry_out_job(job, kit, options.out, options)


def _carry_out_or_restore(out: Path, kit: Kit, options: argparse.Namespace, changes: Mapping[str, object]) -> int:
    """Go on with the job in a folder of results; where no round followed, the folder is left as it was."""
    finished = len(read_ledger(out) or [])
    # A round changes these files; the ledger only grows.
    kept = [name for name in (JOB, RESULT, REPORT, FIGURES, NUMBERS) if (out / name).exists()]
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


def _check_unfinished(folder: Path, changes: Mapping[str, object]) -> None:
    """Refuse a folder without a job that could go on, or with a run that has all that its study asks for."""
    if not (folder / JOB).is_dir():
        raise ConfigError(
            f"{folder} holds no job to go on with. Name a folder that silofl run has written, or a run's id with --job."
        )
    results = read_results(folder)
    rounds = changed_study(folder / JOB, changes).rounds
    if results and results.status == "COMPLETE" and (results.rounds or 0) >= rounds:
        raise ConfigError(
            f"Run {results.run} is COMPLETE. Ask for more than {results.rounds} rounds with --rounds N, or begin anew "
            "with silofl run."
        )
