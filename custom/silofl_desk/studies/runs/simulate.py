"""``silofl simulate``: run a federation on one machine, in NVFlare's simulator or in one process."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from types import MappingProxyType

from rich.console import Console

from silofl.base.errors import ConfigError, DataError, ExitCode, SiloFLError
from silofl.base.files import copy_folder, hold_lock, make_folder, read_json, write_json
from silofl.base.options import make_console
from silofl.data.counts import digest_data, list_changed_sites
from silofl.data.manifest import read_manifest
from silofl.federation.results import read_results
from silofl.federation.run_folder import RunFolder
from silofl.flare.commands import whole_path
from silofl.models.weights import read_start
from silofl.setup.extensions import list_allowed_extensions
from silofl.setup.site import Server
from silofl.study import STORED, Study, load_study
from silofl_desk.flare.workspace import other_classes, prepare_workspace
from silofl_desk.options import path_to_text, read_changes
from silofl_desk.report.left_out_site import unseen_section
from silofl_desk.report.run_page import write_report
from silofl_desk.report.sentences import changes_sentence
from silofl_desk.studies.runs.in_process import run_in_process
from silofl_desk.studies.runs.leave_out import run_unseen_test
from silofl_desk.studies.runs.print_results import print_beginning, print_notes, print_results
from silofl_desk.studies.runs.processes import ProcessTree, enable_interrupts
from silofl_desk.studies.runs.progress import POLL_S, RoundLines, announce, repeat_in_background
from silofl_desk.studies.runs.simulated_sites import load_site, look_at_data, read_data, site_settings
from silofl_desk.studies.runs.simulation import (
    UNMOVED,
    Moved,
    Simulation,
    change_job,
    changed_study,
    check_code,
    check_links,
    check_new,
    check_pretrained,
    check_run,
    copy_job,
    read_simulation,
    settle_job,
    study_file,
)
from silofl_desk.studies.runs.weights import find_weights_file, with_weights
from silofl_hospital.report.page import print_blocks

# How long NVFlare's simulator may take to end once the run has its result.
ENDING_S = 15.0


def run(options: argparse.Namespace) -> int:
    """Run a job from its first round and return the exit code."""
    wanted = Simulation(
        data=path_to_text(options.data),
        sites=tuple(options.sites),
        left_out=options.leave_out,
        pretrained=path_to_text(options.pretrained),
        weights=path_to_text(options.weights and find_weights_file(options.weights)),
        is_in_process=options.in_process,
        cache=path_to_text(options.cache),
        skip_unreadable=options.skip_unreadable,
        trusts_code=options.trust_code,
    )
    code = start_simulation(options.job, options.out, wanted, read_changes(options), make_console(options))
    if options.json:
        print_json(options.out)
    return code


def print_json(run: Path) -> None:
    """Print a run's result, where it has one, as JSON on standard output."""
    if (run / "results.json").is_file():
        results = read_json(run / "results.json")
        if (run / "unseen.json").is_file():
            results["unseen"] = read_json(run / "unseen.json")
        print(json.dumps(results, indent=1))


def start_simulation(job: Path, run: Path, wanted: Simulation, changes: Mapping[str, object], console: Console) -> int:
    """Run a job from its first round.

    Args:
        job: An NVFlare job folder with ``app/config/study.yaml``.
        run: Folder of the run; must be new or empty.
        wanted: Data and sites.
        changes: Dotted key -> value, changed in this run's copy of the job.
        console: Shows rounds and results.

    Returns:
        The exit code: 0 COMPLETE, 1 FAILED, 3 INCOMPLETE, 130 interrupted.

    Raises:
        ConfigError: The job, the study or the command is wrong; before anything was trained.
        DataError: A site's data is wrong; before anything was trained.
    """
    return _carry_out(run, console, lambda: simulate_job(job, run, wanted, changes, console))


def _carry_out(run: Path, console: Console, work: Callable[[], int]) -> int:
    """Do a run's work and return its exit code; where a signal ends it, every process ends and how to go on is said."""
    enable_interrupts()
    try:
        return work()
    except KeyboardInterrupt:
        # Without it nothing of the run is there yet.
        has_begun = (run / "run.json").is_file()
        remedy = f"python -m silofl resume {quote(str(run))}" if has_begun else "give the same command again"
        console.print(f"\ninterrupted; to go on: {remedy}", markup=False)
        return ExitCode.INTERRUPTED


