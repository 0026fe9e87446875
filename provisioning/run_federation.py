"""A federation over mutual TLS on this machine, from nothing to a result: what ``make federation`` does.

    python -m provisioning run-federation --out federation [--jobs JOB ...] [--rounds N] [--seed N] [--port N]

Phantoms of three hospitals, a provisioned network of a server and the three, each started from its own kit; every job
is signed and submitted by the study lead, its result downloaded and drawn; then everything is shut down.
"""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from provisioning.build_wheel import build_wheels
from provisioning.fill_kits import Contents, fill_kit, read_line
from provisioning.make_kits import make_kits, make_project
from provisioning.namespaces import Namespaces
from provisioning.network import Network
from provisioning.provisioner import Project
from provisioning.workspace import PROJECT, REPOSITORY, SITE_CONFIGS, find_kits, kits_folder, write_yaml
from silofl.base.bundled_jobs import find_job
from silofl.base.errors import ConfigError, ExitCode, TrainingError
from silofl.base.files import copy_folder, hold_lock
from silofl.base.settings import read_yaml
from silofl.federation.results import read_results
from silofl.flare.commands import check_start
from silofl.flare.line import parse_bandwidth
from silofl.study import load_study
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.report.run_page import write_report
from silofl_desk.studies.runs.print_results import print_results
from silofl_desk.studies.runs.progress import RoundLines
from silofl_desk.studies.runs.simulation import study_file

JOB = REPOSITORY / "jobs" / "harmofl_phantoms"
TIMEOUT_S = 3600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run-federation``."""
    parser.add_argument("--out", type=Path, required=True, help="folder of data, kits, logs and results")
    parser.add_argument("--jobs", type=find_job, nargs="+", default=[JOB], metavar="JOB", help="one after the other")
    parser.add_argument("--data", type=Path, help="holds a folder a hospital; phantoms of all three by default")
    parser.add_argument("--rounds", type=int, help="instead of the studies'")
    parser.add_argument("--seed", type=int, help="instead of the studies'")
    parser.add_argument("--port", type=int, default=8002, help="of the server, on this machine only")
    parser.add_argument("--bandwidth", metavar="RATE", help="of the server's line, as 24Mbit; with --namespaces kept")
    parser.add_argument("--namespaces", action="store_true", help="each hospital in a network of its own: Linux, root")


def run(options: argparse.Namespace) -> int:
    """Run a network from nothing to a result; the exit code is that of the worst job."""
    started = time.monotonic()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    out = options.out.resolve()
    if (out / "kits").exists():
        raise ConfigError(f"--out must be a folder without an earlier network, not {options.out}; name another")
    check_start(out)
    participants = make_project(PROJECT)["participants"]
    sites = [participant["name"] for participant in participants if participant["type"] == "client"]
    console.print(f"1. Data of {', '.join(sites)}")
    data = options.data or make_phantoms(out / "phantoms", options.seed or 0)
    code = ExitCode.COMPLETE
    with ExitStack() as stack:
        # Two servers with the same store would run each other's jobs.
        lock = data / ".silofl" / "network.lock"
        lock.parent.mkdir(exist_ok=True)
        stack.enter_context(hold_lock(lock))
        jobs = [_copy_changed_job(job, out / "jobs" / job.name, options) for job in options.jobs]
        bits = parse_bandwidth(options.bandwidth) if options.bandwidth else None
        spaces = stack.enter_context(Namespaces(sites, bits)) if options.namespaces else None
        console.print(f"2. Keys, certificates and a kit for each participant in {out / 'kits'}")
        project = make_project(PROJECT, spaces.server_address if spaces else "localhost", options.port)
        if options.bandwidth:
            project["bandwidth"] = options.bandwidth
        folder = _make_network(project, out / "kits", data)
        console.print("3. Starting the server and the hospitals, each from its own kit")
        network = stack.enter_context(Network(folder, out / "logs", spaces))
        console.print(f"   connected over mutual TLS: {', '.join(sorted(network.connected()))}")
        for number, job in enumerate(jobs, start=4):
            console.print(f"\n{number}. The study lead submits {job.name}")
            code = max(code, _run_and_download(network, job, data, out, console))
        console.print("\nShutting down")
    console.print(f"The federation took {(time.monotonic() - started) / 60:.1f} minutes.")
    return code


def _make_network(project: Project, workspace: Path, data: Path) -> Path:
    folder = make_kits(project, workspace)
    wheel = build_wheels(folder / "wheel")[0]
    contents = Contents(wheel, SITE_CONFIGS, data, line=read_line(project))
    for kit in find_kits(kits_folder(folder)):
        fill_kit(kit, contents)
    return folder


def _copy_changed_job(job: Path, target: Path, options: argparse.Namespace) -> Path:
    copy_folder(job, target)
    settings = read_yaml(study_file(target))
    if options.rounds is not None:
        settings["rounds"] = options.rounds
    if options.seed is not None:
        settings["seed"] = options.seed
    write_yaml(study_file(target), settings)
    return target


def _run_and_download(network: Network, job: Path, data: Path, out: Path, console: Console) -> int:
    study = load_study(study_file(job))
    runs = data.resolve() / ".silofl" / "server" / "runs" / study.name
    earlier_runs = set(runs.glob("*"))
    lines = None

    def show() -> None:
        # The run's folder is there once the server has begun its first round.
        nonlocal lines
        new_runs = set(runs.glob("*")) - earlier_runs
        if lines is None and new_runs:
            lines = RoundLines(study, new_runs.pop(), console)
        if lines is not None:
            lines.print_new_rounds()

    number, status = network.run_job(job, TIMEOUT_S, show)
    downloaded = network.download(number, out / "results")
    files = sorted(downloaded.rglob("results.json"))
    if not files:
        raise TrainingError(f"{downloaded} must hold a result; NVFlare says {status}: see {out / 'logs'}")
    run_folder = files[0].parent
    results = read_results(run_folder)
    print_results(results, console)
    console.print(f"downloaded to {run_folder}; report: {write_report(run_folder)}")
    return ExitCode[results.status]
