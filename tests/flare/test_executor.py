from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from silofl.base.errors import ConfigError
from silofl.base.files import hold_lock
from silofl.flare import executor as module
from silofl.flare.egress import Egress, RunNote, check_filters
from silofl.flare.exchange import from_model, to_model
from silofl.flare.executor import SiteExecutor
from silofl.flare.paths import JOB_LOCK
from silofl.parts.task import Message


def scope(tasks, results):
    """Return NVFlare's scope of a job, with the filters of a ``privacy.json``."""
    return SimpleNamespace(task_data_filters={FilterKey.IN: tasks}, task_result_filters={FilterKey.OUT: results})


def context(filters, is_simulation=False):
    made = FLContext()
    made.set_prop(FLContextKey.SCOPE_OBJECT, filters, private=True, sticky=False)
    made.set_prop(FLContextKey.SIMULATE_MODE, is_simulation, private=True, sticky=False)
    return made


def answer(executor, fl_ctx, **meta):
    task = FLModelUtils.to_shareable(to_model(Message({"model/a": np.ones(2)}, meta), is_difference=False))
    return from_model(FLModelUtils.from_shareable(executor.execute("train", task, fl_ctx, Signal())))


@pytest.mark.parametrize(
    "filters",
    [
        None,
        scope([], []),
        scope([RunNote()], []),
        scope([], [Egress()]),
        scope([RunNote()], [Egress(), ExcludeVars(exclude_vars=["x"])]),
    ],
    ids=["no privacy.json", "no filters", "no Egress", "no RunNote", "Egress not the last"],
)
def test_site_without_sound_filters_begins_no_study(filters, monkeypatch):
    executor, said = SiteExecutor(), []
    monkeypatch.setattr(executor, "log_error", lambda fl_ctx, text, fire_event: said.append((text, fire_event)))
    executor.handle_event(EventType.START_RUN, context(filters))
    ((sentence, fires),) = said
    assert sentence.startswith("local/privacy.json lacks silofl.flare.egress.RunNote") and not fires
    reply = answer(executor, FLContext(), round=1)
    assert reply.arrays == {} and "the site's settings have a fault" in reply.meta["error"]


def test_kits_filters_are_sound_and_simulations_have_none():
    check_filters(context(scope([RunNote()], [ExcludeVars(exclude_vars=["x"]), Egress()])))
    check_filters(context(None, is_simulation=True))


@pytest.mark.parametrize(("limit", "timeout"), [({}, 3600), ({"task_timeout_s": 912}, 912)])
def test_settings_are_read_anew_and_job_folder_is_held(tmp_path, monkeypatch, make_study, limit, timeout):
    (tmp_path / "startup").mkdir()
    path = tmp_path / "local" / "site.yaml"
    path.parent.mkdir()
    settings = f"data: {tmp_path}/data\nstate_dir: {tmp_path}/state\n"
    path.write_text(settings)
    study = make_study(federation=limit)
    monkeypatch.setattr(module, "read_job_study", lambda fl_ctx: study)
    monkeypatch.setattr(module, "check_pinned", lambda *arguments: None)
    here, executor = context(None, is_simulation=True), SiteExecutor()
    here.get_engine = lambda: SimpleNamespace(get_workspace=lambda: Workspace(str(tmp_path), "north"))
    here.get_identity_name = lambda default="": "north"
    here.get_job_id = lambda: "job"
    (tmp_path / "job").mkdir()
    runner = SimpleNamespace()
    here.set_prop(FLContextKey.RUNNER, runner)
    executor.handle_event(EventType.START_RUN, here)
    assert runner.submit_task_result_timeout == timeout
    # As long as the executor lives, the job's folder counts as in use.
    with pytest.raises(ConfigError, match="is in use"), hold_lock(tmp_path / "job" / JOB_LOCK):
        pass
    # There are no data: a task that is carried out fails by them.
    data, pause = "the site's data have a fault", "study 'small' is paused by the hospital"
    for paused, reason in (("[]", data), ("[small]", pause), ("[]", data)):
        path.write_text(f"{settings}paused: {paused}\n")
        meta = answer(executor, here, round=1, held=0, run="run", sites=2, digest=study.digest).meta
        assert reason in meta["error"]