def simulate_job(job: Path, run: Path, wanted: Simulation, changes: Mapping[str, object], console: Console) -> int:
    """Run a job as `start_simulation` does, where a signal ends it as it ends the whole program."""
    study, simulation = settle_job(job, wanted, changes)
    changes = with_weights(changes, simulation.weights)
    # Nothing of a job is run before it is trusted.
    check_code(job, simulation)
    if (run / "run.json").is_file():
        raise ConfigError(f"{run} holds a run already. Go on with it by silofl resume {quote(str(run))}.")
    check_new(run)
    check_pretrained(job, study, simulation)
    with _starting_simulator(simulation) as simulator:
        data = read_data(study, simulation, run)
        make_folder(run)
        if changes:
            console.print(f"set for this run: {changes_sentence(changes)}", markup=False)
        look_at_data(run, simulation, study, data, console)
        # run.json comes last: with it, the run can be resumed.
        copy_job(job, run / "job", changes, simulation.start_file)
        write_json(run / "run.json", asdict(simulation) | {"changes": dict(changes)})
        return _run_prepared_job(run, simulation, study, simulator, console)


@contextmanager
def _starting_simulator(simulation: Simulation) -> Iterator[ProcessTree | None]:
    """Start NVFlare's simulator, which imports for seconds while data are read; it ends with the block.

    None where all sites take turns in one process.
    """
    tree = None if simulation.is_in_process else ProcessTree([sys.executable, "-m", "silofl_desk.flare.simulator"])
    try:
        yield tree
    finally:
        # A fault of the data must not leave a simulator that waits for its job.
        if tree is not None:
            tree.end()


def resume(
    run: Path,
    console: Console,
    moved: Moved = UNMOVED,
    trusts_code: bool = False,
    changes: Mapping[str, object] = MappingProxyType({}),
) -> int:
    """Go on with a run after its last finished round; the same errors and exit codes as `start_simulation`.

    A run that has its result is shown, not run again.

    Args:
        run: Folder of the run.
        console: Shows rounds and results.
        moved: Folders that are not where the run read them.
        trusts_code: Whether the job's own code may run, and others' classes that it names.
        changes: Dotted key -> value, of what may change in a run that goes on.
    """
    return _carry_out(run, console, lambda: _resume(run, console, moved, trusts_code, changes))


def _resume(run: Path, console: Console, moved: Moved, trusts_code: bool, changes: Mapping[str, object]) -> int:
    check_run(run)
    # The folder may come from somebody else, with what it says of trust.
    simulation = replace(read_simulation(run, moved), trusts_code=trusts_code)
    check_links(run)
    check_code(run / "job", simulation)
    study = changed_study(run / "job", changes) if changes else load_study(study_file(run / "job"), STORED)
    # A run that was killed may have left a file half written.
    RunFolder(run, study).mend()
    results = read_results(run)
    if results and results.is_finished and (results.rounds or 0) >= study.rounds:
        return _conclude_run(run, simulation, study, console)
    # What may not begin any more does not go on either.
    changed_study(run / "job", changes)
    _check_is_there(simulation)
    _check_learnt_from(run, simulation, study)
    with _starting_simulator(simulation) as simulator:
        data = read_data(study, simulation, run)
        settings = read_json(run / "run.json")
        if moved != UNMOVED:
            settings |= {"data": simulation.data, "cache": simulation.cache}
        if changes:
            change_job(run / "job", changes)
            settings["changes"] = settings.get("changes", {}) | changes
        write_json(run / "run.json", settings)
        look_at_data(run, simulation, study, data, console)
        return _run_prepared_job(run, simulation, study, simulator, console)


def _check_is_there(simulation: Simulation) -> None:
    for site in simulation.sites:
        if not (simulation.data_folder / site / "dataset.json").is_file():
            raise ConfigError(
                f"{simulation.data} has no {site}/dataset.json. Name the folder to which the run's data were moved "
                "with --data."
            )


def _check_learnt_from(run: Path, simulation: Simulation, study: Study) -> None:
    """Refuse other data than a run has read before; one that has read none yet takes any."""
    changed = list(list_changed_sites(run, simulation.data_folder, study))
    if changed:
        raise DataError(
            f"{run} learnt from other data of {', '.join(changed)} than those in {simulation.data}; put them back, "
            "name the folder to which they were moved with --data, or start a new run"
        )


