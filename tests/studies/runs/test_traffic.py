import json

import pytest

from silofl.base.settings import parse
from silofl.federation.server import ServerRounds
from silofl.models import build_plain_model
from silofl.models.names import read_arrays
from silofl.parts.task import TRAIN, Exchange
from silofl.study import Study
from silofl_desk.studies.runs.in_process import run_in_process
from silofl_desk.studies.runs.traffic import count_traffic

from ...conftest import SMALL_UNET, UNET

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
    run_in_process(study, folder / "run", SITES, settings, pretrained)
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
    "a selector that learns the best model": {
        "name": "fedsm",
        "selector": {"labels": "best_model", "steps": 2},
        "extra_rounds": 2,
    },
    "half, with an amplitude": {"name": "harmofl", "precision": "float16"},
    "half, but for running statistics": {"name": "adafed", "preset": "paper", "precision": "float16"},
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
