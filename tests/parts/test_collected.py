"""FedSM with another personalisation in SoftPull's place: the personal models travel once, in the end."""

import numpy as np
import pytest
import torch

from silofl.algorithms.fedsm.assembly import ASSEMBLE, TEST
from silofl.base.errors import ConfigError
from silofl.federation.egress import Gate, Request
from silofl.models.roles import add_role
from silofl.parts.task import COLLECT
from silofl.setup.site import Site
from silofl_desk.studies.comparisons.methods import find_method_algorithm

from ..conftest import DROPPING
from .conftest import SITES

pytestmark = pytest.mark.long

SGD = {"optimizer": "sgd", "momentum": 0.0, "batch_size": 2, "learning_rate": 0.05}
NAMES = ("ditto", "apfl")


@pytest.fixture
def inside(play):
    """Begin a run of an algorithm with a personal model inside FedSM."""

    def start(name="ditto", folder="inside", **options):
        return play(folder=folder, training=SGD, **find_method_algorithm(f"fedsm-{name}"), **options)

    return start


def models_of(game):
    return game.server.parts["super_model"].outcome(game.server, {}).make_contents().models


def assert_equal(left, right):
    for name, value in right.items():
        np.testing.assert_array_equal(np.asarray(left[name]), np.asarray(value), err_msg=name)


def collected(game, site):
    return game.answers[COLLECT][site].of("collected")


def best_at(best):
    """Return a change by which one round validates best."""

    def change(task, site, answer):
        metrics = answer.meta.get("metrics", {})
        if metrics.get("validation"):
            # a training task validates the round before
            number = answer.meta["round"] - (task == "train")
            value = 0.9 if number == best else 0.5
            metrics["validation"] = {"value": value, "num_cases": 2, "num_excluded": 0}
        return answer

    return change


# --- those that stay at home in training


def test_the_reported_personal_model_is_asked_for_once(inside):
    game = inside(rounds=3)
    game.finish(change=best_at(2))
    for site in SITES:
        home = add_role("personal", collected(game, site))
        assert_equal(game.kept(site, 2)["models"]["home"], home)
        other = game.kept(site, 3)["models"]["home"]
        assert any(not np.array_equal(other[key], home[key]) for key in home)
    assert game.asked.count(COLLECT) == 1
    assert game.asked.index(COLLECT) < game.asked.index(ASSEMBLE) < game.asked.index(TEST)
    # every other answer holds nothing of a personal model
    for task, answers in game.answers.items():
        names = {name.partition("/")[0] for answer in answers.values() for name in answer.arrays}
        assert ("collected" in names) == (task == COLLECT) and "personal" not in names


def test_the_global_model_answers_where_none_came(inside):
    game = inside(rounds=1)

    def refuse(task, site, answer):
        return answer.failed("it may not leave") if (task, site) == (COLLECT, "north") else answer

    game.finish(change=refuse)
    states = models_of(game)
    assert_equal(states["north"], states["global"])
    said = "site 'north' sent no personal model, and the global one answers in its place: it may not leave"
    assert said in game.warnings
    assert_equal(states["east"], collected(game, "east"))


def test_a_site_may_keep_its_personal_model(inside, tmp_path):
    game = inside(rounds=1)
    game.finish()
    message = game.answers[COLLECT]["east"]
    request = Request(COLLECT, "run", 1)
    assert Gate.of(game.study, Site(data="d", state_dir=str(tmp_path))).refusal(request, message) is None
    kinds = ["weights", "batchnorm", "selector"]
    gate = Gate.of(game.study, Site(data="d", state_dir=str(tmp_path), may_leave=kinds))
    assert "not personal_model" in gate.refusal(request, message)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ({"name": "fedavg", "parts": ["fedsm"]}, "or an algorithm that keeps a personal model at each site"),
        ({"name": "ditto", "parts": ["ditto", "apfl", "fedsm"]}, "one algorithm with a personal model"),
        ({"name": "ditto", "parts": ["ditto", "fedsm"], "mixing": "softpull"}, "leave mixing out"),
        ({"name": "ditto", "parts": ["ditto", "fedsm"], "selector": {"labels": "best_model"}}, "extra_rounds"),
        ({"name": "finetuning", "parts": ["fedsm"], "mixing": "softpull"}, "or with mixing: shared"),
        ({"name": "finetuning", "parts": ["fedsm"], "selector": {"labels": "best_model"}}, "choose mixing: soft"),
        ({"name": "finetuning", "parts": ["fedsm"], "stays": "batchnorm"}, "stays must be nothing"),
        ({"name": "perfedavg", "parts": ["fedsm"], "extra_rounds": 2}, "extra_rounds must be 0 with meta-steps"),
        ({"name": "perfedavg", "parts": ["ditto", "fedsm"]}, "a meta-step needs one model of all sites"),
    ],
)
def test_what_does_not_go_together_is_refused(play, algorithm, sentence):
    with pytest.raises(ConfigError, match=sentence):
        play(**algorithm)


# --- those that come from a shared model: of fine-tuning and of Per-FedAvg

FROM_SHARED = {
    "finetuning": {"rounds": 2, "extra_rounds": 2, "training": {"optimizer": "adam", "batch_size": 2}},
    "perfedavg": {"rounds": 4, "training": SGD | {"local_epochs": 3}, "perfedavg": {"alpha": 0.2, "deployed_steps": 2}},
}


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("finetuning", 1),
        pytest.param("finetuning", 3, marks=pytest.mark.slow),
        pytest.param("finetuning", 4, marks=pytest.mark.slow),
        pytest.param("perfedavg", 2, marks=pytest.mark.slow),
    ],
)
def test_its_models_are_fedavgs_and_the_algorithms(play, name, best):
    options = FROM_SHARED[name] | {"network": DROPPING}
    game = play(folder="inside", **options | find_method_algorithm(f"fedsm-{name}"))
    alone = play(folder="alone", **options, name=name)
    fedavg = play(folder="fedavg", rounds=4, training=options["training"], network=DROPPING)
    for one in (game, alone, fedavg):
        one.finish(change=best_at(best))
        assert one.server.reported.round == best and one.server.finished_rounds == 4
    states = models_of(game)
    assert_equal(states["global"], fedavg.server.best_parts["model"].common)
    for site in SITES:
        tested = torch.load(alone.folder(site) / "supermodel" / "weights" / f"{site}.pt", weights_only=True)
        floats = {key: value for key, value in tested.items() if value.is_floating_point()}
        assert_equal(states[site], floats)
        # before its extra rounds fine-tuning has one model
        is_shared = all(np.array_equal(states["global"][key], value) for key, value in floats.items())
        assert is_shared == (name == "finetuning" and best == 1)
