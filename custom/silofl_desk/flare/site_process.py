"""A simulated site's process, forked from one that has imported once what every site needs.

NVFlare starts a Python for each site, and where sites take turns one for each turn; each would import torch, MONAI and
NVFlare anew, several seconds of a core. NVFlare draws the base of its streams' numbers at its import, and a server
mistakes streams with the same base for one another: each process draws it again.
"""

import multiprocessing
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

from silofl.base.files import open_own

CONTEXT = multiprocessing.get_context("forkserver")
WORKER = "nvflare.private.fed.app.simulator.simulator_worker"
# torch.optim imports the compiler at its first step, and NVFlare its drivers when it connects.
IMPORTED: tuple[str, ...] = (__name__, "monai.networks.nets", "torch._dynamo", "silofl.flare.executor", WORKER)
IMPORTED += ("nvflare.fuel.f3.drivers.aio_http_driver", "nvflare.fuel.f3.drivers.grpc_driver")
# Variable of the environment: the file that gets all output.
LOG = "SILOFL_LOG"
# Of the streams of one process, far more than it sends.
STREAMS = 2**24


def start_importing() -> None:
    """Start the process that imports; it goes on beside this one, which must be the one that starts the sites."""
    CONTEXT.set_forkserver_preload(list(IMPORTED))
    forkserver.ensure_running()


class SiteProcess:
    """A site's process with the interface of `subprocess.Popen`, as far as NVFlare's simulator uses it.

    Args:
        command: NVFlare's command line of a site: Python, ``-m``, the module, and its arguments.
        env: Environment of the process.
        options: What else NVFlare gives, a session of its own, which the process makes itself.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], **options: object) -> None:
        self._process = CONTEXT.Process(target=_run_site, args=(list(command[3:]), dict(env)))
        self._process.start()

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.exitcode

    returncode = property(poll)

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def wait(self, timeout: float) -> None:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        self._process.join(timeout)
        if self._process.is_alive():
            raise subprocess.TimeoutExpired(shlex.join(sys.argv), timeout)


# What stands in for the module `subprocess` where NVFlare starts sites.
SUBPROCESS = SimpleNamespace(Popen=SiteProcess, TimeoutExpired=subprocess.TimeoutExpired)
# And for the module `sys`: `SiteProcess` needs no path to Python, which NVFlare's command might not keep whole.
SYSTEM = SimpleNamespace(executable="python", path=sys.path)


def _run_site(arguments: list[str], env: Mapping[str, str]) -> None:
    """Be a site, as NVFlare's own module would."""
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    if LOG in env:
        write_output_to(env[LOG])

    from nvflare.fuel.f3.mpm import MainProcessMonitor as mpm  # noqa: N813 - NVFlare's own name for it
    from nvflare.private.fed.app.simulator import simulator_worker

    number_streams_anew()
    sys.argv = [simulator_worker.__file__, *arguments]
    parsed = simulator_worker.parse_arguments()
    sys.exit(mpm.run(main_func=simulator_worker.main, run_dir=parsed.workspace, args=parsed))


def write_output_to(log: str) -> None:
    """Append this process's output and errors to a file from now on."""
    with open_own(Path(log), "ab") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)


def number_streams_anew() -> None:
    """Draw the base of this process's streams' numbers."""
    from nvflare.fuel.f3.streaming import stream_utils

    stream_utils.sid_base = secrets.randbelow(2**32) * STREAMS
