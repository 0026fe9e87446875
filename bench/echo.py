"""NVFlare alone, as a measure of what it takes: rounds in which sites send a model back as it came, without any work.

The server sends one model to all sites of NVFlare's simulator, waits for all answers and takes their mean. The classes
are the components of that job, which NVFlare finds on the PYTHONPATH.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from memory import watched
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController

# As the package's own jobs have it: a site asks for its next task so often.
REQUEST_S = 0.2


class EchoRounds(ModelController):
    """The server: so many rounds with arrays of zeros; writes the seconds of each to a file.

    Args:
        sites: How many there must be.
        shapes: Name of an array -> its shape.
        rounds: How many.
        out: The file.
    """

    def __init__(self, sites: int, shapes: Mapping[str, Sequence[int]], rounds: int, out: str) -> None:
        super().__init__(persistor_id="")
        self._sites, self._shapes, self._rounds, self._out = sites, shapes, rounds, Path(out)

    def run(self) -> None:
        """Carry out all rounds."""
        arrays = {name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}
        sites, seconds = self.sample_clients(self._sites), []
        for number in range(self._rounds):
            started = time.perf_counter()
            answers = self.send_model_and_wait(targets=sites, data=FLModel(params=arrays, current_round=number))
            arrays = {name: np.mean([answer.params[name] for answer in answers], axis=0) for name in arrays}
            seconds.append(time.perf_counter() - started)
        self._out.write_text(json.dumps(seconds))


class Echo(Executor):
    """A site: sends back what it receives."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer a task."""
        return FLModelUtils.to_shareable(FLModelUtils.from_shareable(shareable))


@dataclass(frozen=True)
class Echoed:
    """What NVFlare alone takes.

    Attributes:
        peak: Most memory of all its processes, in bytes.
        round_s: Seconds of a round, the median.
        rest_s: Seconds of all that is no round: from the command to the first, and from the last to its end.
    """

    peak: int
    round_s: float
    rest_s: float


def echoed(folder: Path, sites: int, shapes: Mapping[str, Sequence[int]], rounds: int) -> Echoed:
    """Run the job in a new folder."""
    out = folder / "seconds.json"
    arguments = {"sites": sites, "shapes": shapes, "rounds": rounds, "out": str(out)}
    server = {"workflows": [{"id": "rounds", "path": "echo.EchoRounds", "args": arguments}]}
    server |= {"server": {"task_request_interval": REQUEST_S}}
    client = {"executors": [{"tasks": ["*"], "executor": {"path": "echo.Echo", "args": {}}}]}
    allowed = {"class_allow_list": ["echo.EchoRounds", "echo.Echo"]}
    form = {"format_version": 2, "components": []}
    files = {
        "job/meta.json": {"name": "echo", "deploy_map": {"app": ["@ALL"]}, "min_clients": sites},
        "job/app/config/config_fed_server.json": form | server,
        "job/app/config/config_fed_client.json": form | client,
        "workspace/local/resources.json": form | allowed,
    }
    for name, values in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    words = ["simulator", folder / "job", "-w", folder / "workspace", "-n", sites, "-t", sites]
    modules = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    started = time.perf_counter()
    peak = watched([sys.executable, "-m", "nvflare.cli", *map(str, words)], os.environ | {"PYTHONPATH": modules})
    # The first round waits for all processes to start.
    usual = float(np.median(json.loads(out.read_text())[1:]))
    return Echoed(peak, usual, time.perf_counter() - started - rounds * usual)
