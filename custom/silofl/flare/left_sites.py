"""The server's lasting process tells its jobs which of their sites have left them, and brings back who returns.

NVFlare 2.9 says nothing of a site that was started again, or late: it registers under a new token, and gets no job that
runs already; here `ReturnedSites` gives it its jobs. And where a site reports that its process for a job could not
begin, as by a policy or a disk that is wrong, or that it failed later, NVFlare ends the job for everybody; here the job
itself decides, by the study's quorum. What fails for the first time ends the job: in the one that goes on the site
takes part again, and nothing is lost. And once a job's process at the server has ended, NVFlare waits a quarter of an
hour for a site's process that hangs, in which its lead gets no result. And what ran when the server was stopped, it
calls RUNNING for ever, which nobody can abort or delete.
"""

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey, ServerCommandKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.fuel.common.exit_codes import PROCESS_EXIT_REASON, ProcessExitCode
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey

from silofl.flare.job_loop import JobLoop
from silofl.flare.one_machine import HEARD_S
from silofl.flare.returned_sites import ReturnedSites, list_named

logger = logging.getLogger(__name__)
# The topics of the commands that a running controller answers; of the second, whether the job goes on.
LEFT, FAILED = "silofl.left", "silofl.failed"
ANSWER_S = 5.0
# How long the sites' processes of a job may take to end after the server's.
HANGING_S = 60.0
# Within it a site whose process has failed is one that fails again.
DAY_S = 86400.0
# Of a process that never came to a task.
UNBEGUN_CODES = (ProcessExitCode.UNSAFE_COMPONENT, ProcessExitCode.CONFIG_ERROR, ProcessExitCode.INFRASTRUCTURE_ERROR)
FAILED_CODES = (ProcessExitCode.EXCEPTION, JobReturnCode.ABORTED)
AGAIN = "it came late or again and cannot go on: its own log and the server's say why; restart it once that is mended"
UNBEGUN = "its process for this job could not begin ({}): its own log says why; restart the site once that is mended"
FAILED_AGAIN = "its process failed twice in a day: its own log says why; restart the site once that is mended"


