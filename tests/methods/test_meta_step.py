import copy
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

from silofl.data.batches import training_batches
from silofl.data.transforms import build_augmentation
from silofl.federation.run_folder import RunFolder
from silofl.inference.directory import read_model_folder
from silofl.methods.meta_step import adapt_model
from silofl.models import build_plain_model
from silofl.models.networks import build_models
from silofl.studies.traffic import count_traffic
from silofl.training.device import derive_seed
from silofl.training.evaluation import evaluate
from silofl.training.losses import make_loss

from .conftest import assert_same_course

pytestmark = pytest.mark.long

COUNTS = {"east": 5, "north": 4, "west": 3}
# Of batch size 2 east and north have two batches an epoch, west has one.
SGD = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.05, "local_epochs": 3}
# Large, so that the model that a site uses is plainly another one.
META = {"alpha": 0.2}


@pytest.fixture
def perfedavg(play, make_study):
    def start(folder="state", rounds=3, training=None, meta_step=META, **options):
        settings = {"name": "perfedavg", "training": SGD | (training or {})} | options
        if settings["name"] == "perfedavg":
            settings["meta_step"] = meta_step
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
def test_rounds_with_an_absent_site_are_those_of_a_plain_implementation(perfedavg, delta):
    game = perfedavg(meta_step=META | ({"variant": "hf", "delta": delta} if delta else {}))
    x = start = build_plain_model(game.study, game.study.seed).state_dict()
    for number, sites in ((1, COUNTS), (2, ("east", "west")), (3, COUNTS)):
        record = game.round(absent=tuple(COUNTS.keys() - set(sites)))
        assert record.answered == list(sites)
        ends, whole = {site: trained(game, site, number, x, delta) for site in sites}, sum(COUNTS[s] for s in sites)
        x = {
            name: sum(COUNTS[site] / whole * ends[site][name] for site in sites) if value.is_floating_point() else value
            for name, value in x.items()
        }
        assert_same_course(game.models("east"), x, start)


def test_the_deployed_model_follows_the_reference(vectors):
    v = vectors("baselines/perfedavg")
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    for r, i in np.ndindex(v["x"].shape[:2]):
        state = {name: torch.tensor(v[f"hf.global/{name}"][r]) for name in model.state_dict()}
        model.load_state_dict(state)
        batch = torch.tensor(v["x"][r, i, 0, 0]), torch.tensor(v["y"][r, i, 0, 0])
        found = adapt_model(model, nn.functional.mse_loss, [batch], float(v["hyper_alpha"]))
        for name, value in found.state_dict().items():
            np.testing.assert_allclose(value.numpy(), v[f"hf.adapted/{name}"][r, i], rtol=1e-6)
        # the shared one stays what it was
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


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


def assert_close(state, model):
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            np.testing.assert_allclose(state[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_site_validates_tests_and_keeps_the_model_after_its_own_steps(perfedavg, tmp_path, steps):
    game, shared = perfedavg(meta_step=META | {"deployed_steps": steps}), {}
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
            assert game.server.ledger[number - 1].validated[site] == pytest.approx(wanted.value, abs=1e-6)
        model = deployed(game, site, shared[game.server.best_round], steps)
        _, wanted = evaluate(model, data.test, game.study, torch.device("cpu"))
        assert tests.scores[site].value == pytest.approx(wanted.value, abs=1e-6)
        (state,) = read_model_folder(game.folder(site) / "supermodel").models.values()
        assert_close(state, model)


def test_what_a_site_uses_changes_nothing_of_what_it_trains(perfedavg):
    one, more = perfedavg(rounds=2), perfedavg("more", rounds=2, meta_step=META | {"deployed_steps": 3})
    one.rounds(2), more.rounds(2)
    for name, array in one.models("east").items():
        np.testing.assert_array_equal(more.models("east")[name], array)


def test_a_site_whose_round_holds_no_step_is_named_and_the_others_go_on(perfedavg):
    game = perfedavg(training={"local_epochs": 1}, federation={"max_missed_rounds": 3})
    record = game.round()
    assert record.answered == ["east", "north"]
    assert "site 'west' must have at least 2 batches a round, those of one meta-step, not 1" in record.failed["west"]
    assert "raise training.local_epochs or lower training.batch_size" in record.failed["west"]


def test_it_travels_as_fedavg(perfedavg):
    ours, plain = perfedavg(), perfedavg("plain", name="fedavg")
    record, other = ours.round(), plain.round()
    assert (record.bytes_to, record.bytes_from) == (other.bytes_to, other.bytes_from)
    found = count_traffic(ours.study, 3, (1, 32, 32))
    assert (found.bytes_to[0], found.bytes_from[0]) == (record.bytes_to["east"], record.bytes_from["east"])
    assert any(not np.array_equal(array, ours.models("east")[n]) for n, array in plain.models("east").items())


@pytest.mark.parametrize(("variant", "optimizer"), [("fo", "adam"), ("hf", "sgd")])
def test_a_run_goes_on_from_its_checkpoint(perfedavg, variant, optimizer):
    training, meta_step = {"optimizer": optimizer, "momentum": 0.5 * (optimizer == "sgd")}, META | {"variant": variant}
    options = {"training": training, "meta_step": meta_step, "model": {"dropout": 0.3}}
    whole, halved = perfedavg(**options), perfedavg("other", **options)
    halved.goes_on_as(whole)
    assert whole.finish().scores == halved.finish().scores


@pytest.mark.parametrize(
    "more",
    [
        {"stays_home": "batchnorm"},
        {"stays_home": "head"},
        {"input": "harmofl"},
        {"parts": ["fedopt"]},
        {"weights": "uniform"},
        {"average_last": 0.7},
    ],
    ids=str,
)
def test_it_goes_with_the_other_answers(perfedavg, more):
    game = perfedavg(**more)
    assert set(game.finish().scores) == set(COUNTS)
    assert [record.answered for record in game.server.ledger] == [list(COUNTS)] * 3


def test_the_run_writes_no_super_model_since_nobody_uses_the_shared_one(perfedavg, tmp_path):
    game = perfedavg(rounds=1)
    folder = RunFolder(tmp_path / "run", game.study)
    folder.finish(game.server, game.finish())
    assert not (folder.path / "supermodel").exists() and (folder.path / "model" / "best.pt").is_file()
    text = (folder.path / "model" / "README.md").read_text()
    assert "Every site takes steps of its own from such a model before it uses it" in text
    assert "STATE_DIR/run/supermodel" in text
