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
from silofl_desk.studies.print_results import print_results
from silofl_desk.studies.progress import RoundLines
from silofl_desk.studies.simulation import study_file

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
    started, console, out = (
        time.monotonic(),
        Console(highlight=False, markup=False, soft_wrap=True),
        options.out.resolve(),
    )
    if (out / "kits").exists():
        raise ConfigError(f"--out must be a folder without an earlier network, not {options.out}; name another")
    check_start(out)
    sites = [p["name"] for p in make_project(PROJECT)["participants"] if p["type"] == "client"]
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
        project |= {"bandwidth": options.bandwidth} if options.bandwidth else {}
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
    """Copy a job, with the rounds and the seed of the command line."""
    copy_folder(job, target)
    changes = {key: getattr(options, key) for key in ("rounds", "seed") if getattr(options, key) is not None}
    write_yaml(study_file(target), read_yaml(study_file(target)) | changes)
    return target


def _run_and_download(network: Network, job: Path, data: Path, out: Path, console: Console) -> int:
    """Run one job, then download and print its result."""
    study = load_study(study_file(job))
    runs, lines = data.resolve() / ".silofl" / "server" / "runs" / study.name, None
    known = set(runs.glob("*"))

    def show() -> None:
        nonlocal lines
        found = set(runs.glob("*")) - known
        if lines is None and found:
            lines = RoundLines(study, found.pop(), console)
        if lines is not None:
            lines.print_new_rounds()

    number, status = network.run_job(job, TIMEOUT_S, show)
    downloaded = network.download(number, out / "results")
    found = sorted(downloaded.rglob("results.json"))
    if not found:
        raise TrainingError(f"{downloaded} must hold a result; NVFlare says {status}: see {out / 'logs'}")
    results = read_results(found[0].parent)
    print_results(results, console)
    console.print(f"downloaded to {found[0].parent}; report: {write_report(found[0].parent)}")
    return ExitCode[results.status]
