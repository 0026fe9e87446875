import numpy as np
import pytest
import torch

from silofl.errors import AggregationError, ConfigError
from silofl.federation.message import Message, check_super_score
from silofl.federation.super_rounds import SuperRounds
from silofl.inference.directory import read
from silofl.models.members import of_role, role_of

INSTANCE = {"normalization": "instance"}


def fedsm(play, **options):
    return play(**{"name": "fedsm", "model": INSTANCE, "rounds": 2, **options})


def test_three_models_travel_and_the_selector_is_told_the_sites_by_name(play):
    game = fedsm(play)
    game.round()
    assert {role_of(name) for name in game.answers["east"].arrays} == {"global", "personal", "selector"}
    task = game.server.train_task("west")
    assert task.meta["outputs"] == ["east", "north", "west"]
    assert {role_of(name) for name in task.arrays} == {"global", "personal", "selector"}


def test_the_global_model_is_the_one_that_fedavg_trains(play):
    ours, theirs = fedsm(play), play(folder="other", name="fedavg", model=INSTANCE)
    for game in (ours, theirs):
        game.round()
        game.round()
    mine, other = of_role("global", ours.server.models["east"]), theirs.server.models["east"]
    assert mine.keys() == other.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], other[name])


def test_the_personalised_models_are_those_that_softpull_alone_trains(play):
    ours, theirs = fedsm(play), play(folder="other", name="softpull", model=INSTANCE)
    for game in (ours, theirs):
        game.round()
        game.round()
    for site in ours.sites:
        mine, other = of_role("personal", ours.server.models[site]), theirs.server.models[site]
        for name in mine:
            np.testing.assert_array_equal(mine[name], other[name])


def test_lambda_of_one_over_k_is_fedavg_with_uniform_weights(play):
    pulled = play(name="softpull", self_weight=1 / 3, model=INSTANCE)
    shared = play(folder="other", name="fedavg", weights="uniform", model=INSTANCE)
    for game in (pulled, shared):
        game.round()
        game.round()
    for site in pulled.sites:
        for name, array in pulled.server.models[site].items():
            np.testing.assert_allclose(array, shared.server.models[site][name], rtol=1e-6)


def test_lambda_of_one_is_local_training_exactly(play):
    pulled, alone = play(name="softpull", self_weight=1.0), play(folder="other", name="local")
    for game in (pulled, alone):
        for _ in range(3):
            game.round()
    for site in pulled.sites:
        start = [
            game.sites[site]._start(game.server.evaluation_task(site, 3), 3).members.state() for game in (pulled, alone)
        ]
        assert all(torch.equal(start[0][name], start[1][name]) for name in start[0])


def test_a_site_that_lost_its_own_model_says_so_and_gets_it_back_the_round_after(play):
    game = play(name="softpull", self_weight=1.0)
    game.round()
    for path in game.sites["east"]._folder("run").joinpath("rounds").iterdir():
        path.unlink()
    task = game.server.train_task("east")
    assert task.arrays == {} and task.meta["holds"] == 1
    answer = game.sites["east"].answer("train", task)
    assert "must hold its own model of round 1" in answer.meta["error"]
    game.round(absent=("east",))
    assert game.server.train_task("east").arrays.keys() == game.server.models["east"].keys()


def test_an_absent_site_gets_its_own_personalised_model_back(play):
    game = fedsm(play, rounds=3)
    game.round()
    before = of_role("personal", game.server.models["north"])
    record = game.round(absent=("north",))
    after = game.server.models["north"]
    assert all(before[name] is array for name, array in of_role("personal", after).items())
    assert all(
        array is game.server.models["east"][f"global/{name}"] for name, array in of_role("global", after).items()
    )
    # 0.7 of the own model, 0.3 of the only other site that answered
    assert record.weights["east"] == pytest.approx({"east": 0.7, "west": 0.3})
    game.round()
    assert game.server.ledger[-1].missed == []


def test_lambda_is_at_least_one_over_the_sites_that_answered(play):
    game = play(name="softpull", self_weight=0.4)
    record = game.round(absent=("north",))
    assert record.weights["east"] == {"east": 0.5, "west": 0.5}


def test_lambda_below_one_over_k_is_refused(play):
    with pytest.raises(ConfigError, match="self_weight must be at least 1/3 for 3 sites, not 0.2"):
        play(name="softpull", self_weight=0.2)


@pytest.mark.parametrize("sites", [("east",), ("east", "west")])
def test_one_site_and_two_sites_work(play, sites):
    game = fedsm(play, sites=sites).all_rounds()
    end, tests = game.together()
    assert set(tests) == set(sites)
    assert set(end.contents().models) == {"global", *sites}


def test_a_selector_keeps_what_it_knows_of_the_others_when_a_site_joins(play):
    game = fedsm(play, sites=("east", "west"))
    game.round()
    before = game.server.selector
    game.server.join("north")
    after = game.server.selector
    assert after.outputs == ("east", "west", "north")
    head = "network.head.weight"
    np.testing.assert_array_equal(after.parameters[head][:2], before.parameters[head])
    assert sorted(game.server.models) == ["east", "north", "west"]
    assert game.server.train_task("north").meta["outputs"] == ["east", "west", "north"]


