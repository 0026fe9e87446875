import json

import pytest

from silofl.algorithms import fedopt
from silofl.base.errors import AggregationError, ConfigError
from silofl.base.settings import parse
from silofl.federation.server import ServerRounds
from silofl.models import build_plain_model
from silofl.models.names import read_arrays
from silofl.parts.part import BEFORE, INSTEAD
from silofl.parts.task import TRAIN, Exchange, Expected, Wanted
from silofl.study import Study
from silofl_desk.studies.alone import run_alone
from silofl_desk.studies.traffic import count_traffic

from ..conftest import SMALL_UNET, UNET

SITES = ("east", "north", "west")


def make_study(rounds=4, has_weights=False, precision="float32", training=None, network=SMALL_UNET, **algorithm):
    weights = {"weights": "weights.pt", "weights_sha256": "0" * 64} if has_weights else {}
    values = {
        "name": "small",
        "task": "segmentation",
        "labels": {1: "blob"},
        "rounds": rounds,
        "device": "cpu",
        "model": {**network, **weights},
        "training": {"batch_size": 2, "learning_rate": 0.01} | (training or {}),
        "algorithm": algorithm,
        "federation": {"precision": precision},
    }
    return parse(Study, values, "study.yaml")


def ledger_of(study, settings, folder):
    """Return the ledger of a whole run, which trains and mixes, in this process."""
    pretrained = None
    if study.model_file:
        state = build_plain_model(study, 1).state_dict()
        pretrained = read_arrays(state, [name for name, value in state.items() if value.is_floating_point()])
    run_alone(study, folder / "run", SITES, settings, pretrained)
    assert json.loads((folder / "run" / "results.json").read_text())["status"] == "COMPLETE"
    return json.loads((folder / "run" / "ledger.json").read_text())


SGD = {"optimizer": "sgd", "momentum": 0.0, "local_epochs": 2}
# What is added to an algorithm for which nothing more travels.
LIKE = {
    "fedavg": (
        {"name": "fedopt"},
        {"name": "fednova", "training": SGD},
        {"name": "perfedavg", "training": SGD},
        {"name": "moon", "training": SGD, "network": UNET},
    ),
    "fedper": ({"name": "fedrep", "training": SGD},),
}
RECIPES = {
    "one model for all": {"name": "fedavg"},
    "everything at home": {"name": "local"},
    "amplitude of a few frequencies": {"name": "fedavg", "input": "harmofl", "amplitude": {"band": 3}},
    "every site its own": {"name": "softpull", "softpull": {"self_weight": 0.5}},
    "nobody listens": {"name": "softpull", "softpull": {"self_weight": 1.0}},
    "fine-tuning": {"name": "finetuning", "extra_rounds": 2},
    "personal beside shared": {"name": "ditto"},
    "control variates": {"name": "scaffold", "training": SGD},
    "running statistics, anew": {"name": "adafed", "statistics": {"rounds": 1, "refresh_every": 1}},
    "pretrained, everything at home": {"name": "local", "start_from_pretrained": True},
    "weights in a file, BatchNorm at home": {"name": "fedbn", "has_weights": True},
    "half, of two models and a selector": {"name": "fedsm", "selector": {"steps": 3}, "precision": "float16"},
    "half, but for a selector's squares": {
        "name": "fedsm",
        "selector": {"learning": "moments"},
        "precision": "float16",
    },
    "half, with an amplitude": {"name": "harmofl", "precision": "float16"},
    "half, but for running statistics": {"name": "adafed", "preset": "paper", "precision": "float16"},
    **{one["name"]: one for options in LIKE.values() for one in options},
}


@pytest.mark.parametrize(("plain", "options"), [(plain, one) for plain in LIKE for one in LIKE[plain]])
def test_an_algorithm_that_needs_nothing_more_travels_as_the_plain_one(plain, options):
    found, wanted = (make_study(**one) for one in (options, options | {"name": plain}))
    assert count_traffic(found, 3, (1, 32, 32)) == count_traffic(wanted, 3, (1, 32, 32))


