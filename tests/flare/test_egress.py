"""The egress filter behind NVFlare's own privacy filters, as a site's ``privacy.json`` chains them."""

import json

import numpy as np
import pytest
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.federation.course import Answers, Course
from silofl.federation.server import ServerRounds
from silofl.flare import egress
from silofl.flare.egress import Egress, RunNote
from silofl.flare.exchange import from_model, to_model
from silofl.models.roles import add_role
from silofl.parts.task import Message
from silofl.setup.site import Site
from silofl.setup.software import read_software
from silofl.study import Study

SMALL = {"name": "small", "task": "classification", "labels": {0: "a", 1: "b"}, "rounds": 2, "metric": "accuracy"}
SMALL |= {"model": {"name": "lenet5"}, "training": {"loss": "cross_entropy"}}
META = {"round": 1, "num_examples": 40, "num_patients": 20, "steps": 5, "image_shape": [1, 4, 4]}
RUN = {"run": "run-1", "round": 1, "held": 0}
META |= {"metrics": {"loss": 0.5, "drift": 0.25}, "software": read_software().model_dump()}


@pytest.fixture
def study():
    return parse(Study, SMALL | {"algorithm": {"name": "fedavg"}}, "study.yaml")


@pytest.fixture
def server(study):
    return ServerRounds.start(study, "run-1", ["north", "south"])


class FilteredSite:
    """A site's chains: the task goes in through the one, an answer out through the other."""

    def __init__(self, folder, before=()):
        self.folder, self.chain = folder, [*before, Egress()]
        self.chain[-1].log_error = lambda fl_ctx, text, fire_event: None
        self.context = FLContext()
        self.context.get_job_id, self.context.get_identity_name = lambda: "job", lambda default="": "north"

    def receive(self, task, message):
        self.context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
        shareable = FLModelUtils.to_shareable(to_model(message, is_difference=False))
        assert RunNote().process(shareable, self.context) is shareable

    def send(self, message):
        return from_model(FLModelUtils.from_shareable(self.send_packed(pack(message))))

    def send_packed(self, shareable):
        for one in self.chain:
            shareable = one.process(shareable, self.context)
        return shareable

    @property
    def records(self):
        path = self.folder / "small" / "north" / "run-1" / "egress.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


def pack(message):
    return FLModelUtils.to_shareable(to_model(message, is_difference=True))


@pytest.fixture
def site(tmp_path, study, monkeypatch):
    def make(*before, **settings):
        own = Site(data="/data", state_dir=f"{tmp_path}/{{study}}/{{site}}", **settings)
        monkeypatch.setattr(egress, "read_job_study", lambda fl_ctx: study)
        monkeypatch.setattr(egress, "read_site_settings", lambda fl_ctx: own)
        filtered = FilteredSite(tmp_path, before)
        filtered.receive("train", Message(meta=RUN))
        return filtered

    return make


@pytest.fixture
def update(server):
    """An update of all that travels: 0.001, 0.002 and so on within every array."""
    start = model_of(server)
    ramps = {name: np.arange(1, array.size + 1, dtype=array.dtype) for name, array in start.items()}
    return {name: (ramp / 1000).reshape(start[name].shape) for name, ramp in ramps.items()}


def test_allowed_arrays_leave_unchanged_and_are_recorded(site, update):
    filtered = site()
    left = filtered.send(Message(update, META))
    assert left.meta == META
    for name, array in update.items():
        np.testing.assert_array_equal(left.arrays[name], array, strict=True)
    assert [record["name"] for record in filtered.records] == [*update, "numbers"]
    assert filtered.records[-1]["values"] == META
    assert {(record["task"], record["refused"]) for record in filtered.records} == {("train", False)}


def test_kind_that_stays_takes_the_whole_answer(site, update):
    filtered = site(may_leave=["weights"])
    left = filtered.send(Message(update, META))
    assert left.arrays == {} and left.meta.keys() == {"round", "error"}
    # two layers with weight, bias, running mean and running variance
    assert "only weights leave, not batchnorm; the answer held 8 such arrays" in left.meta["error"]
    assert [record["refused"] for record in filtered.records] == [True] * (len(update) + 1) + [False]
    assert filtered.records[-1]["values"] == left.meta


def test_a_task_of_any_name_does_not_fill_the_record(site, tmp_path):
    filtered, folder = site(), tmp_path / "small" / "north" / "run-1"
    filtered.receive("t" * 10**6, Message(meta=RUN))
    filtered.send(Message(meta={"round": 1, "error": "no such task"}))
    assert filtered.records[-1]["task"] == "t" * 80
    assert all(path.stat().st_size < 4000 for path in folder.iterdir())


def test_nothing_leaves_that_is_not_in_the_record(site):
    filtered, shareable = site(), pack(Message(meta=META))
    shareable["image"] = np.zeros((8, 8))
    assert "image" not in filtered.send_packed(shareable)


@pytest.mark.parametrize("code", [ReturnCode.EXECUTION_EXCEPTION, "Jane Doe, born 1950"])
def test_an_answer_that_failed_leaves_as_its_code_alone(site, update, code):
    reply = pack(Message(update, META))
    reply.set_return_code(code)
    reply.set_header("image", np.zeros((8, 8)))
    assert dict(site().send_packed(reply)) == dict(make_reply(ReturnCode.EXECUTION_EXCEPTION))


def test_without_the_note_of_the_run_nothing_leaves(site):
    filtered = site()
    filtered.context = FLContext()
    filtered.context.get_job_id = lambda: "job"
    with pytest.raises(ConfigError, match="no filter has noted the task's run; put silofl.flare.egress.RunNote"):
        filtered.send(Message(meta=META))


def test_what_cannot_be_recorded_does_not_leave(tmp_path, site):
    (tmp_path / "small").write_text("a file where the state should be")
    with pytest.raises(NotADirectoryError):
        site().send(Message(meta=META))


# --- behind NVFlare's own filters


def test_excluded_name_is_neither_sent_nor_recorded(site, server, update):
    name, other = list(update)[:2]
    filtered, start = site(ExcludeVars(exclude_vars=[name])), model_of(server)
    left = filtered.send(Message(update, META))
    assert update.keys() - left.arrays.keys() == {name}
    assert name not in {record["name"] for record in filtered.records}
    threefold = Message({key: 3 * value for key, value in update.items()}, META)
    assert (
        finish_round(server, {"north": left, "south": threefold}).notes[0]
        == f"site 'north' keeps back 1 arrays by its policy: {name}"
    )
    # the one site that sent it; the mean of 1 and 3 of both, which have 40 examples each
    np.testing.assert_allclose(model_of(server)[name], start[name] + 3 * update[name], rtol=1e-5)
    np.testing.assert_allclose(model_of(server)[other], start[other] + 2 * update[other], rtol=1e-5)


def finish_round(server, answers):
    Course(server, lambda task, sent: Answers(answers, {})).run_round()
    return server.ledger[-1]


def model_of(server):
    return add_role("model", server.parts["model"].common)
