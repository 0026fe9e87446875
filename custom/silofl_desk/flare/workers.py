"""NVFlare's simulator, whose sites are forked, whose server notices their end at once, and which then ends at once."""

import time
from types import SimpleNamespace

from nvflare.apis.client import Client
from nvflare.fuel.f3.mpm import MainProcessMonitor as mpm  # noqa: N813 - NVFlare's own name for it
from nvflare.private.fed.app.simulator import simulator_runner
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner, SimulatorRunner
from nvflare.private.fed.server.client_manager import ClientManager

from silofl_desk.flare.site_process import SUBPROCESS, SYSTEM

# How long NVFlare may take to close its connections, as long as it gives itself.
CLEANUP_S = 6
RETRY_S = 0.05
# What stands in for the module `time` there: it looks once a second whether a server or a site has started.
CLOCK = SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(min(seconds, RETRY_S)))

# Whether the run is over, the site of the next turn, and the site that has ended its run.
Ended = tuple[bool, Client | None, str | None]


class WatchfulRunner(SimulatorRunner):
    """NVFlare's simulator, with sites whose end is noticed."""

    def run(self) -> int:
        """Run the simulation in this process, and end without NVFlare's three seconds of grace; returns the exit code.

        They are for messages on their way; here every site's process has ended before.
        """
        # NVFlare's module finds these in place of the modules that it imports.
        simulator_runner.subprocess = SUBPROCESS
        simulator_runner.sys = SYSTEM
        simulator_runner.time = CLOCK
        code: int = mpm.run(
            self.simulator_run_main, self.workspace, shutdown_grace_time=0, cleanup_grace_time=CLEANUP_S
        )
        return code

    def client_run(self, server_custom_folder: str, clients: list[Client], gpu: str | None) -> None:
        """Run the sites until the run ends."""
        sites = _Sites(server_custom_folder, self.args, clients, self.client_config, self.deploy_args, self.build_ctx)
        sites.manager = self.server.engine.client_manager
        sites.run(gpu)


class _Sites(SimulatorClientRunner):
    """NVFlare's starter of the sites' processes."""

    manager: ClientManager

    def do_one_task(self, client: Client, num_of_threads: int, *arguments: object, **named: object) -> Ended:
        """Run a site's process; the server no longer knows a site whose process has ended before the run."""
        is_dead = True
        try:
            ended: Ended = super().do_one_task(client, num_of_threads, *arguments, **named)
            # NVFlare names no next site where the line to a process broke.
            is_dead = ended[1] is None
            return ended
        finally:
            if is_dead:
                self.manager.remove_client(client.token)