class LeftSites(FLComponent):
    """Tells running jobs which of their sites take part no more or again, and ends the jobs of a server that stopped.

    A component of the server's resources.
    """

    def __init__(self) -> None:
        super().__init__()
        # Job -> site -> why.
        self._reported: dict[str, dict[str, str]] = {}
        # Site, and name of a job and of its lead, which a continuation has too -> when the site's process last failed.
        self._failed_at: dict[tuple[str | None, ...], float] = {}
        # Job -> when it was last seen to run.
        self._ran_at: dict[str, float] = {}
        self._returned = ReturnedSites()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Look at all jobs where a site shows that it is alive: as soon as it has registered, and every ten seconds."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._take_reports(fl_ctx.get_prop(FLContextKey.SITE_OBJ))
            engine = fl_ctx.get_engine()
            # NVFlare has it, and nobody who calls it. No job of this process has begun yet.
            engine.job_runner.update_unfinished_jobs(fl_ctx)
            JobLoop(engine.job_runner, engine.get_component(SystemComponents.JOB_MANAGER), Path.cwd())
        if event_type != EventType.CLIENT_HEARTBEAT_PROCESSED:
            return
        engine = fl_ctx.get_engine()
        for job, process in list(engine.run_processes.items()):
            left = self._reported.setdefault(job, {})
            participants = process[RunProcessKey.PARTICIPANTS].values()
            named = list_named(engine.job_runner, job)
            for site in find_returned_sites(participants, engine.get_clients(), named):
                # What was reported of its process before is over.
                left.pop(site.name, None)
                if not self._returned.give(engine, job, site):
                    left[site.name] = AGAIN
            if left:
                # Each time: a job's process that has just begun does not listen yet.
                engine.send_app_command(job, LEFT, {"sites": left}, ANSWER_S)
        self._end_hanging(engine, fl_ctx)

    def _end_hanging(self, engine: Any, fl_ctx: FLContext) -> None:  # noqa: ANN401 - NVFlare's ServerEngine
        """End the sites' processes of jobs that have ended at the server a while ago, and wait for them no longer."""
        now = time.monotonic()
        runner = engine.job_runner
        self._ran_at |= dict.fromkeys(list(engine.run_processes), now)
        for job in [job for job, ran_at in self._ran_at.items() if now - ran_at > HANGING_S]:
            del self._ran_at[job]
            hanging = [site.name for site in engine.get_clients() if runner.is_client_outcome_pending(job, site.name)]
            for site in hanging:
                logger.warning("site %s hangs in job %s, which has ended: its process is ended", site, job)
                # Before it is ended, which would be a failure: the job's result is there already.
                runner.resolve_client_outcome(job, site)
            if hanging:
                runner.abort_client_run(job, hanging, fl_ctx)

    def _take_reports(self, server: Any) -> None:  # noqa: ANN401 - NVFlare's FederatedServer
        """Read what sites report of their processes before NVFlare does."""

        def take(request: Message) -> Message:
            self._take_report(request, server)
            return server.process_job_failure(request)

        server.cell.register_request_cb(
            channel=CellChannel.SERVER_MAIN, topic=CellChannelTopic.REPORT_JOB_FAILURE, cb=take
        )

    def _take_report(self, request: Message, server: Any) -> None:  # noqa: ANN401
        """Note for its job that a site's process failed, and leave NVFlare the report of an end without a failure.

        A failure that ends the job stays as it is.
        """
        client = server.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
        if client is None or not isinstance(request.payload, dict):
            return
        job, code = (request.payload.get(key, "") for key in (JobFailureMsgKey.JOB_ID, JobFailureMsgKey.CODE))
        if not server.engine.job_runner.is_client_outcome_pending(job, client.name):
            return
        if code in UNBEGUN_CODES:
            why = UNBEGUN.format(PROCESS_EXIT_REASON[code])
        elif code in FAILED_CODES and self._goes_on(server.engine, job, client.name):
            why = FAILED_AGAIN
        else:
            return
        self._reported.setdefault(job, {})[client.name] = why
        request.payload[JobFailureMsgKey.CODE] = None

    def _goes_on(self, engine: Any, job: str, site: str) -> bool:  # noqa: ANN401 - NVFlare's ServerEngine
        """Ask a job whether it goes on without a site whose process has failed in a round."""
        running = engine.job_runner.running_jobs.get(job)
        if running is None:
            return False
        # A continuation is another job, with the same name and lead.
        key = (site, *(running.meta.get(name) for name in (JobMetaKey.JOB_NAME, JobMetaKey.SUBMITTER_NAME)))
        now = time.monotonic()
        is_again = now - self._failed_at.get(key, -DAY_S) < DAY_S
        self._failed_at[key] = now
        reply = engine.send_app_command(job, FAILED, {"site": site, "again": is_again}, ANSWER_S)
        answer = reply.get(ServerCommandKey.DATA) if isinstance(reply, dict) else None
        return isinstance(answer, dict) and answer.get("goes_on") is True


def find_returned_sites(participants: Iterable[Client], connected: Iterable[Client], named: set[str]) -> list[Client]:
    """Return the sites of a job that are connected without it, as they are registered now.

    Args:
        participants: The job's sites, as they were when they began it.
        connected: All sites that are connected now, by the server's own record.
        named: The sites that the job names, which may not have been there when it began.
    """
    tokens = dict.fromkeys(named) | {client.name: client.token for client in participants}
    returned = []
    for client in connected:
        # NVFlare keeps one that went without a word for ten minutes.
        is_heard = time.time() - client.last_connect_time < HEARD_S
        if is_heard and tokens.get(client.name, client.token) != client.token:
            returned.append(client)
    return sorted(returned, key=lambda client: client.name)
