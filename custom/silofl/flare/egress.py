"""Filters for a site's ``privacy.json`` that record what leaves the site and stop what must not leave it."""

import logging
from pathlib import Path

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.workspace import Workspace
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import PrivacyManager, Scope

from silofl.base.errors import ConfigError, one_line
from silofl.federation.egress import Gate, Request
from silofl.federation.egress_log import EgressLog
from silofl.flare.exchange import from_model, to_model
from silofl.flare.filters import BatchNormStaysHome
from silofl.flare.kit import Kit
from silofl.flare.paths import read_job_study, read_site_settings
from silofl.parts.task import Message
from silofl.setup.site import Site
from silofl.study import Study

REQUEST = "silofl_request"
LONGEST_REASON = 160
# No part has a task with a longer name; the server's own could be as long as a message.
LONGEST_TASK = 80
CODES = frozenset(value for name, value in vars(ReturnCode).items() if name.isupper())


class RunNote(Filter):
    """Filter for ``task_data_filters`` that notes for `Egress` what a task asks for, and in which run.

    NVFlare drops the task before it filters the answer, which does not say.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the task as it is."""
        task = str(fl_ctx.get_prop(FLContextKey.TASK_NAME))[:LONGEST_TASK]
        request = Request.of(task, from_model(FLModelUtils.from_shareable(shareable)))
        fl_ctx.set_prop(REQUEST, request, private=True, sticky=False)
        return shareable


class Egress(Filter):
    """Filter that records every answer and refuses one with a kind of array that ``site.yaml`` does not let leave.

    It must be the last of ``task_result_filters``, after all others have changed the answer. The server gets a refusal
    as the reason why the site could not do its task. What cannot be recorded does not leave, because NVFlare answers
    in place of a filter that fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[str, tuple[Study, Site, Gate]] = {}
        self._logs: dict[Path, EgressLog] = {}

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the recorded answer, or the refusal that is sent instead.

        Raises:
            ConfigError: The study or the site's settings are wrong, or the run is not known.
        """
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            # Built anew: such a reply passes no other filter, and could hold anything.
            return make_reply(code if code in CODES else ReturnCode.EXECUTION_EXCEPTION)
        message = from_model(FLModelUtils.from_shareable(shareable))
        request = _read_request(fl_ctx)
        study, site, gate = self._job(fl_ctx)
        log = self._log(fl_ctx, study, site, request.run)
        reason = gate.refusal(request, message)
        if reason is not None:
            self.log_error(fl_ctx, reason, fire_event=False)
            # Both are recorded: what was refused here, and below the refusal, which leaves instead.
            log.write(gate.records(request, message, reason))
            message = message.failed(reason)
        log.write(gate.records(request, message))
        # Packed anew from what was recorded: nothing else in the shareable can leave.
        return FLModelUtils.to_shareable(to_model(message, is_difference=True))

    def _job(self, fl_ctx: FLContext) -> tuple[Study, Site, Gate]:
        """Return the running job's study, the site's settings and its gate, read once a job."""
        job = fl_ctx.get_job_id()
        if job not in self._jobs:
            self.begin(job, read_job_study(fl_ctx), read_site_settings(fl_ctx))
        return self._jobs[job]

    def begin(self, job: str, study: Study, site: Site) -> None:
        """Take the study and the site's settings of a job, whose answers come from now on."""
        self._jobs = {job: (study, site, Gate.of(study, site))}

    def _log(self, fl_ctx: FLContext, study: Study, site: Site, run: str) -> EgressLog:
        folder = site.run_folder(study.name, fl_ctx.get_identity_name(), run)
        if folder not in self._logs:
            self._logs[folder] = EgressLog(folder)
        return self._logs[folder]


def check_filters(fl_ctx: FLContext) -> None:
    """Refuse to begin where NVFlare would let answers out unrecorded; its simulator has no filters of a site.

    Raises:
        ConfigError: The site's ``privacy.json`` is missing, or has the filters of this module not where they must be.
    """
    if not fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False):
        check_scope(fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT))


