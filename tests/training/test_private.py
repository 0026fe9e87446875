"""DP-SGD: against its formula written out, and against attacks on what it must hide."""

import copy
import math
import warnings

import numpy as np
import opacus
import opacus.accountants
import pytest
import torch
from torch import nn

from silofl.base.errors import ConfigError, TrainingError
from silofl.base.settings import parse
from silofl.core.steps import plain_step
from silofl.data.parts import Examples
from silofl.models import build_plain_model
from silofl.study import Study
from silofl.study.sections import DpSgdSettings
from silofl.training import private
from silofl.training.losses import make_loss
from silofl.training.private import (
    PrivacyBudget,
    add_steps,
    compute_epsilon,
    compute_rate,
    draw_batches,
    measure_round,
    private_step,
)

from ..conftest import SMALL_UNET

STUDY = {
    "name": "small",
    "task": "segmentation",
    "labels": {1: "blob"},
    "rounds": 2,
    "baseline_comparison": False,
    "model": SMALL_UNET | {"normalization": "instance"},
    "training": {"batch_size": 4},
    "algorithm": {"name": "fedavg"},
    "privacy": {"dp_sgd": {"noise": 1.0, "clip": 1.0, "delta": 0.001}},
}


def examples(patients):
    count = len(patients)
    images = np.random.default_rng(0).random((count, 1, 16, 16), np.float32)
    return Examples(
        images, (images[:, 0] > 0.5).astype(np.uint8), tuple(map(str, range(count))), (None,) * count, patients
    )


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def squared(found, wanted):
    return ((found[:, 0] - wanted) ** 2).mean()


def batch(count=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, generator=generator), torch.randn(count, generator=generator)


def moved(model, step, given, rate=0.1, loss=squared):
    """Return how far a step with a plain optimiser moves a copy of the model, divided by the rate."""
    model = copy.deepcopy(model)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    step(model, torch.optim.SGD(model.parameters(), rate), loss, given)
    return (before - torch.cat([p.detach().flatten() for p in model.parameters()])) / rate


def test_without_noise_the_step_is_the_mean_of_clipped_gradients():
    settings = DpSgdSettings(noise=1e-5, clip=0.5)
    model = linear()
    (inputs, targets) = batch()
    clipped = []
    for one in range(len(inputs)):
        gradient = moved(model, plain_step, (inputs[one : one + 1], targets[one : one + 1]))
        clipped.append(gradient * min(1, 0.5 / float(gradient.norm())))
    assert any(float(one.norm()) > 0.49 for one in clipped)
    found = moved(model, private_step(settings, 8.0), (inputs, targets))
    torch.testing.assert_close(found, sum(clipped) / 8.0, rtol=1e-4, atol=1e-5)


WEIGHED = {"task": "classification", "labels": {0: "healthy", 1: "sick"}, "metric": "accuracy"}
WEIGHED |= {"model": {"name": "lenet5", "normalization": "group"}}
WEIGHED |= {"training": {"loss": "cross_entropy", "class_weights": {"healthy": 1, "sick": 19}}}
FINDINGS = WEIGHED | {"task": "multilabel"}


def of_classes(kind):
    # The last example is the only sick one.
    return make_loss(parse(Study, STUDY | kind, "study.yaml")), (2,), lambda count: torch.arange(count) // (count - 1)


def of_maps(name, labels, **options):
    study = parse(Study, STUDY | {"labels": labels, "training": {"loss": name}}, "study.yaml")
    outputs = len(labels) + (len(labels) > 1)
    maps = torch.Generator().manual_seed(3)
    return (
        make_loss(study, **options),
        (outputs, 4, 4),
        lambda count: torch.randint(0, 1 + len(labels), (count, 4, 4), generator=maps),
    )


def of_the_batch(found, wanted):
    weights = 1 + 99 * wanted
    return (100 * found.mean(1) * weights).sum() / weights.sum()


