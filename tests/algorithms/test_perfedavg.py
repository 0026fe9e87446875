import copy
from itertools import chain, cycle

import numpy as np
import pytest
import torch
from torch import nn

from silofl.algorithms.perfedavg import adapt_model, meta_step
from silofl.data.batches import training_batches
from silofl.data.transforms import build_augmentation
from silofl.inference.directory import read_model_folder
from silofl.models import build_plain_model
from silofl.models.networks import build_models
from silofl.training.device import derive_seed
from silofl.training.evaluation import evaluate
from silofl.training.losses import make_loss

from .conftest import COUNTS, assert_is, assert_plain_rounds, average, batch_of, network


def batches_of(v, r, i, k):
    inputs, targets = batch_of(v, r, i, k)
    return list(zip(inputs, targets, strict=True))


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_a_whole_run_follows_the_reference(vectors, variant):
    v = vectors("baselines/perfedavg")
    delta, rate = {"fo": None, "hf": float(v["hyper_delta"])}[variant], float(v["hyper_beta"])
    shared, sites = network(v, "init"), range(len(v["n"]))
    for r in range(len(v["x"])):
        ends = {}
        for i in sites:
            site, step = copy.deepcopy(shared), meta_step(float(v["hyper_alpha"]), delta)
            optimizer = torch.optim.SGD(site.parameters(), rate)
            for k in range(v["x"].shape[2]):
                before = copy.deepcopy(site.state_dict())
                *first, last = batches_of(v, r, i, k)[: 2 if variant == "fo" else 3]
                for batch in first:
                    step(site, optimizer, nn.functional.mse_loss, batch)
                    # in between the model is where it was, bit for bit
                    assert all(torch.equal(value, before[key]) for key, value in site.state_dict().items())
                step(site, optimizer, nn.functional.mse_loss, last)
                assert_is(site, v, f"{variant}.site", r, i, k)
                for key, parameter in site.named_parameters():
                    np.testing.assert_allclose(parameter.grad.numpy(), v[f"{variant}.meta/{key}"][r, i, k], rtol=1e-6)
            ends[i] = site.state_dict()
        shared.load_state_dict(average(ends, v["p"], ends[0]))
        assert_is(shared, v, f"{variant}.global", r)


@pytest.mark.parametrize(("delta", "moving"), [(None, cycle([True, False])), (1e-3, cycle([True, False, False]))])
def test_running_statistics_move_on_the_first_batch_only(delta, moving):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    step, optimizer = meta_step(0.1, delta), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        before = copy.deepcopy(dict(model.named_buffers()))
        step(model, optimizer, nn.functional.cross_entropy, (torch.rand(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])))
        is_moving = next(moving)
        assert all(torch.equal(value, before[name]) != is_moving for name, value in model.named_buffers())


def test_both_passes_of_the_hessian_draw_the_same_dropout():
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1)), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    step, optimizer = meta_step(0.1, 1e-3), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        step(model, optimizer, nn.functional.mse_loss, (torch.ones(2, 64), torch.zeros(2, 1)))
    of_d, of_inner, above, below = seen
    assert torch.equal(above, below)
    assert not torch.equal(of_d, of_inner) and not torch.equal(of_inner, above)


def test_the_passes_of_the_hessian_have_no_autocast(casting):
    model = casting
    step, optimizer = meta_step(0.1, 1e-3), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        step(model, optimizer, nn.functional.mse_loss, (torch.rand(2, 3), torch.zeros(2, 1)))
    assert model.dtypes == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    assert model.is_autocast


pytestmark = pytest.mark.long

# Of batch size 2 east and north have two batches an epoch, west has one.
SGD = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.05, "local_epochs": 3}
# Large, so that the model that a site uses is plainly another one.
META = {"alpha": 0.2}


@pytest.fixture
def perfedavg(play, make_study):
    def start(folder="state", rounds=3, training=None, perfedavg=META, **options):
        settings = {"name": "perfedavg", "training": SGD | (training or {})} | options
        if settings["name"] == "perfedavg":
            settings["perfedavg"] = perfedavg
        return play(folder=folder, study=make_study(rounds=rounds, **settings))

    return start


def gradients(game, model, batch):
    model.zero_grad()
    make_loss(game.study)(model(batch[0]), batch[1]).backward()
    return [p.grad.clone() for p in model.parameters()]


