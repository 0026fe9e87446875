import pytest
import torch

from silofl.base.settings import parse
from silofl.data.site_data import SiteData
from silofl.federation import step_cost
from silofl.federation.server import ServerRounds
from silofl.models.networks import HarmonizedModel
from silofl.parts.task import TRAIN, Exchange
from silofl.parts.work import Work
from silofl.study import Study

from ..random_examples import random_part


def timed(study, count):
    task = ServerRounds.start(study, "run", ["a", "b"]).task("a", Exchange(TRAIN, 1))
    part = random_part(study, (1, 32, 32), count)
    return step_cost.measure_cost(Work("a", study, SiteData(part, part, part), task, torch.device("cpu")))


def make_study(name, training=None, **constants):
    values = {"name": "small", "task": "segmentation", "labels": {1: "blob"}, "rounds": 2}
    values |= {"model": {"normalization": "instance", "features": [4] * 6}}
    values |= {"training": {"batch_size": 2, **(training or {})}, "algorithm": {"name": name, **constants}}
    return parse(Study, values, "study.yaml")


@pytest.mark.parametrize(("name", "count"), [("fedavg", 1), ("fedavg", 2), ("harmofl", 20), ("fedsm", 20)])
def test_steps_of_every_algorithm_take_time_and_memory(name, count):
    cost = timed(make_study(name), count)
    assert 0 < cost.seconds < 60 and cost.peak_bytes > 1 << 20


def test_the_first_step_and_the_setting_up_are_not_counted(monkeypatch):
    # Learners from 1 to 2, then 4 steps begin at 10, 20, 21, 22 and the last ends at 23: 10 s for the first, 1 s for
    # each of the others. What follows takes from 30 to 34, so that 5 s are shared by the 10 steps of an epoch.
    clock = iter([1.0, 2.0, 10.0, 20.0, 21.0, 22.0, 23.0, 30.0, 34.0])
    monkeypatch.setattr(step_cost.time, "perf_counter", lambda: next(clock))
    cost = timed(make_study("fedavg"), 20)
    assert (cost.seconds, cost.seconds_beside) == (1, 0.5)
    # 10 steps of 1 s in each of 3 epochs, and 0.5 s beside for each of the 10.
    assert cost.of_round(10, 3) == 35


@pytest.fixture
def passes(monkeypatch):
    """Let time pass by one second at each look at a batch."""
    seen, look = [], HarmonizedModel.forward
    monkeypatch.setattr(HarmonizedModel, "forward", lambda self, images: seen.append(self) or look(self, images))
    monkeypatch.setattr(step_cost.time, "perf_counter", lambda: float(len(seen)))


# SCAFFOLD's option 1 takes the gradient of all data before it trains: of 20 batches, as many as an epoch has steps.
@pytest.mark.parametrize(("option", "beside"), [(1, 1), (2, 0)])
def test_a_pass_over_the_data_beside_the_epochs_is_counted(passes, option, beside):
    plain = {"optimizer": "sgd", "momentum": 0.0}
    cost = timed(make_study("scaffold", plain, scaffold={"option": option}), 40)
    # A step trains the federated model and the site's own two; two looks try whether BatchNorm can learn there.
    assert (cost.seconds, cost.seconds_beside) == (3, pytest.approx(beside + 2 / 20))
