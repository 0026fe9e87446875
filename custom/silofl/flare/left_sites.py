"""The server's lasting process tells its jobs which of their sites have left them.

NVFlare 2.9 says nothing of a site that was started again: it registers under a new token, and gets no job that runs
already. And where a site reports that its process for a job could not begin, as by a policy or a disk that is wrong,
NVFlare ends the job for everybody; here the study's quorum decides. A process that fails later does end the job, which
is then continued with the site.
"""

from collections.abc import Iterable
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.common.exit_codes import PROCESS_EXIT_REASON, ProcessExitCode
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey

# The topic of the command that a running controller answers.
LEFT = "silofl.left"
ANSWER_S = 5.0
# Of a process that never came to a task.
CODES = (ProcessExitCode.UNSAFE_COMPONENT, ProcessExitCode.CONFIG_ERROR, ProcessExitCode.INFRASTRUCTURE_ERROR)
AGAIN = "it was started again, and NVFlare gives it no running job: continue the run to take it in"
UNBEGUN = "its process for this job could not begin ({}): its own log says why; continue the run once that is mended"


class LeftSites(FLComponent):
    """Tells running jobs which of their sites take part no more; a component of the server's resources."""

    def __init__(self) -> None:
        super().__init__()
        # Job -> site -> why.
        self._unbegun: dict[str, dict[str, str]] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Look at all jobs where a site shows that it is alive: as soon as it has registered, and every ten seconds."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._take_reports(fl_ctx.get_prop(FLContextKey.SITE_OBJ))
        if event_type != EventType.CLIENT_HEARTBEAT_PROCESSED:
            return
        engine = fl_ctx.get_engine()
        for job, process in list(engine.run_processes.items()):
            again = find_left_sites(process[RunProcessKey.PARTICIPANTS].values(), engine.get_clients())
            left = dict.fromkeys(sorted(again), AGAIN) | self._unbegun.get(job, {})
            if left:
                # Each time: a job's process that has just begun does not listen yet.
                engine.send_app_command(job, LEFT, {"sites": left}, ANSWER_S)

    def _take_reports(self, server: Any) -> None:  # noqa: ANN401 - NVFlare's FederatedServer
        """Read what sites report of their processes before NVFlare does."""

        def take(request: Message) -> Message:
            self._take_report(request, server)
            return server.process_job_failure(request)

        server.cell.register_request_cb(
            channel=CellChannel.SERVER_MAIN, topic=CellChannelTopic.REPORT_JOB_FAILURE, cb=take
        )

    def _take_report(self, request: Message, server: Any) -> None:  # noqa: ANN401
        """Note for its job that a site could not begin, and leave NVFlare the report of an end without a failure."""
        client = server.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
        if client is None or not isinstance(request.payload, dict):
            return
        job, code = (request.payload.get(key) for key in (JobFailureMsgKey.JOB_ID, JobFailureMsgKey.CODE))
        if code in CODES and server.engine.job_runner.is_client_outcome_pending(job, client.name):
            self._unbegun.setdefault(job, {})[client.name] = UNBEGUN.format(PROCESS_EXIT_REASON[code])
            request.payload[JobFailureMsgKey.CODE] = None


def find_left_sites(participants: Iterable[Client], connected: Iterable[Client]) -> set[str]:
    """Return the names of a job's sites that are connected without it.

    Args:
        participants: The job's sites, as they were when it began.
        connected: All sites that are connected now, by the server's own record.
    """
    tokens = {client.name: client.token for client in connected}
    return {one.name for one in participants if tokens.get(one.name, one.token) != one.token}
