"""Filters for a site's ``privacy.json`` that record what leaves the site and stop what must not leave it."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from silofl.errors import ConfigError
from silofl.federation.egress import Gate
from silofl.federation.egress_log import EgressLog
from silofl.flare.exchange import from_model, to_model
from silofl.flare.places import job_study, site_settings
from silofl.site import Site
from silofl.study import Study

RUN = "silofl_run"


class RunNote(Filter):
    """Filter for ``task_data_filters`` that remembers the run of a task for `Egress`.

    NVFlare drops the task before it filters the answer, which does not name the run.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the task as it is."""
        message = from_model(FLModelUtils.from_shareable(shareable))
        fl_ctx.set_prop(RUN, message.meta.get("run"), private=True, sticky=False)
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
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        message = from_model(FLModelUtils.from_shareable(shareable))
        study, site, gate = self._job(fl_ctx)
        log, task = self._log(fl_ctx, study, site), str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
        reason = gate.refusal(message)
        if reason is not None:
            self.log_error(fl_ctx, reason, fire_event=False)
            # Both are recorded: what was refused here, and below the refusal, which leaves instead.
            log.write(gate.records(task, message, reason))
            message = message.failed(reason)
        log.write(gate.records(task, message))
        # Packed anew from what was recorded: nothing else in the shareable can leave.
        return FLModelUtils.to_shareable(to_model(message, is_difference=True))

    def _job(self, fl_ctx: FLContext) -> tuple[Study, Site, Gate]:
        """Return the running job's study, the site's settings and its gate, read once a job."""
        job = fl_ctx.get_job_id()
        if job not in self._jobs:
            study, site = job_study(fl_ctx), site_settings(fl_ctx)
            self._jobs = {job: (study, site, Gate.of(study, site))}
        return self._jobs[job]

    def _log(self, fl_ctx: FLContext, study: Study, site: Site) -> EgressLog:
        run = fl_ctx.get_prop(RUN)
        if run is None:
            raise ConfigError(
                "the task's run must be noted; put silofl.flare.egress.RunNote under task_data_filters in privacy.json"
            )
        name = fl_ctx.get_identity_name()
        folder = site.run_folder(study.name, name, str(run))
        if folder not in self._logs:
            self._logs[folder] = EgressLog(folder, name, study.name)
        return self._logs[folder]