LOSSES = {
    "class_weights": lambda: of_classes(WEIGHED),
    "findings": lambda: of_classes(FINDINGS),
    "dice_ce": lambda: of_maps("dice_ce", {1: "a"}),
    "dice": lambda: of_maps("dice", {1: "a", 2: "b"}),
    "cross_entropy": lambda: of_maps("cross_entropy", {1: "a", 2: "b"}),
    "annotated": lambda: of_maps("dice_ce", {1: "a", 2: "b"}, annotated=[1], has_ignored=True),
    "of a package": lambda: (of_the_batch, *of_classes(WEIGHED)[1:]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_one_example_moves_the_sum_by_at_most_the_clip(name):
    loss, outputs, draw = LOSSES[name]()
    torch.manual_seed(2)
    network = nn.Sequential(nn.Linear(5, math.prod(outputs)), nn.Unflatten(1, outputs))
    count = 32
    inputs = torch.randn(count, 5)
    targets = draw(count)
    if name == "annotated":
        targets[0, 0, 0] = 255
        targets[targets == 2] = 0
    step = private_step(DpSgdSettings(noise=1e-5, clip=0.5), 1.0)
    without, present = (moved(network, step, (inputs[:n], targets[:n]), loss=loss) for n in (count - 1, count))
    assert 0.01 < float((present - without).norm()) < 0.5 * 1.001


@pytest.mark.parametrize("weight", [3e38, 1e20])
def test_an_example_whose_gradient_overflows_does_not_show(weight):
    """The server may choose weights at which one image, and no other, leaves the range of the numbers."""
    model = nn.Linear(3, 2)
    (inputs, _) = batch(3)
    step = private_step(DpSgdSettings(noise=1e-5, clip=0.5), 1.0)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[weight, 0, 0], [0, 0, 0]]))
    inputs[:, 0] = 0.0
    planted = torch.tensor([[1e30, 1e30, 1e30]])

    def take(rows):
        trained = copy.deepcopy(model)
        optimizer = torch.optim.SGD(trained.parameters(), 0.1)
        value = step(trained, optimizer, nn.functional.cross_entropy, (rows, torch.zeros(len(rows), dtype=torch.long)))
        return value, trained.bias.detach()

    for value, bias in (take(inputs), take(torch.cat([inputs, planted]))):
        assert value == 0
        assert torch.isfinite(bias).all() and float((bias - model.bias.detach()).norm()) < 0.1 * 4 * 0.5 + 1e-3


def test_the_noise_has_the_deviation_of_the_setting():
    settings = DpSgdSettings(noise=3.0, clip=0.5)
    model = linear()
    step = private_step(settings, 5.0)
    noise = torch.stack([moved(model, step, batch(0)) for _ in range(400)])
    assert float(noise.std()) == pytest.approx(3.0 * 0.5 / 5.0, rel=0.08)
    assert abs(float(noise.mean())) < 0.05


def test_no_two_steps_have_the_same_noise_whatever_torchs_seed():
    settings = DpSgdSettings(noise=1.0, clip=1.0)
    model = linear()
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(moved(model, private_step(settings, 4.0), batch()))
    assert not torch.equal(*found)


@pytest.mark.parametrize("normalization", ["instance", "group"])
def test_a_u_net_learns_by_it(normalization):
    study = parse(Study, STUDY | {"model": SMALL_UNET | {"normalization": normalization}}, "study.yaml")
    model = build_plain_model(study, 0).train()
    optimizer = torch.optim.Adam(model.parameters())
    names = list(model.state_dict())
    images = torch.rand(3, 1, 32, 32)
    targets = torch.randint(0, 2, (3, 32, 32))
    step = private_step(study.privacy.dp_sgd, 3.0)

    def loss(found, wanted):
        return nn.functional.binary_cross_entropy_with_logits(found[:, 0], wanted.float())

    for given in ((images, targets), (images[:0], targets[:0]), (images[:1], targets[:1])):
        before = copy.deepcopy(model.state_dict())
        assert math.isfinite(float(step(model, optimizer, loss, given)))
        assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(model.state_dict()) == names
    assert not any(hasattr(p, "grad_sample") or hasattr(p, "summed_grad") for p in model.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())
    torch.save(copy.deepcopy(model).state_dict(), "/dev/null")


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(2), nn.InstanceNorm2d(2, track_running_stats=True)])
def test_a_network_that_keeps_means_over_images_is_refused(layer):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), layer)
    with pytest.raises(TrainingError, match="has BatchNorm or running statistics"):
        private_step(DpSgdSettings(noise=1.0, clip=1.0), 2.0)(
            model, torch.optim.SGD(model.parameters(), 0.1), squared, (torch.rand(2, 1, 8, 8), torch.rand(2))
        )


class Centred(nn.Linear):
    """A layer that takes the batch's mean away."""

    def forward(self, inputs):
        return super().forward(inputs - inputs.mean(0))


def test_a_network_that_mixes_images_is_refused():
    with pytest.raises(TrainingError, match="answers an image from the others of its batch too"):
        moved(Centred(3, 1), private_step(DpSgdSettings(noise=1.0, clip=1.0, delta=0.01), 4), batch())


def test_a_patient_with_many_examples_weighs_as_one():
    part = examples(("a",) * 20 + ("b", "c", "d"))
    counts = np.zeros(len(part))
    for _ in range(300):
        for rows in draw_batches(part, 2, "patient"):
            patients = [part.patients[row] for row in rows]
            assert len(patients) == len({*patients})
            counts[rows] += 1
    # Eleven batches an epoch: one of a single example would join the one before it.
    steps = 300 * 11
    assert counts[:20].sum() / steps == pytest.approx(0.5, abs=0.03)
    assert counts[20:] / steps == pytest.approx([0.5] * 3, abs=0.03)
    assert counts[:20].min() > 0


def test_examples_are_drawn_independently_and_by_no_seed():
    part = examples((None,) * 12)
    np.random.seed(0)
    first = draw_batches(part, 4, "example")
    np.random.seed(0)
    second = draw_batches(part, 4, "example")
    assert len(first) == len(second) == 3
    assert [rows.tolist() for rows in first] != [rows.tolist() for rows in second]
    sizes = {len(rows) for _ in range(200) for rows in draw_batches(part, 4, "example")}
    assert {1, 2, 3, 4, 5, 6, 7} <= sizes


