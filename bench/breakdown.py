"""Where a round's time goes: the demonstration's FedAvg at three hospitals, in one process, simulated, and over TLS.

    python bench/breakdown.py [--rounds 6] [--port 8102]

The run in one process is profiled: the table lists what server and sites do in a round, in seconds of all sites
together. What a round takes in NVFlare's simulator, and between kits over mutual TLS on this machine, stands below,
with what it is beyond that work shared by the cores. About four minutes on two cores.
"""

import argparse
import cProfile
import json
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path

import torch
import yaml
from rich.console import Console
from rich.table import Table

from silofl.cli import main as main_of_silofl
from silofl.federation.course import Course
from silofl.federation.run_folder import RunFolder
from silofl_desk.phantoms.phantoms import make_phantoms

ROOT = Path(__file__).parents[1]
JOB = ROOT / "jobs" / "fedavg_phantoms"
CORES = len(os.sched_getaffinity(0))
# What is done -> its functions, as file and name; after "-" a part within them that has a row of its own.
PARTS: dict[str, tuple[tuple[str, str], ...]] = {
    "site: read its state": (("federation/state.py", "load"),),
    "site: build the network": (("models/networks.py", "build_models"),),
    "site: load what was received": (("parts/model.py", "prepare"),),
    "site: optimiser and its state": (("parts/model.py", "learners"),),
    "site: draw and augment batches": (("data/batches.py", "training_batches"),),
    "site: steps": (("training/loop.py", "train"), ("-", "site: draw and augment batches")),
    "site: validation": (("parts/work.py", "scores"),),
    "site: what changed, and what stays": (("parts/model.py", "finish"), ("parts/model.py", "kept")),
    "site: the gate": (("federation/egress.py", "refusal"),),
    "site: write its state": (("federation/state.py", "save"),),
    "server: tasks": (("federation/course.py", "_prepare_tasks"),),
    "server: read and check answers": (("federation/admission.py", "admit_answers"),),
    "server: mix": (("federation/server.py", "merge"),),
    "server: checkpoint and ledger": (("federation/run_folder.py", "save"),),
}
ROUNDS_OF = (("federation/course.py", "run_round"), ("federation/run_folder.py", "save"))


def main() -> None:
    """Run the study in all three ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--port", type=int, default=8102)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = yaml.safe_load((ROOT / "provisioning" / "project.yml").read_text())
        sites = [one["name"] for one in project["participants"] if one["type"] == "client"]
        phantoms = make_phantoms(folder / "phantoms", 0)
        for site in sites:
            (folder / "data").mkdir(exist_ok=True)
            (phantoms / site).rename(folder / "data" / site)
        job = changed_job(folder / "job" / JOB.name, options.rounds)
        simulated = ["-m", "silofl", "simulate", str(job), "--data", str(folder / "data")]
        seconds = profiled([*simulated[2:], "--out", str(folder / "alone"), "--alone"], options.rounds - 1)
        run(*simulated, "--out", str(folder / "network"))
        network = ["--out", str(folder / "tls"), "--data", str(folder / "data"), "--port", str(options.port)]
        run("-m", "provisioning", "run-federation", "--jobs", str(job), *network)
        found = {way: round_of(folder / way) for way in ("alone", "network", "tls")}
    show(seconds, found, len(sites))


def changed_job(target: Path, rounds: int) -> Path:
    """Copy the job without the guard, with so many rounds, for the CPU."""
    shutil.copytree(JOB, target)
    study = target / "app" / "config" / "study.yaml"
    values = yaml.safe_load(study.read_text()) | {"guard": False, "rounds": rounds, "device": "cpu"}
    study.write_text(yaml.safe_dump(values))
    return target


def run(*arguments: str) -> None:
    """Run Python with arguments, quietly, on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def profiled(command: list[str], rounds: int) -> dict[str, float]:
    """Run a command of silofl here; returns what each part takes in a round after the first."""
    profile, saved = cProfile.Profile(), {1}

    def only_here(function: Callable[..., None]) -> Callable[..., None]:
        def measured(one: Course | RunFolder, *arguments: object) -> None:
            # In the first round images are read and libraries loaded; a last validation saves its round once more.
            number = one.server.finished_rounds if isinstance(one, Course) else arguments[0].finished_rounds
            is_other = number in saved if isinstance(one, RunFolder) else number == 0
            with nullcontext() if is_other else profile:
                function(one, *arguments)
            saved.update({number} if isinstance(one, RunFolder) else ())

        return measured

    Course.run_round, RunFolder.save = only_here(Course.run_round), only_here(RunFolder.save)
    torch.set_num_threads(1)
    with redirect_stdout(StringIO()):
        main_of_silofl(command)
    return seconds_of(pstats.Stats(profile), rounds)


def seconds_of(stats: pstats.Stats, rounds: int) -> dict[str, float]:
    """Return the seconds that each part takes in a round, from a profile; the last is what none of them has."""
    # File and function -> seconds with all that it calls.
    known = {(file, name): values[3] for (file, _, name), values in stats.stats.items()}

    def of(end: str, wanted: str) -> float:
        times = [one for (file, name), one in known.items() if name == wanted and file.endswith(f"silofl/{end}")]
        if not times:
            sys.exit(f"{end} must have a function {wanted} that a round calls, as PARTS says; there is none: mend it")
        return sum(times)

    def within(functions: tuple[tuple[str, str], ...]) -> float:
        return sum(of(end, wanted) for end, wanted in functions if end != "-")

    found = {}
    for part, functions in PARTS.items():
        found[part] = within(functions) - sum(within(PARTS[name]) for end, name in functions if end == "-")
    found["all else"] = within(ROUNDS_OF) - sum(found.values())
    return {part: seconds / rounds for part, seconds in found.items()}


def round_of(folder: Path) -> float:
    """Return the median seconds of a run's rounds after the first, in which sites start."""
    (ledger, *_) = sorted(folder.rglob("ledger.json"))
    return statistics.median(record["seconds"] for record in json.loads(ledger.read_text())[1:])


def show(seconds: dict[str, float], found: dict[str, float], sites: int) -> None:
    """Print the parts by their seconds, and the three ways."""
    whole = sum(seconds.values())
    table = Table(f"a round of {sites} sites in one process, profiled", "seconds", "share", box=None)
    for part, one in sorted(seconds.items(), key=lambda item: -item[1]):
        table.add_row(part, f"{one:.3f}", f"{one / whole:.1%}")
    table.add_row("all", f"{whole:.3f}", "")
    ways = Table("a round", "seconds", f"beyond the work on {CORES} cores", box=None)
    names = {"alone": "in one process", "network": "NVFlare's simulator", "tls": "kits over mutual TLS"}
    for way, name in names.items():
        beyond = "-" if way == "alone" else f"{found[way] - found['alone'] / min(CORES, sites):.3f}"
        ways.add_row(name, f"{found[way]:.3f}", beyond)
    Console(width=120).print(table, "", ways, sep="\n")


if __name__ == "__main__":
    main()
