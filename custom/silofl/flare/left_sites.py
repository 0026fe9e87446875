"""The server's lasting process tells its jobs which of their sites have left them: NVFlare 2.9 itself says nothing.

A site that was started again registers under a new token, and NVFlare gives it no job that runs already.
"""

from collections.abc import Iterable

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import RunProcessKey
from nvflare.apis.fl_context import FLContext

# The topic of the command that a running controller answers.
LEFT = "silofl.left"
ANSWER_S = 5.0


class LeftSites(FLComponent):
    """Tells running jobs which of their sites were started again; a component of the server's resources."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Look at all jobs where a site shows that it is alive: as soon as it has registered, and every ten seconds."""
        if event_type != EventType.CLIENT_HEARTBEAT_PROCESSED:
            return
        engine = fl_ctx.get_engine()
        for job, process in list(engine.run_processes.items()):
            left = find_left_sites(process[RunProcessKey.PARTICIPANTS].values(), engine.get_clients())
            if left:
                engine.send_app_command(job, LEFT, {"sites": sorted(left)}, ANSWER_S)


def find_left_sites(participants: Iterable[Client], connected: Iterable[Client]) -> set[str]:
    """Return the names of a job's sites that are connected without it.

    Args:
        participants: The job's sites, as they were when it began.
        connected: All sites that are connected now, by the server's own record.
    """
    tokens = {client.name: client.token for client in connected}
    return {one.name for one in participants if tokens.get(one.name, one.token) != one.token}
