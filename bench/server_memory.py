"""The memory of the server's process, and the time of a round, by sites that send ready-made arrays.

    python bench/server_memory.py [--sites 8] [--mb 300] [--rounds 3] [--set algorithm={name: softpull}]

The server is the package's own, in NVFlare's simulator; each site is a process that trains nothing (`ready_made`).
Memory is the server's own at its peak, some 0.3 GiB of it Python and its packages; not what it has read of files,
which the system takes back where it needs memory. To compare two versions, run both at the same time: times vary with
what else the machine does.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from memory import GIB, watched

from silofl.base.files import write_json
from silofl.base.settings import dump_yaml
from silofl.federation.needs import server_memory_bytes, site_names, traveling_bytes
from silofl.flare.controller import RoundsController
from silofl.setup.software import read_software
from silofl.study import Study
from silofl_desk.options import parse_setting
from silofl_desk.studies.simulation import changed_study

JOB = Path(__file__).parents[1] / "jobs" / "fedavg_phantoms"
# The U-Net of 103 million parameters, whose stages are as wide as the wanted size asks.
POLL_S = 0.02
WIDTHS, MILLIONS = (64, 128, 1024, 1024, 1024, 64), 103.2


class WatchedRounds(RoundsController):
    """The server, which writes the peak of its memory into a file.

    Args:
        out: The file.
    """

    def __init__(self, out: str) -> None:
        super().__init__()
        self._out = Path(out)

    def run(self) -> None:
        """Carry out all rounds."""
        started, found, ended = time.process_time(), [read_own()], threading.Event()

        def watch() -> None:
            while not ended.wait(POLL_S):
                found.append(read_own())

        watcher = threading.Thread(target=watch)
        watcher.start()
        super().run()
        ended.set()
        watcher.join()
        write_json(self._out, {"begun": found[0], "peak": max(found), "cpu_s": time.process_time() - started})


def read_own() -> int:
    """Return the bytes of memory that this process has for itself alone."""
    return 1024 * sum(map(int, re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", Path("/proc/self/status").read_text())))


def main() -> None:
    """Measure, and print beside what `silofl estimate` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--mb", type=float, default=300, help="of a model, in float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", dest="choices", action="append", default=[])
    options = parser.parse_args()
    study = build_study(options.mb, options.rounds, options.sites, options.choices)
    model = traveling_bytes(study)
    print(f"{options.sites} sites, {study.algorithm.name}, a model of {model / 1e6:.0f} MB")
    print(f"estimate: {server_memory_bytes(study, options.sites) / GIB:.2f} GiB")
    measure(study, options.sites, model)


def build_study(megabytes: float, rounds: int, sites: int, choices: Sequence[str]) -> Study:
    """Return a study of FedAvg with a U-Net of about a size."""
    factor = (megabytes / 4 / MILLIONS) ** 0.5
    features = [2 * round(factor * width / 2) for width in WIDTHS]
    changes = {"model.features": features, "model.normalization": "instance", "guard": False, "rounds": rounds}
    changes |= {"device": "cpu", "federation.min_sites": sites, "federation.max_missed_rounds": rounds}
    return changed_study(JOB, changes | dict(map(parse_setting, choices)))


def measure(study: Study, sites: int, model: int) -> None:
    """Run the study in the simulator with ready-made answers, and print what it took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = write_job(folder, study, sites)
        modules = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        everything = watched(command, os.environ | {"PYTHONPATH": modules})
        found = json.loads((folder / "memory.json").read_text())
        (ledger,) = folder.rglob("silofl/ledger.json")
        seconds = [record["seconds"] for record in json.loads(ledger.read_text())]
    models = (found["peak"] - found["begun"]) / model
    print(
        f"the server's peak: {found['peak'] / GIB:.2f} GiB, of which {found['begun'] / GIB:.2f} before the run, so "
        f"{models:.1f} models; all processes {everything / GIB:.1f} GiB"
    )
    print(
        f"seconds of the rounds: {', '.join(f'{one:.1f}' for one in seconds)}; median after the first "
        f"{statistics.median(seconds[1:]):.1f}; CPU seconds of the server {found['cpu_s']:.0f}"
    )


def write_job(folder: Path, study: Study, sites: int) -> list[str]:
    """Write the job and its workspace into a folder; returns the simulator's command."""
    software = read_software().model_dump()
    out = str(folder / "memory.json")
    server = {"workflows": [{"id": "rounds", "path": "server_memory.WatchedRounds", "args": {"out": out}}]}
    server |= {"server": {"task_request_interval": 0.2}}
    site = {"path": "ready_made.ReadyMade", "args": {"software": software}}
    form = {"format_version": 2, "components": []}
    files = {
        "job/meta.json": {"name": "memory", "deploy_map": {"app": ["@ALL"]}, "min_clients": sites},
        "job/app/config/config_fed_server.json": form | server,
        "job/app/config/config_fed_client.json": form | {"executors": [{"tasks": ["*"], "executor": site}]},
        "workspace/local/resources.json": form
        | {"class_allow_list": ["server_memory.WatchedRounds", "ready_made.ReadyMade"]},
    }
    for name, values in files.items():
        write_json(folder / name, values)
    (folder / "job/app/config/study.yaml").write_text(dump_yaml(study.model_dump(mode="json", exclude_none=True)))
    words = ["simulator", folder / "job", "-w", folder / "workspace", "-c", ",".join(site_names(sites)), "-t", sites]
    return [sys.executable, "-m", "nvflare.cli", *map(str, words)]


if __name__ == "__main__":
    main()
