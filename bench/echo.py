"""NVFlare alone, as a measure of what it takes: rounds in which each site makes one step of Adam in plain torch.

The server sends one model to all sites of NVFlare's simulator, waits for all answers and takes their mean. The classes
are the components of that job, which NVFlare finds on the PYTHONPATH.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from memory import watched
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController
from torch import nn

from silofl.base.settings import parse
from silofl.models import build_plain_model
from silofl.study import Study

# As the package's own jobs have it: a site asks for its next task so often.
REQUEST_S = 0.2
# Key of a site's answer: the seconds of its step.
STEP_S = "step_s"


class EchoRounds(ModelController):
    """The server: so many rounds; writes the seconds of each, and those of its sites' steps, shared by the cores.

    Args:
        sites: How many there must be.
        study: File of the study whose network it is.
        rounds: How many.
        out: The file.
    """

    def __init__(self, sites: int, study: str, rounds: int, out: str) -> None:
        super().__init__(persistor_id="")
        self._sites, self._study, self._rounds, self._out = sites, study, rounds, Path(out)

    def run(self) -> None:
        """Carry out all rounds."""
        arrays = {name: value.numpy() for name, value in _build_network(self._study).state_dict().items()}
        sites, seconds = self.sample_clients(self._sites), []
        for number in range(self._rounds):
            started = time.perf_counter()
            answers = self.send_model_and_wait(targets=sites, data=FLModel(params=arrays, current_round=number))
            arrays = {name: np.array(np.mean([one.params[name] for one in answers], axis=0)) for name in arrays}
            steps = sum(answer.meta[STEP_S] for answer in answers) / len(os.sched_getaffinity(0))
            seconds.append((time.perf_counter() - started, steps))
        self._out.write_text(json.dumps(seconds))


class Echo(Executor):
    """A site: sends back what it receives, after one step on a batch of noise.

    Args:
        study: File of the study whose network it is.
        batch: The shape of a batch.
    """

    def __init__(self, study: str, batch: Sequence[int]) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self._network = _build_network(study)
        self._optimizer = torch.optim.Adam(self._network.parameters())
        self._batch = batch

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer a task."""
        model = FLModelUtils.from_shareable(shareable)
        # Of computing: where more sites step than there are cores, each also waits for the others.
        started = time.thread_time()
        self._network.load_state_dict({name: torch.from_numpy(value) for name, value in model.params.items()})
        self._optimizer.zero_grad()
        self._network(torch.randn(*self._batch)).square().mean().backward()
        self._optimizer.step()
        arrays = {name: value.numpy() for name, value in self._network.state_dict().items()}
        return FLModelUtils.to_shareable(FLModel(params=arrays, meta={STEP_S: time.thread_time() - started}))


@dataclass(frozen=True)
class Echoed:
    """What NVFlare alone takes.

    Attributes:
        peak: Most memory of all its processes, in bytes.
        round_s: Seconds of a round beyond the sites' steps, the median.
        rest_s: Seconds of all that is no round: from the command to the first, and from the last to its end.
    """

    peak: int
    round_s: float
    rest_s: float


def _build_network(study: str) -> nn.Module:
    found = parse(Study, json.loads(Path(study).read_text()), "study")
    return build_plain_model(found, found.seed)


def echoed(folder: Path, study: Study, sites: int, image: Sequence[int]) -> Echoed:
    """Run the job in a new folder, for a study's network and rounds, on batches of images of a shape."""
    out, file = folder / "seconds.json", folder / "study.json"
    arguments = {"sites": sites, "study": str(file), "rounds": study.rounds, "out": str(out)}
    server = {"workflows": [{"id": "rounds", "path": "echo.EchoRounds", "args": arguments}]}
    server |= {"server": {"task_request_interval": REQUEST_S}}
    site = {"path": "echo.Echo", "args": {"study": str(file), "batch": [study.training.batch_size, *image]}}
    client = {"executors": [{"tasks": ["*"], "executor": site}]}
    allowed = {"class_allow_list": ["echo.EchoRounds", "echo.Echo"]}
    form = {"format_version": 2, "components": []}
    files = {
        "study.json": study.model_dump(mode="json", exclude_none=True),
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
    seconds, steps = np.median(json.loads(out.read_text())[1:], axis=0)  # the first waits for all processes to start
    return Echoed(peak, float(seconds - steps), time.perf_counter() - started - study.rounds * float(seconds))
