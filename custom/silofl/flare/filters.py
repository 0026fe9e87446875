"""Filters that keep BatchNorm at the site, whatever the job asks for: one takes it out, one refuses the answer."""

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from silofl.base.errors import ConfigError
from silofl.core.presets import find_recipe
from silofl.flare.exchange import from_model, to_model
from silofl.flare.paths import read_job_study
from silofl.models.names import batchnorm_names
from silofl.models.networks import build_models
from silofl.models.roles import read_role, split_role
from silofl.parts.answer import plain_text
from silofl.parts.load import list_outbound_payloads
from silofl.parts.task import Message
from silofl.study import Study


class BatchNormStaysHome(Filter):
    """Filter that refuses an answer with BatchNorm parameters or statistics, by their names in the study's network.

    For ``task_result_filters`` of a job or of a site's ``privacy.json``. The server gets the refusal as the reason why
    the site could not do its task; nothing of the answer leaves.

    In a site's ``privacy.json`` it also refuses what a part of the study sends of BatchNorm under other names, as
    AdaFed its running statistics. The filter of a job lets that leave, because the job's own algorithm asks for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[str, tuple[Study, frozenset[str], frozenset[str]]] = {}

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the answer where it holds no BatchNorm, else what is sent in its place."""
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        message = from_model(FLModelUtils.from_shareable(shareable))
        study, names, roles = self._read_job(fl_ctx)
        if self.is_of_job(fl_ctx):
            roles = frozenset()
        batchnorm = []
        for name in sorted(message.arrays):
            role, own_name = split_role(name)
            if role in roles or own_name in names:
                batchnorm.append(name)
        if not batchnorm:
            return shareable
        left = self.replace_answer(message, batchnorm, study)
        if reason := left.meta.get("error"):
            self.log_error(fl_ctx, str(reason), fire_event=False)
        return FLModelUtils.to_shareable(to_model(left, is_difference=True))

    def is_of_job(self, fl_ctx: FLContext) -> bool:
        """Return whether a job has brought this filter, and not the site's ``privacy.json``."""
        scope = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT)
        return scope is None or self not in scope.task_result_filters[FilterKey.OUT]

    def replace_answer(self, message: Message, found: list[str], study: Study) -> Message:
        """Return the refusal of an answer.

        Args:
            found: The names of its arrays that are BatchNorm's.
        """
        reason = (
            f"the site's filter lets no BatchNorm leave; the answer held {len(found)} such arrays, the first "
            f"{found[0]!r}: choose stays: batchnorm, or another algorithm"
        )
        return message.failed(plain_text(reason))

    def begin(self, job: str, study: Study) -> None:
        """Take a job's study, BatchNorm's names in its network, and the roles under which it has names of others."""
        models = build_models(study, None).values()
        names: frozenset[str] = frozenset().union(*map(batchnorm_names, models))
        roles = frozenset(sent.role for sent in list_outbound_payloads(study) if sent.is_batchnorm)
        self._jobs = {job: (study, names, roles)}

    def _read_job(self, fl_ctx: FLContext) -> tuple[Study, frozenset[str], frozenset[str]]:
        """Return the running job's study with BatchNorm's names and roles, read once a job."""
        job = fl_ctx.get_job_id()
        if job not in self._jobs:
            self.begin(job, read_job_study(fl_ctx))
        return self._jobs[job]


class ExcludeBatchNorm(BatchNormStaysHome):
    """Filter that takes BatchNorm's parameters and statistics out of an answer, and lets the rest leave.

    For ``task_result_filters`` of a site's own ``privacy.json``, before `silofl.flare.egress.Egress`. The server mixes
    BatchNorm over the sites that send it; where none does, each site goes on with its own, as in FedBN.

    An answer is refused where the study cannot do without BatchNorm: its algorithm hands out whole models, or sends
    BatchNorm in more than the models.
    """

    def is_of_job(self, fl_ctx: FLContext) -> bool:
        """Return False: no job at a hospital may name this class."""
        return False

    def replace_answer(self, message: Message, found: list[str], study: Study) -> Message:
        """Return the answer without BatchNorm, or its refusal."""
        if reason := explain_need(found, study):
            # As short as any reason that the last filter lets out.
            return message.failed(plain_text(f"the site's filter takes BatchNorm out, which the study needs: {reason}"))
        return Message({name: array for name, array in message.arrays.items() if name not in found}, message.meta)


def explain_need(found: list[str], study: Study) -> str | None:
    """Return why a study cannot do without the BatchNorm in an answer; None where it can."""
    roles = sorted({read_role(name) for name in found} - {*study.recipe.traveling_roles})
    if roles:
        return f"it sends BatchNorm under {roles[0]!r} too; choose another algorithm, or stay out of the study"
    if study.recipe.stays != "nothing":
        return None
    algorithm = study.algorithm
    try:
        changes = dict(algorithm.model_extra or {}) | {"stays": "batchnorm"}
        find_recipe(algorithm.name, algorithm.preset, changes)
    except ConfigError as error:
        return str(error).partition(";")[0]
    return None