@pytest.mark.long
@pytest.mark.parametrize("algorithm", RECIPES.values(), ids=RECIPES)
def test_as_many_bytes_are_counted_as_the_ledger_of_a_run_has(settings_in, tmp_path, algorithm):
    study = make_study(rounds=3, **algorithm)
    ledger = ledger_of(study, settings_in(tmp_path, min_patients=1), tmp_path)
    found = count_traffic(study, len(SITES), (1, 32, 32))
    assert len(found.bytes_to) == len(ledger) == study.total_rounds
    for site in SITES:
        assert found.bytes_to == [record["bytes_to"][site] for record in ledger]
        assert found.bytes_from == [record["bytes_from"][site] for record in ledger]


def test_a_selector_that_learns_the_best_model_is_counted_in_its_extra_rounds():
    study = make_study(name="fedsm", selector={"labels": "best_model", "steps": 2}, extra_rounds=2)
    found, server = count_traffic(study, 3, (1, 32, 32)), ServerRounds.start(study, "run", list(SITES))
    steps, (assemble,) = server.asks(INSTEAD, 5), server.asks(BEFORE, 5)
    learning = sum(server.task("east", step).num_bytes for step in steps)
    # the models come before the first extra round, and stay
    assert found.bytes_to[4:] == [server.task("east", assemble).num_bytes + learning, learning]
    assert found.bytes_from[4:] == [learning] * 2
    assert found.bytes_to[0] == server.task("east", Exchange(TRAIN, 1)).num_bytes


def test_after_the_rounds_a_single_model_travels_twice_and_a_super_model_brings_every_site_all_models():
    study = make_study(name="fedavg")
    model = ServerRounds.start(study, "run", list(SITES)).task("east", Exchange(TRAIN, 1)).num_bytes
    found = count_traffic(study, 3, (1, 32, 32))
    # To be validated and tested: 4 rounds there and back, and twice more there.
    assert found.finish_bytes_to == 2 * model and found.site_bytes == 10 * model
    study = make_study(name="fedsm")
    server = ServerRounds.start(study, "run", list(SITES))
    # A round's task is a global and a personalised model, and the selector.
    task = server.task("east", Exchange(TRAIN, 1))
    model, selector = (sum(a.nbytes for a in task.of(role).values()) for role in ("global", "selector"))
    # The last round is validated by both models and the selector; the super model is the global model and three
    # personalised ones, and the selector.
    assert count_traffic(study, 3, (1, 32, 32)).finish_bytes_to == (2 * model + selector) + (4 * model + selector)


class ByLoss(fedopt.ServerOptimizerPart):
    """Steps by a loss above 0 that each site sends, and by every array of its update."""

    def expected(self, site, exchange, run):
        return Wanted({f"{self.role}/loss": Expected((), True, minimum=0.5)} if exchange.task == TRAIN else {})

    def server_step(self, role, previous, mixed, replies, number, learning_rate):
        scale = {site: number * learning_rate / one["loss"] for site, one in replies.updates_of(self.role).items()}
        changes = {s: {name: one[name] * scale[s] for name in previous} for s, one in replies.updates_of(role).items()}
        return {name: mixed[name] + sum(one[name] for one in changes.values()) for name in previous}, self


class Refusing(ByLoss):
    def checked(self, site, exchange, answer, run):
        raise AggregationError(f"site {site!r} must send a loss of at least 0.7")


def test_the_played_answers_hold_whole_updates_and_no_less_than_the_least_that_a_part_expects(monkeypatch):
    monkeypatch.setattr(fedopt, "PART", ByLoss)
    assert count_traffic(make_study(rounds=2, name="fedopt"), 2, (1, 32, 32)).bytes_from[1] > 0


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        (Refusing, ConfigError, "the server refuses the least one: .* at least 0.7"),
    ],
)
def test_a_part_that_fails_or_refuses_what_it_expects_is_named_with_its_method(monkeypatch, part, error, message):
    monkeypatch.setattr(fedopt, "PART", part)
    with pytest.raises(error, match=message):
        count_traffic(make_study(rounds=2, name="fedopt"), 2, (1, 32, 32))
