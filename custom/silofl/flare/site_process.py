"""A simulated site's process, forked from one that has imported once what every site needs.

NVFlare starts a Python for each site, and where sites take turns one for each turn; each would import torch and MONAI
anew, several seconds of a core. NVFlare itself is left to each process: it draws the base of its streams' numbers when
it is imported, and a server mistakes streams with the same base for one another.
"""

import multiprocessing
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from types import SimpleNamespace

CONTEXT = multiprocessing.get_context("forkserver")
# torch.optim imports the compiler at its first step.
IMPORTED = (__name__, "monai.networks.nets", "torch._dynamo", "silofl.federation.site")


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

    from nvflare.fuel.f3.mpm import MainProcessMonitor as mpm  # noqa: N813 - NVFlare's own name for it
    from nvflare.private.fed.app.simulator import simulator_worker

    sys.argv = [simulator_worker.__file__, *arguments]
    parsed = simulator_worker.parse_arguments()
    sys.exit(mpm.run(main_func=simulator_worker.main, run_dir=parsed.workspace, args=parsed))