@pytest.mark.parametrize("mode", ["gradients", "local_steps", "moments"])
def test_a_run_that_is_taken_up_from_its_checkpoint_goes_on_the_same(play, mode):
    straight, broken = fedsm(play, selector=mode, rounds=3), fedsm(play, folder="other", selector=mode, rounds=3)
    straight.round()
    straight.round()
    broken.round()
    broken.server = type(broken.server).restore(broken.study, broken.server.state())
    broken.round()
    for name, array in straight.server.selector.parameters.items():
        np.testing.assert_array_equal(array, broken.server.selector.parameters[name])
    for name, array in straight.server.models["west"].items():
        np.testing.assert_array_equal(array, broken.server.models["west"][name])


def test_the_gradients_selector_takes_the_step_of_adam_on_the_pooled_gradient(play):
    game = fedsm(play)
    before = game.server.selector.parameters
    game.round()
    answers = {site: of_role("selector", answer.arrays) for site, answer in game.answers.items()}
    # 5, 4 and 3 training images
    for name, array in before.items():
        mean = sum(answers[site][name].astype(np.float64) * n for site, n in (("east", 5), ("north", 4), ("west", 3)))
        # Adam's first step: lr * g / (|g| + eps)
        step = 1e-3 * (mean / 12) / (np.abs(mean / 12) + 1e-8)
        np.testing.assert_allclose(game.server.selector.parameters[name], array - step, rtol=1e-3, atol=2e-5)


def test_the_threshold_comes_from_all_sites_counts_and_the_answers_are_those_of_the_stored_super_model(play):
    game = fedsm(play, rounds=3).all_rounds()
    end, tests = game.together()
    assert end.threshold in end.thresholds
    for site, test in tests.items():
        assert sum(test["choices"].values()) == 2
        assert set(test["models"]) == {"global", "east", "north", "west", "ensemble", "super"}
        kept = read(game.sites[site]._folder("run") / "supermodel")
        assert kept.threshold == end.threshold
        assert kept.models.keys() == {"global", "east", "north", "west"}
        row = dict(zip(end.thresholds, test["by_threshold"], strict=True))[end.threshold]
        assert row[0] / row[1] == pytest.approx(test["value"])


def test_all_models_travel_once(play):
    game = fedsm(play).all_rounds()
    end, _ = game.together()
    assert end.holders == {"east", "north", "west"}
    assert end.task("east").arrays == {}


def test_the_extra_selector_learns_which_model_is_best_after_the_others_are_done(play):
    game = fedsm(play, selector_labels="best_model", extra_rounds=2).all_rounds()
    assert {role_of(name) for name in game.answers["east"].arrays} == {"global", "personal"}
    models = game.server.models
    end, tests = game.together()
    assert game.server.finished_rounds == 4 and game.server.models is models
    assert game.server.selector.outputs == ("global", "east", "north", "west")
    assert end.contents().threshold is None
    assert all(test["by_threshold"] == [] for test in tests.values())


def test_a_site_whose_counts_do_not_fit_has_no_say_in_the_threshold_and_the_others_have(play):
    game = fedsm(play)
    game.round()
    end = SuperRounds(game.server)
    best_at_half = [[0.9 if threshold <= 0.5 else 0.1, 1] for threshold in end.thresholds]
    answers = {"east": best_at_half, "north": [[1.0, 2]], "west": "nothing"}
    end.note_assembled({site: Message(meta={"by_threshold": sums}) for site, sums in answers.items()})
    assert end.threshold == 0.5 and set(end.refused) == {"north", "west"}
    assert end.holders == {"east", "north", "west"}


def test_a_threshold_that_the_study_sets_is_not_tuned(play):
    game = fedsm(play, threshold=0.25)
    game.round()
    end = SuperRounds(game.server)
    end.note_assembled({"east": Message(meta={"by_threshold": [[1.0, 1]] * len(end.thresholds)})})
    assert end.threshold == 0.25


def test_a_test_of_a_super_model_that_lacks_a_part_is_refused():
    score = {"value": 0.5, "num_cases": 1, "num_excluded": 0, "models": {}, "choices": {}, "by_threshold": []}
    with pytest.raises(AggregationError, match="the test of site 'east': selector must be given; it is missing"):
        check_super_score("east", {"metrics": {"test": score}}, 0)
    whole = score | {"selector": {"cases": {}, "slices": {}}}
    assert check_super_score("east", {"metrics": {"test": whole}}, 0) == whole


def test_fine_tuning_goes_on_alone_from_the_shared_model(play):
    game = play(name="finetuning", rounds=1, extra_rounds=1)
    game.round()
    assert game.server.models["east"] is game.server.models["west"]
    record = game.round()
    assert record.weights["east"] == {"east": 1.0, "north": 0.0, "west": 0.0}
    name = "network.final_conv.weight"
    assert not np.array_equal(game.server.models["east"][name], game.server.models["west"][name])