def test_units_need_patients_that_are_known():
    with pytest.raises(TrainingError, match="the patients of 1 of 3 training examples are not known"):
        draw_batches(examples(("a", "b", None)), 2, "patient")


def test_a_delta_that_would_show_somebody_whole_is_refused():
    study = parse(Study, STUDY | {"privacy": {"dp_sgd": {"noise": 1, "clip": 1, "delta": 0.5}}}, "study.yaml")
    with pytest.raises(TrainingError, match=r"must be below 1 / 3, the patients in training, not 0.5"):
        measure_round(study, examples(("a", "b", "c")))


def test_the_least_noise_has_an_epsilon_that_may_be_named():
    assert compute_epsilon([PrivacyBudget(1e-5, 1.0, 1000), PrivacyBudget(1e-5, 0.1, 1000)], 1e-5) < 1e15
    assert compute_epsilon([PrivacyBudget(1e15, 1.0, 1000), PrivacyBudget(1e15, 0.1, 1000)], 1e-5) < 1
    assert compute_epsilon([], 1e-5) == 0


def test_a_round_has_as_many_steps_as_a_plain_one():
    study = parse(Study, STUDY | {"training": {"batch_size": 4, "local_epochs": 2}}, "study.yaml")
    assert measure_round(study, examples(tuple("abcdefgh" * 2))) == (8, PrivacyBudget(1.0, 0.5, 8, "patient"))
    assert compute_rate(3, 4) == 1.0


@pytest.mark.parametrize(
    ("spent", "delta", "other"),
    [
        # Privacy loss distributions by dp-accounting 0.6.0: PLDAccountant().compose(SelfComposedDpEvent(
        # PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)).get_epsilon(delta).
        ([PrivacyBudget(1.0, 0.1, 200)], 1e-3, 7.0962),
        ([PrivacyBudget(0.658, 0.1, 400)], 1e-3, 26.9855),
        ([PrivacyBudget(9.5, 0.1, 400)], 1e-3, 0.4868),
        ([PrivacyBudget(2.0, 0.01, 5000)], 1e-6, 1.6829),
        ([PrivacyBudget(1.0, 0.1, 200), PrivacyBudget(2.0, 0.2, 30)], 1e-4, 9.0444),
    ],
)
def test_epsilon_is_another_accountants_and_never_less(spent, delta, other):
    assert other <= compute_epsilon(spent, delta) <= 1.01 * other


def test_epsilon_is_bounded_by_divergences_where_numbers_end():
    spent = [PrivacyBudget(0.01, 0.5, 10), PrivacyBudget(0.01, 0.5, 10)]
    accountant = opacus.accountants.RDPAccountant()
    accountant.history = [one[:3] for one in spent]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert compute_epsilon(spent, 1e-5) == accountant.get_epsilon(1e-5)


def test_steps_of_one_kind_are_counted_together():
    spent = add_steps([PrivacyBudget(1.0, 0.1, 10), PrivacyBudget(2.0, 0.1, 5)], PrivacyBudget(1.0, 0.1, 7))
    assert sorted(spent) == [PrivacyBudget(1.0, 0.1, 17), PrivacyBudget(2.0, 0.1, 5)]
    assert add_steps([PrivacyBudget(1.0, 0.1, 5)], PrivacyBudget(1.0, 0.1, 5)) == [PrivacyBudget(1.0, 0.1, 10)]
    assert len(add_steps([PrivacyBudget(1.0, 0.1, 5)], PrivacyBudget(1.0, 0.1, 5, "patient"))) == 2


def test_what_leaves_cannot_tell_whether_a_patient_was_there():
    """An attacker who knows all but one patient, and plants the worst one, must guess hardly better than chance."""
    settings = DpSgdSettings(noise=4.0, clip=1.0)
    model = linear()
    inputs, targets = batch(4)
    planted = torch.tensor([[100.0, 0, 0]]), torch.tensor([-1000.0])
    together = torch.cat([inputs, planted[0]]), torch.cat([targets, planted[1]])
    direction = moved(model, plain_step, planted)
    direction = direction / direction.norm()

    def right(step):
        without = torch.stack([moved(model, step, (inputs, targets)) @ direction for _ in range(400)])
        present = torch.stack([moved(model, step, together) @ direction for _ in range(400)])
        threshold = torch.cat([without, present]).median()
        return float(((present > threshold).float().mean() + (without <= threshold).float().mean()) / 2)

    assert right(plain_step) > 0.99
    # One step at noise 4 has a total variation of at most 0.1: at best 0.55 of the guesses are right.
    assert right(private_step(settings, 4.0)) < 0.62


def test_without_opacus_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opacus", None)
    with pytest.raises(ConfigError, match=r"Opacus, which privacy.dp_sgd needs, is not installed.*silofl\[dp\]"):
        private.compute_epsilon([PrivacyBudget(1.0, 0.1, 1)], 1e-5)