def _run_prepared_job(
    run: Path, simulation: Simulation, study: Study, simulator: ProcessTree | None, console: Console
) -> int:
    """Run the prepared job, in NVFlare's simulator where one is started, and show its rounds."""
    with hold_lock(run / "lock.command"):
        workspace = run.resolve() / "workspace"
        server = Server(run_dir=str(run.resolve()), is_downloadable=False, extensions=list_allowed_extensions())
        for name in ("local", "startup"):
            # NVFlare's simulator keeps them, and runs code that lies there.
            shutil.rmtree(workspace / name, ignore_errors=True)
        prepare_workspace(workspace, site_settings(simulation, run), server, other_classes(run / "job"))
        # The result of an earlier start that FAILED must not be taken for that of this one.
        (run / "results.json").unlink(missing_ok=True)
        print_beginning(study, simulation.sites, console)
        job = (run / "job").resolve()
        lines = RoundLines(study, run, console)
        start = read_start(study_file(job).parent, study)
        if start and start.sentence:
            console.print(start.sentence, markup=False)
        try:
            if simulator is None:
                arrays = start.arrays if start else None
                with repeat_in_background(lines.print_news, POLL_S):
                    run_in_process(study, run, simulation.sites, site_settings(simulation, run), arrays)
                lines.print_new_rounds()
                return _conclude_run(run, simulation, study, console)
            # NVFlare cuts some paths, so that the folder may have another one here.
            with whole_path(run.resolve()) as folder:
                arguments = {
                    "clients": ",".join(simulation.sites),
                    "threads": len(simulation.sites),
                    "job_folder": str(folder / job.name),
                    "workspace": str(folder / workspace.name),
                    "log": str(folder / "log.txt"),
                }
                simulator.tell(json.dumps(arguments))
                with _followed(simulator, lines):
                    return _conclude_run(run, simulation, study, console)
        finally:
            # The simulator wipes its workspace at the next start.
            for events in workspace.glob("server/*/tb_events"):
                copy_folder(events, run / "tensorboard")


@contextmanager
def _followed(tree: ProcessTree, lines: RoundLines) -> Iterator[None]:
    """Show rounds until there is a result; the block runs while the command ends."""
    while tree.poll() is None and not (lines.run / "results.json").is_file():
        lines.print_news()
        time.sleep(POLL_S)
    lines.print_new_rounds()
    deadline = time.monotonic() + ENDING_S
    yield
    # With the result everything is there; a site's process that was stopped would be waited for without end.
    while tree.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def is_finished(run: Path) -> bool:
    """Return whether a run has its result; a FAILED one can be resumed."""
    results = read_results(run)
    return results is not None and results.is_finished


def _conclude_run(run: Path, simulation: Simulation, study: Study, console: Console) -> int:
    """Print the result, test on the site that was left out, write the report, and return the exit code."""
    results = read_results(run)
    if results is None:
        console.print(
            f"the run ended without a result; {run / 'log.txt'} says why; to go on: silofl resume {quote(str(run))}",
            markup=False,
        )
        return ExitCode.FAILED
    print_results(results, console)
    print_notes(run, results, console)
    code: int = ExitCode[results.status]
    if code == ExitCode.FAILED:
        console.print(f"Once the cause is removed, go on with: silofl resume {quote(str(run))}", markup=False)
    if simulation.left_out is not None and code != ExitCode.FAILED:
        # The worse of COMPLETE, 0, and INCOMPLETE, 3.
        code = max(code, _show_unseen(run, simulation, study, console))
    try:
        with announce("writing the report", console):
            page = write_report(run)
        console.print(f"report: {page}")
    except (ConfigError, OSError) as error:
        # The result is there all the same, and `silofl report` can write the page later.
        console.print(f"no report: {error}")
    return code


def _show_unseen(run: Path, simulation: Simulation, study: Study, console: Console) -> int:
    """Test the super model on the site that was left out and print its table; return 3 where that cannot be done."""
    site = str(simulation.left_out)
    try:
        with announce(f"testing at {site}, which was left out", console):
            digest = digest_data(read_manifest(simulation.data_folder / site, study))
            unseen = run_unseen_test(run, site, digest, lambda: load_site(study, simulation, run, site), console)
        section = unseen_section(unseen, study.algorithm.name)
        if section:
            print_blocks(section.blocks, console)
    except (SiloFLError, OSError) as error:
        console.print(f"no test on the left-out site {site}: {error}", markup=False)
        return ExitCode.INCOMPLETE
    return ExitCode.COMPLETE
