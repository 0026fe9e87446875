"""A filter that keeps BatchNorm at the site, whatever the job asks for."""

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from silofl.flare.exchange import from_model, to_model
from silofl.flare.places import read_job_study
from silofl.methods.task import Message
from silofl.models.names import batchnorm_names
from silofl.models.networks import build_models


class BatchNormStaysHome(Filter):
    """Filter that refuses an answer with BatchNorm parameters or statistics, by their names in the study's network.

    For ``task_result_filters`` of a job or of a site's ``privacy.json``. The server gets the refusal as the reason why
    the site could not do its task; nothing of the answer leaves.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, set[str]] = {}

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the answer, or the refusal that is sent instead."""
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        message = from_model(FLModelUtils.from_shareable(shareable))
        refusal = refuse_names(message, self._batchnorm_names(fl_ctx))
        if refusal is None:
            return shareable
        self.log_error(fl_ctx, str(refusal.meta["error"]), fire_event=False)
        return FLModelUtils.to_shareable(to_model(refusal, is_difference=True))

    def _batchnorm_names(self, fl_ctx: FLContext) -> set[str]:
        """Return the names in the running job's network, which is built once a job."""
        job = fl_ctx.get_job_id()
        if job not in self._names:
            models = build_models(read_job_study(fl_ctx), None).items()
            self._names = {job: {f"{role}/{name}" for role, model in models for name in batchnorm_names(model)}}
        return self._names[job]


def refuse_names(message: Message, names: set[str]) -> Message | None:
    """Return the message to send in place of one that holds any of the names; None where it may go."""
    found = sorted(message.arrays.keys() & names)
    if not found:
        return None
    reason = (
        f"the site's filter lets no BatchNorm leave; the answer held {len(found)} such arrays, the first "
        f"{found[0]!r}: choose stays_home: batchnorm"
    )
    return message.failed(reason)
