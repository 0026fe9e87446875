"""What a lead says of a job in meta.json, as NVFlare's own store and scheduler take it."""

import json
from pathlib import Path

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.utils.config_factory import ConfigFactory

from silofl.flare.job_files import JobFiles
from silofl.flare.job_meta import OF_SERVER, refuse_meta

JOBS = Path(__file__).resolve().parents[2] / "jobs"
META = {"name": "nuclei", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}


STOPPING = [
    {"schedule_count": "never"},
    {"last_schedule_time": None},
    {"schedule_history": "long"},
    {"min_clients": "2"},
    {"resource_spec": {"north": {"process": "all"}}},
]


@pytest.mark.parametrize("values", STOPPING)
def test_a_job_that_nvflares_scheduler_cannot_count_with_is_refused(values):
    """NVFlare would begin no job of anybody after it."""
    assert refuse_meta(META | values) is not None


def test_what_the_server_sets_a_lead_does_not():
    assert OF_SERVER >= {"job_id", "status", "submitter_name", "schedule_count", "cloned_from", "submit_time"}
    for key in OF_SERVER:
        assert refuse_meta(META | {key: "local"}) == f"meta.json of the job has {key}, which the server sets; remove it"


@pytest.mark.parametrize("name", [None, "", "a\x1b[2Jb", "a\nb", "x" * 201])
def test_a_name_that_commands_a_terminal_is_refused(name):
    assert "must have a name of 1 to 200 printable characters" in refuse_meta(META | {"name": name})


def test_our_jobs_and_allowed_wishes_are_taken():
    metas = [json.loads(path.read_text(encoding="utf-8")) for path in JOBS.glob("*/meta.json")]
    asked = [{"mandatory_clients": ["north"]}, {"scope": "silofl"}, {"resource_spec": {"north": {"num_of_gpus": 1}}}]
    assert len(metas) > 5
    for meta in [*metas, *(META | values for values in asked)]:
        assert refuse_meta(meta | {"study": "default", "byoc": True}) is None, meta


@pytest.mark.parametrize("values", [{}, {"job_id": "local"}])
def test_the_server_asks_before_it_takes_a_job(values, monkeypatch):
    monkeypatch.setattr(ConfigFactory, "_fmt2Loader", dict(ConfigFactory._fmt2Loader))
    context = FLContext()
    context.set_prop(FLContextKey.JOB_META, META | values, private=True, sticky=False)
    JobFiles().handle_event(EventType.SUBMIT_JOB, context)
    assert context.get_prop(FLContextKey.JOB_BLOCK_REASON) == refuse_meta(META | values)
