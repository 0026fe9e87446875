"""A site in NVFlare: passes the server's tasks to `SiteRounds` and returns its answers."""

from functools import partial
from typing import IO, ClassVar

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils.memory_utils import try_malloc_trim

from silofl.base.errors import SiloFLError
from silofl.federation.site import SiteRounds
from silofl.federation.waiting import FIRST_S
from silofl.flare.components import check_algorithm
from silofl.flare.egress import check_filters
from silofl.flare.exchange import from_model, to_model
from silofl.flare.line import wait_for_line
from silofl.flare.paths import check_pinned, find_job_folder, mark_in_use, read_job_study, read_site_settings
from silofl.flare.pieces import move_in_pieces
from silofl.parts.answer import public_reason

# Bytes of an answer from which on giving memory back to the system takes little beside the round.
LARGE = 1 << 26


class SiteExecutor(Executor):
    """Executor of a site's tasks; it keeps nothing between rounds except in the site's state folder.

    It runs any algorithm. A subclass names the one whose studies it takes, so that a job's configuration says it.
    """

    algorithm: ClassVar[str | None] = None

    def __init__(self) -> None:
        super().__init__()
        move_in_pieces()
        self._rounds: SiteRounds | None = None
        self._fault: SiloFLError | None = None
        # Kept open for `silofl site prune`, which deletes only the folders of jobs that have ended.
        self._in_use: IO[str] | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Read the study and the site's settings when the job starts."""
        if event_type == EventType.START_RUN:
            try:
                check_filters(fl_ctx)
                self._in_use = mark_in_use(find_job_folder(fl_ctx))
                study = read_job_study(fl_ctx)
                site = read_site_settings(fl_ctx)
                check_algorithm(self, self.algorithm, study)
                check_pinned(fl_ctx, study, site)
                wait_for_line(fl_ctx.get_prop(FLContextKey.RUNNER), study.federation.task_timeout_s or FIRST_S)
                name = fl_ctx.get_identity_name()
                self._rounds = SiteRounds(name, study, site, partial(read_site_settings, fl_ctx))
            except SiloFLError as fault:
                # Kept instead of raised: as an answer to each task its reason reaches the server's ledger.
                self.log_error(fl_ctx, str(fault), fire_event=False)
                self._fault = fault

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Carry out one task, whatever its name; one that cannot be done is answered with the reason."""
        message = from_model(FLModelUtils.from_shareable(shareable))
        if self._rounds is None:
            answer = message.failed(public_reason(self._fault or SiloFLError("a task came before the job began")))
        else:
            answer = self._rounds.answer(task_name, message)
            # Training keeps what it frees (`keep_freed_memory`), while the server needs most memory after it.
            if answer.num_bytes >= LARGE:
                try_malloc_trim()
        if abort_signal.triggered:
            return make_reply(ReturnCode.TASK_ABORTED)
        return FLModelUtils.to_shareable(to_model(answer, is_difference=True))
