"""The memory of the server's process, and the time of a round, by sites that send ready-made arrays.

    python bench/server_memory.py [--sites 8] [--mb 300] [--rounds 3] [--set algorithm={name: softpull}] [--plain]

The server is the package's own, in NVFlare's simulator; each site is a process that trains nothing (`ready_made`). With
--plain it is NVFlare's own rounds instead, with all answers in memory and arrays sent whole.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from memory import GIB, watched
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController
from ready_made import META

from silofl.base.files import write_json
from silofl.base.settings import dump_yaml
from silofl.federation.needs import site_names, traveling_bytes
from silofl.flare.controller import RoundsController
from silofl.models import build_plain_model
from silofl.setup.software import read_software
from silofl.study import Study
from silofl_desk.options import parse_setting
from silofl_desk.studies.runs.simulation import changed_study

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
        with watching_own(self._out):
            super().run()


class PlainRounds(ModelController):
    """NVFlare's own server: the next model is the last one with the mean of the answers, which are all in memory.

    Args:
        out: The file, as of `WatchedRounds`.
        shapes: Name of an array -> its sides.
        rounds: How many.
    """

    def __init__(self, out: str, shapes: dict[str, list[int]], rounds: int) -> None:
        super().__init__(persistor_id="")
        self._out, self._shapes, self._rounds = Path(out), shapes, rounds

    def run(self) -> None:
        """Carry out all rounds, and write their seconds."""
        arrays = {name: np.zeros(sides, np.float32) for name, sides in self._shapes.items()}
        seconds = []
        with watching_own(self._out):
            for number in range(self._rounds):
                started = time.perf_counter()
                answers = self.send_model_and_wait(data=FLModel(params=arrays, meta={META: {"round": number}}))
                arrays = {
                    name: array + np.mean([one.params[name] for one in answers], axis=0, dtype=np.float32)
                    for name, array in arrays.items()
                }
                seconds.append({"seconds": time.perf_counter() - started})
        write_json(self._out.with_name("ledger.json"), seconds)


@contextmanager
def watching_own(out: Path) -> Iterator[None]:
    """Write into a file the peak of this process's memory, and its seconds of CPU."""
    started, found, ended = time.process_time(), [read_own()], threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_S):
            found.append(read_own())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    write_json(out, {"begun": found[0], "peak": max(found), "cpu_s": time.process_time() - started})


def read_own() -> int:
    """Return the bytes of memory that this process has for itself alone."""
    return 1024 * sum(map(int, re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", Path("/proc/self/status").read_text())))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--mb", type=float, default=300, help="of a model, in float32; at most 400")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", dest="choices", action="append", default=[])
    parser.add_argument("--plain", action="store_true", help="NVFlare's own rounds")
    options = parser.parse_args()
    study = build_study(options.mb, options.rounds, options.sites, options.choices)
    model = traveling_bytes(study)
    print(f"{options.sites} sites, {study.algorithm.name}, a model of {model / 1e6:.0f} MB")
    measure(study, options.sites, model, options.plain)


def build_study(megabytes: float, rounds: int, sites: int, choices: Sequence[str]) -> Study:
    """Return a study of FedAvg with a U-Net of about a size."""
    factor = (megabytes / 4 / MILLIONS) ** 0.5
    features = [2 * round(factor * width / 2) for width in WIDTHS]
    changes = {
        "model.features": features,
        "model.normalization": "instance",
        "baseline_comparison": False,
        "rounds": rounds,
    }
    changes |= {"device": "cpu", "federation.min_sites": sites, "federation.max_missed_rounds": rounds}
    return changed_study(JOB, changes | dict(map(parse_setting, choices)))


def measure(study: Study, sites: int, model: int, is_plain: bool) -> None:
    """Run the study in the simulator with ready-made answers, and print what it took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = write_job(folder, study, sites, is_plain)
        modules = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        everything = watched(command, os.environ | {"PYTHONPATH": modules})
        found = json.loads((folder / "memory.json").read_text())
        (ledger,) = folder.rglob("ledger.json")
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


def write_job(folder: Path, study: Study, sites: int, is_plain: bool) -> list[str]:
    """Write the job and its workspace into a folder; returns the simulator's command."""
    arguments: dict[str, Any] = {"out": str(folder / "memory.json")}
    if is_plain:
        shapes = {name: list(value.shape) for name, value in build_plain_model(study, 0).state_dict().items()}
        arguments |= {"shapes": shapes, "rounds": study.rounds}
    path = "server_memory.PlainRounds" if is_plain else "server_memory.WatchedRounds"
    server = {"workflows": [{"id": "rounds", "path": path, "args": arguments}]}
    server |= {"server": {"task_request_interval": 0.2}}
    site = {"path": "ready_made.ReadyMade", "args": {"software": read_software().model_dump(), "is_plain": is_plain}}
    form = {"format_version": 2, "components": []}
    files = {
        "job/meta.json": {"name": "memory", "deploy_map": {"app": ["@ALL"]}, "min_clients": sites},
        "job/app/config/config_fed_server.json": form | server,
        "job/app/config/config_fed_client.json": form | {"executors": [{"tasks": ["*"], "executor": site}]},
        "workspace/local/resources.json": form | {"class_allow_list": [path, "ready_made.ReadyMade"]},
    }
    for name, values in files.items():
        write_json(folder / name, values)
    (folder / "job/app/config/study.yaml").write_text(dump_yaml(study.model_dump(mode="json", exclude_none=True)))
    words = ["simulator", folder / "job", "-w", folder / "workspace", "-c", ",".join(site_names(sites)), "-t", sites]
    return [sys.executable, "-m", "nvflare.cli", *map(str, words)]


if __name__ == "__main__":
    main()
