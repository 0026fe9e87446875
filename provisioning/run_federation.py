"""A federation over mutual TLS on this machine, from nothing to a result: what ``make federation`` does.

    python provisioning/run_federation.py --out federation [--jobs JOB ...] [--rounds N] [--seed N] [--port N]

Phantoms of three hospitals, a provisioned network of a server and the three, each started from its own kit; every job
is signed and submitted by the study lead, its result downloaded and drawn; then everything is shut down.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import yaml
from command import Parser, run
from fill_kits import SITE_CONFIGS, Contents, fill_kit
from kits import REPOSITORY, find_kits, kits_folder
from make_kits import build_wheel, make_kits, make_project
from namespaces import Namespaces
from network import Network
from rich.console import Console

from silofl.data.phantoms import make_phantoms
from silofl.errors import ConfigError, ExitCode, TrainingError
from silofl.federation.results import read_results
from silofl.report.pages import write_report
from silofl.report.tables import print_results
from silofl.studies.progress import RoundLines
from silofl.studies.simulation import study_file
from silofl.study import load_study

PROJECT = REPOSITORY / "provisioning" / "project.yml"
JOB = REPOSITORY / "jobs" / "harmofl_phantoms"
TIMEOUT_S = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the federation and return the exit code."""
    parser = Parser(prog="run_federation.py", description="A whole network on this machine, from nothing to a result.")
    parser.add_argument("--out", type=Path, required=True, help="folder of data, kits, logs and results")
    parser.add_argument("--jobs", type=Path, nargs="+", default=[JOB], metavar="JOB", help="one after the other")
    parser.add_argument("--data", type=Path, help="holds a folder a hospital; phantoms of all three by default")
    parser.add_argument("--rounds", type=int, help="instead of the studies'")
    parser.add_argument("--seed", type=int, help="instead of the studies'")
    parser.add_argument("--port", type=int, default=8002, help="of the server, on this machine only")
    parser.add_argument("--namespaces", action="store_true", help="each hospital in a network of its own: Linux, root")
    return run(parser, _federate, arguments)


def _federate(options: argparse.Namespace) -> int:
    started, console, out = time.monotonic(), Console(highlight=False, soft_wrap=True), options.out.resolve()
    workspace = out / "kits"
    if workspace.exists():
        raise ConfigError(f"--out must be a folder without an earlier network, not {options.out}; name another")
    host = Namespaces.server_address if options.namespaces else "localhost"
    project = make_project(PROJECT, host, options.port)
    sites = [p["name"] for p in project["participants"] if p["type"] == "client"]
    console.print(f"1. Data of {', '.join(sites)}")
    data = options.data or make_phantoms(out / "phantoms", options.seed or 0)
    jobs = [_changed_copy(job, out / "jobs" / job.name, options) for job in options.jobs]
    console.print(f"2. Keys, certificates and a kit for each participant in {workspace}")
    folder = make_kits(project, workspace)
    contents = Contents(build_wheel(REPOSITORY / "custom", folder / "wheel"), SITE_CONFIGS, data)
    for kit in find_kits(kits_folder(folder)):
        fill_kit(kit, contents)
    console.print("3. Starting the server and the hospitals, each from its own kit")
    code = ExitCode.COMPLETE
    with ExitStack() as stack:
        spaces = stack.enter_context(Namespaces(sites)) if options.namespaces else None
        network = stack.enter_context(Network(folder, out / "logs", spaces))
        console.print(f"   connected over mutual TLS: {', '.join(sorted(network.connected()))}")
        for number, job in enumerate(jobs, start=4):
            console.print(f"\n{number}. The study lead submits {job.name}")
            code = max(code, _carry_out(network, job, data, out, console))
        console.print("\nShutting down")
    console.print(f"The federation took {(time.monotonic() - started) / 60:.1f} minutes.")
    return code


def _changed_copy(job: Path, target: Path, options: argparse.Namespace) -> Path:
    shutil.copytree(job, target)
    changes = {key: getattr(options, key) for key in ("rounds", "seed") if getattr(options, key) is not None}
    path = study_file(target)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes, sort_keys=False), encoding="utf-8")
    return target


def _carry_out(network: Network, job: Path, data: Path, out: Path, console: Console) -> int:
    """Run one job, download what came of it, and show it."""
    study = load_study(study_file(job))
    runs, lines = data.resolve() / ".silofl" / "server" / "runs" / study.name, None
    known = set(runs.glob("*"))

    def show() -> None:
        nonlocal lines
        found = set(runs.glob("*")) - known
        if lines is None and found:
            lines = RoundLines(study, found.pop(), console)
        if lines is not None:
            lines.show()

    number, status = network.run_job(job, TIMEOUT_S, show)
    downloaded = network.download(number, out / "results")
    found = sorted(downloaded.rglob("results.json"))
    if not found:
        raise TrainingError(f"{downloaded} must hold a result; NVFlare says {status}: see {out / 'logs'}")
    results = read_results(found[0].parent)
    print_results(results, console)
    console.print(f"downloaded to {found[0].parent}; report: {write_report(found[0].parent)}")
    return ExitCode[results.status]


if __name__ == "__main__":
    sys.exit(main())
