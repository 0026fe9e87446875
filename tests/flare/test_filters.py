import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from silofl.base.settings import parse
from silofl.flare import filters
from silofl.flare.exchange import from_model, to_model
from silofl.flare.filters import BatchNormStaysHome, ExcludeBatchNorm
from silofl.models.names import batchnorm_names, read_arrays, traveling_names
from silofl.models.networks import build_models
from silofl.models.roles import add_role
from silofl.parts.answer import plain_text
from silofl.parts.task import Message
from silofl.study import Study, load_study
from silofl_desk.studies.runs.simulation import BATCHNORM_FILTER

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def make_study(algorithm="fedavg", **constants):
    settings = {"name": "small", "task": "classification", "labels": {0: "a", 1: "b"}, "rounds": 2}
    settings |= {"metric": "accuracy", "model": {"name": "lenet5"}}
    settings |= {"training": {"loss": "cross_entropy", "optimizer": "sgd", "momentum": 0}}
    return parse(Study, settings | {"algorithm": {"name": algorithm, **constants}}, "study.yaml")


@pytest.fixture
def study():
    return make_study()


@pytest.fixture
def passed(study, monkeypatch):
    """Send a message through a filter of a site, or of a job, that takes part in the study; returns what leaves."""

    def send(message, kind=BatchNormStaysHome, study=study, is_of_job=False):
        monkeypatch.setattr(filters, "read_job_study", lambda fl_ctx: study)
        guard = kind()
        scope = SimpleNamespace(task_result_filters={FilterKey.OUT: [] if is_of_job else [guard]})
        context = SimpleNamespace(get_job_id=lambda: "job", get_prop={FLContextKey.SCOPE_OBJECT: scope}.get)
        guard.log_error = lambda fl_ctx, text, fire_event: None
        shareable = FLModelUtils.to_shareable(to_model(message, is_difference=True))
        return from_model(FLModelUtils.from_shareable(guard.process(shareable, context)))

    return send


def update_of(study):
    model = build_models(study, None)["model"]
    return add_role("model", read_arrays(model.state_dict(), traveling_names(model, study.recipe)))


def test_an_update_with_batchnorm_is_replaced_by_the_reason(study, passed):
    left = passed(Message(update_of(study), {"round": 4}))
    assert left.arrays == {} and left.meta["round"] == 4
    # two layers with weight, bias, running mean and running variance
    assert "lets no BatchNorm leave; the answer held 8 such arrays" in left.meta["error"]


def without_batchnorm(study):
    own = add_role("model", dict.fromkeys(batchnorm_names(build_models(study, None)["model"])))
    return {name: array for name, array in update_of(study).items() if name not in own}


BOTH = pytest.mark.parametrize("kind", [BatchNormStaysHome, ExcludeBatchNorm])


@BOTH
def test_update_without_batchnorm_leaves_unchanged(study, passed, kind):
    like = {"network.bn.weight": np.zeros(1), "statistics/0/mean": np.zeros(6)}
    for arrays in (without_batchnorm(study), like):
        left = passed(Message(arrays, {"round": 1}), kind)
        assert left.arrays.keys() == arrays.keys() and "error" not in left.meta


@BOTH
def test_an_answer_that_failed_already_is_handed_on(kind):
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    assert kind().process(reply, FLContext()) is reply


def test_batchnorm_is_taken_out_and_all_else_leaves_unchanged(study, passed):
    update, meta = update_of(study), {"round": 4, "num_examples": 7}
    left = passed(Message(update, meta), ExcludeBatchNorm)
    assert left.meta == meta and left.arrays.keys() == without_batchnorm(study).keys() != update.keys()
    for name, array in left.arrays.items():
        np.testing.assert_array_equal(array, update[name])


@pytest.mark.parametrize(
    ("algorithm", "role", "why"),
    [
        ("fedsm", "global", "algorithm: stays must be nothing where a selector hands out the sites' models"),
        ("ditto", "global", "algorithm: stays must be nothing with a personal model"),
        ("scaffold", "control", "it sends BatchNorm under 'control' too; choose another algorithm"),
    ],
)
def test_study_that_needs_batchnorm_is_told_so(passed, algorithm, role, why):
    study = make_study(algorithm)
    model = next(iter(build_models(study, None).values()))
    update = add_role(role, read_arrays(model.state_dict(), batchnorm_names(model)))
    left = passed(Message(update, {"round": 1}), ExcludeBatchNorm, study)
    assert left.arrays == {}
    reason = left.meta["error"]
    assert reason.startswith(f"the site's filter takes BatchNorm out, which the study needs: {why}")
    # Whole, as the last filter lets it out.
    assert reason == plain_text(reason) and len(reason) < 200


STATISTICS = {"statistics/0/mean": np.zeros(6), "statistics/0/variance": np.ones(6)}


@BOTH
def test_batchnorms_own_statistics_do_not_leave_by_another_name_either(passed, kind):
    study = make_study("adafed")
    assert study.recipe.option("statistics").source == "running"
    left = passed(Message(STATISTICS, {"round": 1}), kind, study)
    assert left.arrays == {} and "BatchNorm" in left.meta["error"] and "'statistics" in left.meta["error"]
    assert left.meta["error"] == plain_text(left.meta["error"])


def test_jobs_filter_lets_compared_statistics_leave(passed):
    study = make_study("adafed")
    assert passed(Message(STATISTICS), study=study, is_of_job=True).arrays.keys() == STATISTICS.keys()
    assert passed(Message(update_of(make_study())), study=study, is_of_job=True).arrays == {}
    # It is no job's at a hospital, and does the same wherever it is tried.
    assert passed(Message(STATISTICS), ExcludeBatchNorm, study, is_of_job=True).arrays == {}


@pytest.mark.parametrize("job", sorted(path.name for path in JOBS.iterdir() if path.is_dir()))
def test_job_has_filter_where_batchnorm_stays_home(job):
    config = json.loads((JOBS / job / "app" / "config" / "config_fed_client.json").read_text())
    study = load_study(JOBS / job / "app" / "config" / "study.yaml")
    paths = [one["path"] for chain in config["task_result_filters"] for one in chain["filters"]]
    assert (BATCHNORM_FILTER in paths) == (study.recipe.stays == "batchnorm")
