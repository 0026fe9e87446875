import os
import signal
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.harmofl import perturbed_step
from silofl.base.errors import ConfigError, TrainingError
from silofl.core.steps import plain_step
from silofl.models import build_model
from silofl.models.features import record_inputs
from silofl.models.networks import ANSWER_BATCH
from silofl.training import processes
from silofl.training.losses import make_loss
from silofl.training.processes import spread_batches

CPU = torch.device("cpu")
SMALL = {"features": (8, 8, 8, 8, 8, 8), "normalization": "group"}


@pytest.fixture
def make_study(make_study):
    def make(model=SMALL, **changes):
        return make_study(model=model, **changes)

    return make


def batches(count, size=3):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, size, 1, 32, 32, generator=generator, dtype=torch.float64)
    return [(one, (one[:, 0] > 0.5).long()) for one in images]


def learn(study, step, epoch):
    """Return the parameters after an epoch of SGD in float64, and the losses."""
    model = build_model(study, (1, 32, 32), 0).double().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = [float(step(model, optimizer, make_loss(study), batch)) for batch in epoch]
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]), losses


def test_ten_steps_in_two_processes_are_those_in_one(make_study, monkeypatch):
    study = make_study(training={"batch_dice": True})
    epoch = batches(10)
    steps = (plain_step, perturbed_step(0.1))
    alone = [learn(study, step, epoch) for step in steps]
    received = []
    receive = processes._Worker.receive

    def count(worker):
        received.append(receive(worker))
        return received[-1]

    monkeypatch.setattr(processes._Worker, "receive", count)
    with spread_batches(2, study, CPU):
        spread = [learn(study, step, epoch) for step in steps]
        assert len(active_children()) == 1
    assert not active_children()
    for one, other in zip(alone, spread, strict=True):
        np.testing.assert_allclose(other[0], one[0], rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(other[1], one[1], rtol=1e-6)
    # Ten steps of one pass over the batch and ten of two; each passes forwards and backwards.
    assert len(received) == 10 * 2 + 10 * 4
    # Of three images the other process answers the last.
    assert [len(one[0]) for one in received[:20:2]] == [1] * 10


def test_a_process_that_fails_ends_the_training_with_a_sentence(make_study):
    study = make_study()
    ((images, _),) = batches(1)
    model = build_model(study, (1, 32, 32), 0).double().train()
    with pytest.raises(TrainingError, match="process 2 of 2 ended with exit code -9"):
        with spread_batches(2, study, CPU):
            with pytest.raises(TrainingError, match="process 2 of 2 could not compute its share of a batch: "):
                ANSWER_BATCH.get()(nn.Conv2d(1, 1, 1).double(), images)
            assert len(model(images)) == 3
            os.kill(active_children()[0].pid, signal.SIGKILL)
            model(images)
    assert not active_children()


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (SMALL | {"normalization": "batch"}, "BatchNorm in training, whose statistics are of the whole batch"),
        (SMALL | {"normalization": "batch_stateless"}, "BatchNorm in training, whose statistics are of the whole"),
        (SMALL | {"dropout": 0.5}, "a network that draws random numbers, as dropout does"),
    ],
)
def test_a_network_that_needs_the_whole_batch_is_refused(make_study, model, what):
    study = make_study(model)
    ((images, _),) = batches(1)
    with spread_batches(2, study, CPU), pytest.raises(TrainingError, match=f"must be 1 with {what}.*, not 2; set it"):
        build_model(study, (1, 32, 32), 0).double().train()(images)
    assert not active_children()


class StandIn:
    """A process that would have nothing to say."""

    def __init__(self, *what):
        self.close = lambda: None


def test_steps_that_look_inside_or_back_are_refused(make_study, monkeypatch):
    monkeypatch.setattr(processes, "_Worker", StandIn)
    study = make_study()
    ((images, targets),) = batches(1)
    model = build_model(study, (1, 32, 32), 0).double().train()
    with spread_batches(2, study, CPU):
        with pytest.raises(TrainingError, match="an algorithm that looks into"), record_inputs(model.network.upcat_4):
            model(images)
        # One image has no share for another process.
        loss = make_loss(study)(model(images[:1]), targets[:1])
        model(images[:1])
        with pytest.raises(TrainingError, match="learns from a batch after it has looked at another"):
            loss.backward()


def test_differential_privacy_is_refused(make_study):
    study = make_study(baseline_comparison=False, privacy={"dp_sgd": {"clip": 1.0, "noise": 1.0, "delta": 1e-3}})
    with pytest.raises(TrainingError, match=r"must be 1 with privacy.dp_sgd, .*, not 2; set it to 1"):
        with spread_batches(2, study, CPU):
            pass


def test_each_process_has_a_gpu(make_study, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="must be at most the job's GPUs, 1, not 2; lower it"):
        with spread_batches(2, make_study(), torch.device("cuda")):
            pass
