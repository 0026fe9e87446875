"""The messages that a server passes on, and the commands that a hospital carries out: those that jobs need.

NVFlare 2.9's server passes on whatever anybody with a kit sends to anybody else, and a hospital carries out every
command that comes: the command says itself whether the hospital's rights are asked. One of them shows any file that the
account can read, one deletes folders of the kit, and one puts a job in the place of any.
"""

from __future__ import annotations

import io
import logging
import zipfile
from typing import Any
from uuid import UUID

from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.fuel.f3.cellnet.net_agent import _CHANNEL as NETWORK
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import AUTH_CLIENT_NAME_FOR_SJ, CellMessageHeaderKeys, RequestHeader, SysCommandTopic
from nvflare.private.fed.client.training_cmds import DeleteRunNumberProcessor, DeployProcessor
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.server.server_commands import ServerCommands
from nvflare.widgets.fed_event import FED_EVENT_TOPIC

from silofl.flare.nvflare_patches import replace_commands, replace_job_check

# A model to begin from is the largest file of a job; a laboratory's code may have many.
MOST_BYTES = 4 * 1024**3
MOST_FILES = 10_000

logger = logging.getLogger(__name__)


class DeployJob(DeployProcessor):
    """Puts a job into its folder, as NVFlare's does, which deletes any folder of the kit that is called like the job.

    NVFlare also unpacks whatever comes before anything is checked, and replaces the files of a job that runs.
    """

    def process(self, req: Message, app_ctx: Any) -> Message:  # noqa: ANN401
        """Unpack the job, or answer why not."""
        job = req.get_header(RequestHeader.JOB_ID)
        if not is_job(job):
            return error_reply("no job is named by its id; nothing was deployed")
        if job in app_ctx.get_all_job_ids():
            return error_reply("the job runs already; nothing was deployed")
        reason = _refuse_size(req.body)
        return error_reply(reason) if reason else super().process(req, app_ctx)


class DeleteJob(DeleteRunNumberProcessor):
    """Deletes a job's folder, as NVFlare's does, which takes any name below the kit for a job's."""

    def process(self, req: Message, app_ctx: object) -> Message:
        """Delete the folder, or answer why not."""
        if not is_job(req.get_header(RequestHeader.JOB_ID)):
            return error_reply("no job is named by its id; nothing was deleted")
        return super().process(req, app_ctx)


class BoundedJobs(JobMetaValidator):
    """Looks at a job that a lead submits, as NVFlare's does, and how large it is: a server unpacks each to begin it."""

    def validate(self, job_name: str, job_data: str | bytes) -> tuple[bool, str, dict[str, Any]]:
        """Return whether the job may be taken, else why not, and what its ``meta.json`` says."""
        reason = _refuse_size(job_data)
        return (False, reason, {}) if reason else super().validate(job_name, job_data)


def is_job(name: Any) -> bool:  # noqa: ANN401
    """Return whether a name is an id that a server gives to a job; folders of a kit have others."""
    try:
        UUID(name)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def restrict_commands() -> None:
    """Keep NVFlare from showing a hospital's files, and from deleting or replacing other folders than jobs'."""
    replace_commands(_choose_commands)


def _choose_commands(processors: list[Any]) -> list[Any]:
    replacements = {DeleteRunNumberProcessor: DeleteJob, DeployProcessor: DeployJob}
    chosen = []
    for processor in processors:
        if SysCommandTopic.SHELL in processor.get_topics():
            continue
        safe = replacements.get(type(processor))
        chosen.append(safe() if safe else processor)
    return chosen


def guard_messages(cell: Cell) -> None:
    """Have a server refuse what `is_for_jobs` does not know, and jobs that would fill its disk.

    NVFlare has verified whose message it is.
    """
    replace_job_check(BoundedJobs)
    cell.core_cell.add_incoming_filter(channel="*", topic="*", cb=_refuse_message)


def is_for_jobs(message: CellMessage) -> bool:
    """Return whether a server handles, or passes on, a message from elsewhere.

    Sites and people talk to the server alone; only a job's process at the server talks to sites, and says how its job
    goes. To such a process sites say that they want a task or have done it; what else commands it, the events that it
    fires, and the network are the server's.
    """
    if _is_of_job_process(message):
        return True
    if not FqcnInfo(message.get_header(MessageHeaderKey.DESTINATION)).is_on_server:
        return False
    channel, topic = (message.get_header(key) for key in (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC))
    if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        # A stream says in each of its pieces what is streamed.
        channel, topic = (message.get_header(key) for key in (StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC))
    if channel == CellChannel.SERVER_COMMAND:
        return bool(topic in ServerCommands.client_request_commands_names)
    if (channel, topic) == (CellChannel.AUX_COMMUNICATION, FED_EVENT_TOPIC):
        # NVFlare fires whatever event it is: one ends the job, others look like another site's numbers.
        return False
    if channel == CellChannel.CELLNET:
        # Its other topic carries messages of any channel, which no filter sees.
        return bool(topic == CellChannelTopic.Bye)
    return channel not in (NETWORK, CellChannel.SERVER_PARENT_LISTENER)


def _is_of_job_process(message: CellMessage) -> bool:
    """Return whether a job's process at the server has sent a message.

    Its name and its token prove nothing, as each message that it sends to a site has both. The line on which a message
    comes does: NVFlare lets nobody else connect from elsewhere under the server's name.
    """
    line = message.get_prop(MessagePropKey.ENDPOINT)
    name = message.get_header(CellMessageHeaderKeys.CLIENT_NAME)
    return bool(name == AUTH_CLIENT_NAME_FOR_SJ and FqcnInfo(line.name).is_on_server)


def _refuse_size(job: Any) -> str | None:  # noqa: ANN401
    """Return why a job is too large to be unpacked; None where it is not, or no archive, as NVFlare says itself."""
    try:
        with zipfile.ZipFile(io.BytesIO(job) if isinstance(job, bytes) else job) as archive:
            sizes = [entry.file_size for entry in archive.infolist()]
    except (AttributeError, OSError, TypeError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return None
    if len(sizes) > MOST_FILES:
        return f"a job must have at most {MOST_FILES} files, not {len(sizes)}; nothing was unpacked"
    if sum(sizes) > MOST_BYTES:
        size = sum(sizes) / 1024**3
        return f"a job must have at most {MOST_BYTES >> 30} GiB unpacked, not {size:.1f}; nothing was unpacked"
    return None


def _refuse_message(message: CellMessage) -> CellMessage | None:
    if is_for_jobs(message):
        return None
    names = (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC, MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION)
    logger.warning("a message was refused: channel %r, topic %r, from %r to %r", *map(message.get_header, names))
    return make_reply(ReturnCode.UNAUTHENTICATED, error="the server passes on no such message")
