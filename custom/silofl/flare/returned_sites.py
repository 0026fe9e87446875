"""A site that was started again, or late, goes on with the jobs that run.

NVFlare 2.9 gives a job to the sites that are there when it begins, and to nobody afterwards. What its `JobRunner` then
does for all sites is done here for one: the job's process at the server takes the site's new token, and the site asks
its own rights and its GPUs anew.
"""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import RunProcessKey, ServerCommandKey
from nvflare.apis.job_def import ALL_SITES, Job
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.private.admin_defs import MsgHeader, ReturnCode
from nvflare.private.fed.server.admin import check_client_replies
from nvflare.private.fed.server.job_runner import JobRunner
from nvflare.private.fed.utils.fed_utils import extract_participants
from nvflare.utils.job_launcher_utils import get_resource_manager_spec

from silofl.base.errors import error_text
from silofl.flare.nvflare_patches import find_pending_sites

logger = logging.getLogger(__name__)
# The topic of the command by which a running controller takes a site's new token, or does not.
RETURNED = "silofl.returned"
ANSWER_S = 5.0
# A site may be heard before it carries out commands: the first failure is none. The next tries come after 1, 3, 7 min.
FAILURES, RETRY_S = 2, 30.0


@dataclass
class _Return:
    """How far a site's return to a job is."""

    is_under_way: bool = False
    failures: int = 0
    next_at: float = 0.0


class ReturnedSites:
    """Gives jobs that run to sites that were started again."""

    def __init__(self) -> None:
        # Job and the site's new token -> its return.
        self._returns: dict[tuple[str, str], _Return] = {}
        self._deciding = threading.Lock()

    def give(self, engine: Any, job: str, site: Client) -> bool:  # noqa: ANN401 - NVFlare's ServerEngine
        """Begin to give a site a job, unless that is under way or has just failed.

        Returns:
            Whether the job may wait for the site.
        """
        with self._deciding:
            attempt = self._returns.setdefault((job, site.token), _Return())
            is_due = not attempt.is_under_way and time.monotonic() >= attempt.next_at
            attempt.is_under_way |= is_due
        if is_due:
            # It takes seconds, and the site waits for the answer to its heartbeat.
            threading.Thread(target=self._give, args=(attempt, engine, job, site), daemon=True).start()
        return attempt.failures < FAILURES

    def _give(self, attempt: _Return, engine: Any, job: str, site: Client) -> None:  # noqa: ANN401
        try:
            give_job(engine, job, site)
            logger.info("site %s, which came while job %s ran, takes part", site.name, job)
        except Exception as error:  # whatever NVFlare or the site says, the job runs on
            why = error_text(error)
            logger.warning("site %s, which came while job %s ran, does not take part: %s", site.name, job, why)
            attempt.failures += 1
            attempt.next_at = time.monotonic() + RETRY_S * (2**attempt.failures - 2)
        attempt.is_under_way = False


def give_job(engine: Any, number: str, site: Client) -> None:  # noqa: ANN401 - NVFlare's ServerEngine
    """Give a site that was started again, or late, a job that runs.

    Args:
        engine: Of the server's lasting process.
        number: The job's id.
        site: As it is registered now.

    Raises:
        RuntimeError: The job does not take the site, or the site not the job.
    """
    runner = engine.job_runner
    process = engine.run_processes.get(number)
    job = runner.running_jobs.get(number)
    if job is None or process is None or job.run_aborted:
        raise RuntimeError("the job has ended, or has just begun")
    reply = engine.send_app_command(number, RETURNED, {"site": site}, ANSWER_S)
    answer = reply.get(ServerCommandKey.DATA) if isinstance(reply, dict) else None
    if not isinstance(answer, dict) or answer.get("is_taken") is not True:
        raise RuntimeError("the job's study does not name the site, or lets it go")
    with engine.new_context() as context:
        app = find_app(job, site.name)
        needs = {site.name: get_resource_manager_spec(job.meta, site.name)}
        free = engine.check_client_resources(job, needs, context)
        is_free, token = free.get(site.name, (False, ""))
        if not is_free:
            raise RuntimeError("the site did not answer, or has not the job's resources free")
        try:
            _deploy(engine, job, app, site, context)
            with runner.lock:
                pending = find_pending_sites(runner, number)
                if pending is None:
                    raise RuntimeError("the job has ended meanwhile")
                pending.add(site.name)
            dispatch = {site.name: DispatchInfo(app, needs[site.name], token)}
            replies = engine.start_client_job(job, dispatch, context)
            if check_client_replies(replies, [site.name], "start the job", strict=True):
                raise RuntimeError("the site did not answer that it starts the job")
            # Messages go by the site's name: the job may run there under a token that it does not know.
            if engine.get_client_from_name(site.name) is not site:
                runner.abort_client_run(number, [site.name], context)
                raise RuntimeError("the site was started once more meanwhile")
        except Exception:
            runner.resolve_client_outcome(number, site.name)
            engine.cancel_client_resources(free, needs, context)
            raise
    clients = process[RunProcessKey.PARTICIPANTS]
    remaining = {token: client for token, client in clients.items() if client.name != site.name}
    process[RunProcessKey.PARTICIPANTS] = remaining | {site.token: site}


def find_app(job: Job, site: str) -> str:
    """Return the name of the app that a job has for a site.

    Raises:
        RuntimeError: It has none.
    """
    for app, targets in job.get_deployment().items():
        names = extract_participants(targets)
        if site in names or [name.upper() for name in names] == [ALL_SITES]:
            return str(app)
    raise RuntimeError("deploy_map of the job has no app for the site")


def list_named(runner: JobRunner, number: str) -> set[str]:
    """Return the sites that the deploy_map of a job that runs names."""
    job = runner.running_jobs.get(number)
    apps = job.get_deployment().values() if job else ()
    return {name for targets in apps for name in extract_participants(targets)}


def _deploy(engine: Any, job: Job, app: str, site: Client, context: Any) -> None:  # noqa: ANN401
    """Send a site a job's app, anew: its policy may have changed."""
    message = engine.job_runner._make_deploy_message(job, job.get_application(app, context), app, context)
    admin = engine.server.admin_server
    reply = admin.send_requests_and_get_reply_dict({site.token: message}, timeout_secs=admin.timeout)[site.token]
    if reply is None or reply.get_header(MsgHeader.RETURN_CODE, ReturnCode.OK) != ReturnCode.OK:
        raise RuntimeError(f"the site did not take the app; it said {reply and reply.body!r}")
