"""The logs that laboratories send to the server, under the names of sites and jobs and in their own files alone.

NVFlare 2.9 believes a sender its name, its job and the place of its log at the server: anybody with a site's kit could
have any file of the server moved into a job, whose lead downloads it, or overwritten.
"""

import secrets
from dataclasses import dataclass

from nvflare.apis.fl_context import FLContext
from nvflare.apis.streaming import StreamContext, StreamContextKey
from nvflare.app_common.logging.job_log_receiver import JobLogReceiver
from nvflare.app_common.logging.site_log_streamer import SiteLogStreamer
from nvflare.app_common.streamers.log_streamer import LogStreamer
from nvflare.app_common.streamers.streamer_base import KEY_FILE_NAME

from silofl.base.errors import TrainingError, quote_value
from silofl.flare.messages import is_job

FILES = ("log.txt", "error_log.txt", "log.json", "log_fl.txt")
# More than twice what NVFlare writes before it turns a log over.
MOST_BYTES = 48 * 1024**2
# In the sender's context: nobody else's log can be named by it, since it is drawn here and never sent.
NUMBER = "SiteLogs.number"


@dataclass
class _Log:
    """One stream: the context that NVFlare's receiver sees, and how many bytes have come."""

    context: StreamContext
    size: int = 0


class SiteLogs(JobLogReceiver):
    """NVFlare's receiver, which takes of a stream its pieces and of its sender names that the server knows.

    Nobody can check which of a job's sites a sender is: a log may be another site's than its name says.
    """

    def __init__(self) -> None:
        super().__init__()
        # The sender's own context says where its log lies, too. Of ours it has no more than a number to find it by.
        self._logs: dict[str, _Log] = {}

    def _on_chunk_received(self, data: bytes, stream_ctx: StreamContext, fl_ctx: FLContext) -> None:
        if stream_ctx.get(NUMBER) not in self._logs:
            # Before the number: a log whose name is refused is none.
            file_name = _read_file_name(stream_ctx)
            stream_ctx[NUMBER] = secrets.token_hex()
            self._logs[stream_ctx[NUMBER]] = _Log({KEY_FILE_NAME: file_name})
        log = self._logs[stream_ctx[NUMBER]]
        log.size += len(data)
        if log.size > MOST_BYTES:
            raise TrainingError(f"a log must have at most {MOST_BYTES} bytes, not more; it was cut off")
        super()._on_chunk_received(data, log.context, fl_ctx)

    def _on_stream_done(self, stream_ctx: StreamContext, fl_ctx: FLContext) -> None:
        log = self._logs.pop(stream_ctx.get(NUMBER), None)
        # Where no piece has come there is nothing to keep.
        if log is not None:
            super()._on_stream_done(log.context | {StreamContextKey.RC: LogStreamer.get_rc(stream_ctx)}, fl_ctx)

    def _get_trusted_stream_identity(self, fl_ctx: FLContext) -> tuple[str, str]:
        client, job = super()._get_trusted_stream_identity(fl_ctx)
        if client not in {connected.name for connected in fl_ctx.get_engine().get_clients()}:
            raise TrainingError(f"a log must be of a site that the server knows, not of {quote_value(client)}")
        # The server's lasting process, to which a site sends the log of a job that has ended, has no job of its own.
        if not is_job(job) or job != (fl_ctx.get_job_id() or job):
            raise TrainingError(f"a log of site {client!r} must be of a job that it has, not of {quote_value(job)}")
        return client, job


class FinishedLog(SiteLogStreamer):
    """Sends a laboratory's error log when its job has ended.

    NVFlare's own adds a component to the job that was deployed, to send the log while it runs: a laboratory that pins
    its studies then finds the job signed by nobody.
    """

    def _on_before_job_launch(self, event_type: str, fl_ctx: FLContext) -> None:
        """Leave the job as its lead has signed it."""


def _read_file_name(stream_ctx: StreamContext) -> str:
    name: str = LogStreamer.get_file_name(stream_ctx)
    if name not in FILES:
        raise TrainingError(f"a log must be called one of {', '.join(FILES)}, not {quote_value(name)}")
    return name