def moved(model, direction, length):
    """Return a copy elsewhere; what happens to its statistics does not matter."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, way in zip(other.parameters(), direction, strict=True):
            parameter += length * way
    return other


def trained(game, site, number, state, delta):
    """Train a round of meta-steps, each pass with a model of its own."""
    model, count = build_plain_model(game.study, 0).train(), 3 if delta else 2
    model.load_state_dict(state)
    batches = list(chain(*game.epochs(site, number)))
    for i in range(0, len(batches) - count + 1, count):
        inner = moved(model, gradients(game, model, batches[i]), -0.2)
        outer = gradients(game, inner, batches[i + 1])
        if delta:
            above, below = (gradients(game, moved(model, outer, way), batches[i + 2]) for way in (delta, -delta))
            both = zip(outer, above, below, strict=True)
            outer = [q - 0.2 * (a - b) / (2 * delta) for q, a, b in both]
        model.load_state_dict(moved(model, outer, -0.05).state_dict())
    if len(batches) % count:
        # The first batch that is left over moves the statistics.
        model(batches[len(batches) // count * count][0])
    return model.state_dict()


# Of a network with kinks, gradients that are close together differ by a jump or by none, as rounding will have it.
@pytest.mark.parametrize("delta", [None, 0.1], ids=["fo", "hf"])
def test_an_absent_site_follows_a_plain_implementation(perfedavg, delta):
    game = perfedavg(perfedavg=META | ({"variant": "hf", "delta": delta} if delta else {}))
    assert_plain_rounds(game, lambda site, number, x: trained(game, site, number, x, delta))


def test_the_deployed_model_follows_the_reference(vectors):
    v = vectors("baselines/perfedavg")
    for r, i in np.ndindex(v["x"].shape[:2]):
        model = network(v, "hf.global", r)
        found = adapt_model(model, nn.functional.mse_loss, [batch_of(v, r, i, 0, 0)], float(v["hyper_alpha"]))
        assert_is(found, v, "hf.adapted", r, i)
        # the shared one stays what it was
        assert_is(model, v, "hf.global", r)


def deployed(game, site, arrays, steps=1):
    """Return a server's model as a site uses it: after plain steps on the first batches of an order of the site's."""
    (model,) = build_models(game.study, (1, 32, 32)).values()
    model.load_state_dict({n.removeprefix("model/"): torch.tensor(a) for n, a in arrays.items()}, strict=False)
    examples, augment = game.sites[site].data.training, build_augmentation(game.study, True)
    seeds = [derive_seed(game.study.seed, site, "meta_step", epoch) for epoch in (1, 2, 3)]
    batches = list(chain(*(training_batches(examples, 2, augment, seed, "cpu") for seed in seeds)))
    optimizer = torch.optim.SGD(model.train().parameters(), 0.2)
    for batch in batches[:steps]:
        optimizer.zero_grad()
        make_loss(game.study)(model(batch[0]), batch[1]).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("steps", [1, 3])
def test_a_site_uses_the_model_after_its_own_steps(perfedavg, tmp_path, steps):
    game, shared = perfedavg(perfedavg=META | {"deployed_steps": steps}), {}
    for number in (1, 2, 3):
        game.round()
        shared[number] = game.models("east")
    tests = game.finish()
    for site in COUNTS:
        data = game.sites[site].data
        for number, arrays in shared.items():
            # a third step is in a second epoch, at west in a third
            model = deployed(game, site, arrays, steps)
            _, wanted = evaluate(model, data.validation, game.study, torch.device("cpu"))
            assert game.server.ledger[number - 1].validated[site] == pytest.approx(wanted.value, abs=6e-4)
        model = deployed(game, site, shared[game.server.best_round], steps)
        _, wanted = evaluate(model, data.test, game.study, torch.device("cpu"))
        assert tests.scores[site].value == pytest.approx(wanted.value, abs=6e-4)
        (state,) = read_model_folder(game.folder(site) / "supermodel").models.values()
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                np.testing.assert_allclose(state[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-7)


def test_a_site_whose_round_holds_no_step_is_named(perfedavg):
    game = perfedavg(training={"local_epochs": 1}, federation={"max_missed_rounds": 3})
    record = game.round()
    assert record.answered == ["east", "north"]
    assert "site 'west' has 1 batches a round, fewer than the 2 of one meta-step" in record.failed["west"]
    assert "raise training.local_epochs or lower training.batch_size" in record.failed["west"]