def check_scope(scope: Scope | None) -> None:
    """Refuse a scope that lets answers out unrecorded; None is that of a site without ``privacy.json``.

    Raises:
        ConfigError: `RunNote` is not among its filters, or `Egress` not the last.
    """
    if scope is None or not _is_sound(scope):
        raise ConfigError(
            "local/privacy.json lacks silofl.flare.egress.RunNote under task_data_filters or "
            "silofl.flare.egress.Egress as the last of task_result_filters, in the scope that jobs get; take the one "
            "that came with the kit"
        )


def _is_sound(scope: Scope) -> bool:
    # The very classes: of a subclass nobody knows what it lets out.
    of_tasks = [type(task_filter) for task_filter in scope.task_data_filters[FilterKey.IN]]
    of_results = [type(result_filter) for result_filter in scope.task_result_filters[FilterKey.OUT]]
    return RunNote in of_tasks and of_results[-1:] == [Egress]


def effective_scope(kit: Kit) -> Scope | None:
    """Return the scope that a job gets which names none; the errors of `_read_privacy`."""
    return _read_privacy(kit).get_scope(None)


def list_open_scopes(kit: Kit) -> list[str]:
    """Refuse a kit whose jobs get a scope that lets answers out unrecorded; return the other scopes that do.

    A job gets any scope that its ``meta.json`` names.

    Raises:
        ConfigError: As `check_scope` and `effective_scope`.
    """
    privacy = _read_privacy(kit)
    check_scope(privacy.get_scope(None))
    return sorted(name for name, scope in privacy.name_to_scopes.items() if not _is_sound(scope))


def _read_privacy(kit: Kit) -> PrivacyManager:
    """Return the site's ``privacy.json`` as NVFlare reads it."""
    # NVFlare also logs the fault, with its traceback.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return create_privacy_manager(Workspace(root_dir=str(kit.folder)), names_only=False)
    except Exception as error:  # NVFlare has one of its own for each fault
        # What is wrong stands at the end of its sentence.
        reason = one_line(str(error)[-LONGEST_REASON:])
        raise ConfigError(
            f"NVFlare cannot read local/privacy.json of {kit.name!r} ({reason!r}); correct the names of its filters, "
            "or take the one that came with the kit"
        ) from None
    finally:
        logging.disable(before)


def filter_answer(
    scope: Scope, name: str, study: Study, site: Site, task: str, message: Message, answer: Message
) -> Message:
    """Return what leaves of an answer, after a scope's filters have had the task and the answer, as in a job.

    Args:
        scope: The scope; `check_scope` has found it sound.
        site: The site's settings; the record of what leaves is written below its state folder.
    """
    context = FLContext()
    values = {ReservedKey.IDENTITY_NAME: name, ReservedKey.RUN_NUM: "trial"}
    values |= {FLContextKey.TASK_NAME: task, FLContextKey.SCOPE_OBJECT: scope}
    for key, value in values.items():
        context.set_prop(key, value, private=True, sticky=False)
    *earlier, egress = scope.task_result_filters[FilterKey.OUT]
    # The filters read the study and the settings from a job, which a trial has not.
    egress.begin("trial", study, site)
    for result_filter in earlier:
        if isinstance(result_filter, BatchNormStaysHome):
            result_filter.begin("trial", study)
    given = FLModelUtils.to_shareable(to_model(message, is_difference=False))
    apply_filters(Scope.TASK_DATA_FILTERS_NAME, given, context, {}, task, FilterKey.IN)
    packed = FLModelUtils.to_shareable(to_model(answer, is_difference=True))
    left = apply_filters(Scope.TASK_RESULT_FILTERS_NAME, packed, context, {}, task, FilterKey.OUT)
    return from_model(FLModelUtils.from_shareable(left))


def _read_request(fl_ctx: FLContext) -> Request:
    request: Request | None = fl_ctx.get_prop(REQUEST)
    if request is None:
        raise ConfigError(
            "no filter has noted the task's run; put silofl.flare.egress.RunNote under task_data_filters in "
            "privacy.json"
        )
    return request
