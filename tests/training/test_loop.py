import pytest
import torch
from torch import nn

from silofl.base.errors import TrainingError
from silofl.core.steps import plain_step
from silofl.study.sections import TrainingSettings
from silofl.training.loop import Learner, make_optimizer, train


def one_weight(value=0.0):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(4, 3, generator=generator), torch.randint(2, (4,), generator=generator)) for _ in range(count)]


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr)


def train_one(model, epochs, optimizer, loss, step):
    return train({"model": Learner(model, optimizer, loss, step, has_drift=True)}, epochs)["model"]


def step_of(values):
    """Return a step that changes nothing and reports one value after the other."""
    remaining = iter(values)
    return lambda model, optimizer, loss, batch: torch.tensor(next(remaining))


def test_the_result_is_mean_loss_and_mean_squared_distance():
    model = one_weight()
    batch = (torch.ones(1, 1), torch.full((1, 1), 2.0))
    result = train_one(model, [[batch, batch]], sgd(model, 0.25), nn.functional.mse_loss, plain_step)
    # w = 0: loss (0 - 2)^2 = 4, gradient -4, so w = 1; then loss 1, gradient -2, so w = 1.5
    assert model.weight.item() == 1.5
    assert result.loss == (4 + 1) / 2
    assert result.drift == (1**2 + 1.5**2) / 2
    assert result.steps == 2


def test_frozen_parameters_stay_and_do_not_drift():
    model = nn.Linear(1, 1)
    batch = (torch.ones(1, 1), torch.full((1, 1), 2.0))
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    model.bias.requires_grad_(False)
    result = train_one(model, [[batch]], sgd(model, 0.25), nn.functional.mse_loss, plain_step)
    # the weight alone moves, by 0.25 * 4 = 1
    assert result.drift == 1 and model.bias.item() == 0


def test_an_epoch_is_drawn_only_after_the_one_before():
    events = []

    def epochs():
        for number in (1, 2):
            events.append(f"epoch {number}")
            yield batches(2)

    def step(model, optimizer, loss, batch):
        events.append(model.training)
        return torch.tensor(1.0)

    model = network().eval()
    train_one(model, epochs(), sgd(model), nn.functional.cross_entropy, step)
    assert events == ["epoch 1", True, True, "epoch 2", True, True]


@pytest.mark.parametrize(
    ("value", "before", "place"), [(float("nan"), 0, "epoch 1, batch 1"), (-float("inf"), 4, "epoch 2, batch 2")]
)
def test_a_loss_that_is_not_finite_names_epoch_and_batch(value, before, place):
    model = network()
    epochs = [batches(3), batches(3)]
    with pytest.raises(TrainingError, match=f"the loss of the model must be finite, not {value}, in {place}"):
        train_one(model, epochs, sgd(model), nn.functional.cross_entropy, step_of([0.5] * before + [value]))


def test_parameters_that_the_last_step_broke_are_refused():
    model = one_weight()
    seen = []

    def step(model, optimizer, loss, batch):
        seen.append(batch)
        if len(seen) == 4:
            nn.init.constant_(model.weight, float("nan"))
        return torch.tensor(0.5)

    with pytest.raises(TrainingError, match="parameters of the model became NaN or infinity.* epoch 2, batch 2"):
        train_one(model, [[0, 1], [2, 3]], sgd(model), nn.functional.mse_loss, step)


# --- the optimiser


def settings(**changes):
    return TrainingSettings(learning_rate=0.25, **changes)


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("adam", torch.optim.Adam, {"lr": 0.25, "betas": (0.8, 0.9), "weight_decay": 0.125}),
        ("adamw", torch.optim.AdamW, {"lr": 0.25, "betas": (0.8, 0.9), "weight_decay": 0.125}),
        ("sgd", torch.optim.SGD, {"lr": 0.25, "momentum": 0.5, "weight_decay": 0.125, "nesterov": True}),
    ],
)
def test_an_optimiser_has_its_kind_and_the_studys_settings(name, kind, wanted):
    model = network()
    chosen = settings(optimizer=name, momentum=0.5, betas=(0.8, 0.9), weight_decay=0.125, nesterov=name == "sgd")
    optimizer = make_optimizer(chosen, model)
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert {key: group[key] for key in wanted} == wanted
    assert not make_optimizer(settings(optimizer="sgd"), model).param_groups[0]["nesterov"]
    assert {id(p) for p in group["params"]} == {id(p) for p in model.parameters()}


def test_several_models_learn_from_one_pass_as_each_would_alone():
    together = [network(1), network(2)]
    alone = [network(1), network(2)]
    epochs = [batches(3, seed=1), batches(2, seed=2)]
    seen = []

    def one_pass():
        for epoch in epochs:
            seen.append(len(epoch))
            yield iter(epoch)

    learners = {
        role: Learner(model, sgd(model, rate), nn.functional.cross_entropy, plain_step, has_drift=True)
        for role, model, rate in zip(("global", "personal"), together, (0.1, 0.2), strict=True)
    }
    results = train(learners, one_pass())
    for role, model, other, rate in zip(results, together, alone, (0.1, 0.2), strict=True):
        result = train_one(other, epochs, sgd(other, rate), nn.functional.cross_entropy, plain_step)
        assert results[role] == result
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert seen == [3, 2]
