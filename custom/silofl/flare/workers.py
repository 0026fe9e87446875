"""NVFlare's simulator, whose sites are forked, whose server notices their end at once, and which then ends at once."""

import time
from collections.abc import MutableMapping
from multiprocessing import connection

from nvflare.apis.client import Client
from nvflare.fuel.f3.mpm import MainProcessMonitor as mpm  # noqa: N813 - NVFlare's own name for it
from nvflare.private.fed.app.simulator import simulator_runner
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner, SimulatorRunner
from nvflare.private.fed.server.client_manager import ClientManager

from silofl.flare.site_process import SUBPROCESS, SYSTEM, start_importing

# How long NVFlare may take to close its connections, as long as it gives itself.
CLEANUP_S = 6
RETRY_S = 0.05

# Whether the run is over, the site of the next turn, and the site that has ended its run.
Ended = tuple[bool, Client | None, str | None]


class WatchfulRunner(SimulatorRunner):
    """NVFlare's simulator, with sites whose end is noticed."""

    def run_process(self, return_dict: MutableMapping[str, object]) -> None:
        """Run the simulation in the process that NVFlare starts for it, and end without its three seconds of grace.

        They are for messages on their way; here every site's process has ended before.
        """
        start_importing()
        simulator_runner.subprocess, simulator_runner.sys = SUBPROCESS, SYSTEM
        code = mpm.run(self.simulator_run_main, self.workspace, shutdown_grace_time=0, cleanup_grace_time=CLEANUP_S)
        return_dict["run_status"] = code

    def client_run(self, server_custom_folder: str, clients: list[Client], gpu: str | None) -> None:
        """Run the sites until the run ends."""
        sites = _Sites(server_custom_folder, self.args, clients, self.client_config, self.deploy_args, self.build_ctx)
        sites.known = self.server.engine.client_manager
        sites.run(gpu)


class _Sites(SimulatorClientRunner):
    """NVFlare's starter of the sites' processes."""

    known: ClientManager

    def do_one_task(self, client: Client, num_of_threads: int, *arguments: object, **named: object) -> Ended:
        """Run a site's process; the server no longer knows a site whose process has ended before the run."""
        is_dead = True
        try:
            ended = super().do_one_task(client, num_of_threads, *arguments, **named)
            # NVFlare names no next site where the line to a process broke.
            is_dead = ended[1] is None
            return ended
        finally:
            # Where sites take turns, the next turn starts a new process.
            if is_dead and num_of_threads == len(self.federated_clients):
                self.known.remove_client(client.token)

    def _create_connection(self, open_port: int, timeout: float = 60.0) -> connection.Connection:
        """Connect to a site's process as soon as it listens; NVFlare tries once a second."""
        end = time.monotonic() + timeout
        while True:
            try:
                return connection.Client(("localhost", open_port))
            except OSError:
                if time.monotonic() > end:
                    raise
            time.sleep(RETRY_S)
