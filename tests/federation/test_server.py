import numpy as np
import pytest
import torch

from silofl.errors import AggregationError
from silofl.federation.message import Message
from silofl.federation.server import ServerRounds
from silofl.files import load_tensors, save_tensors
from silofl.models.parts import AMPLITUDE


def models_equal(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_all_sites_start_from_the_same_model_drawn_from_the_seed(make_study):
    first, again, other = (ServerRounds.start(make_study(seed=seed), "run", ["a", "b"]) for seed in (1, 1, 2))
    assert first.models["a"] is first.models["b"]
    assert models_equal(first.models["a"], again.models["a"])
    assert not models_equal(first.models["a"], other.models["a"])


def test_fedavg_is_the_mean_of_what_the_sites_trained_by_examples(play):
    game = play(sites=("east", "west"))
    start = game.server.models["east"]
    game.round()
    name = next(iter(start))
    diffs = {site: answer.arrays[name] for site, answer in game.answers.items()}
    # 5 and 3 training images
    expected = start[name] + (5 * diffs["east"] + 3 * diffs["west"]) / 8
    np.testing.assert_allclose(game.server.models["east"][name], expected, rtol=1e-5, atol=1e-7)
    assert game.server.ledger[0].weights["west"] == {"east": 0.625, "west": 0.375}


def test_one_site_alone_goes_on_with_its_own_model(play):
    game = play(sites=("east",))
    start = game.server.models["east"]
    game.round()
    for name, value in game.server.models["east"].items():
        np.testing.assert_allclose(value, start[name] + game.answers["east"].arrays[name], rtol=1e-6, atol=1e-7)


def test_the_order_of_answers_does_not_matter(play):
    games = [play(folder=folder) for folder in ("one", "two")]
    games[1].sites = dict(reversed(games[1].sites.items()))
    for game in games:
        game.round()
    assert models_equal(games[0].server.models["east"], games[1].server.models["east"])


def test_a_round_without_a_site_renormalises_over_the_others_and_the_site_comes_back_to_the_shared_model(play):
    game = play()
    record = game.round(absent=("north",))
    assert record.missed == ["north"]
    assert record.weights["east"] == {"east": 5 / 8, "west": 3 / 8}
    assert game.server.models["north"] is game.server.models["east"]
    assert game.round().answered == ["east", "north", "west"]


def test_a_name_that_a_site_withholds_is_mixed_over_the_others_and_said(play):
    game = play(sites=("east", "west"))
    start = game.server.models["east"]
    name, other = list(start)[:2]

    def withhold(site, answer):
        arrays = {key: value for key, value in answer.arrays.items() if site != "west" or key != name}
        return Message(arrays, answer.meta)

    record = game.round(change=withhold)
    assert record.withheld == {"west": [name]}
    np.testing.assert_array_equal(game.server.models["west"][name], start[name] + game.answers["east"].arrays[name])
    mixed = start[other] + (5 * game.answers["east"].arrays[other] + 3 * game.answers["west"].arrays[other]) / 8
    np.testing.assert_allclose(game.server.models["west"][other], mixed, rtol=1e-5, atol=1e-7)


def test_a_name_that_nobody_sends_stays_as_it_was(play):
    game = play(sites=("east", "west"))
    start = game.server.models["east"]
    name = next(iter(start))
    game.round(change=lambda site, a: Message({k: v for k, v in a.arrays.items() if k != name}, a.meta))
    np.testing.assert_array_equal(game.server.models["east"][name], start[name])


def test_half_a_server_step_goes_half_the_way_on_parameters_only(play):
    whole, half = play(folder="one"), play(folder="two", server_lr=0.5)
    start = whole.server.models["east"]
    whole.round()
    half.round()
    for name, full in whole.server.models["east"].items():
        expected = full if "running" in name else start[name] + 0.5 * (full - start[name])
        np.testing.assert_allclose(half.server.models["east"][name], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a: a | {"extra": np.zeros(1)}, "site 'east' must send only arrays that it was sent; 'extra'"),
        (lambda a: {k: np.zeros(7) for k in a}, r"site 'east' must send .* with shape .* not \(7,\)"),
        (lambda a: {k: np.full_like(v, np.nan) for k, v in a.items()}, "site 'east' must send finite numbers"),
    ],
)
def test_an_update_that_does_not_fit_is_refused_with_site_and_key(play, spoil, message):
    game = play(sites=("east",))
    sent = game.server.train_task("east")
    answer = game.sites["east"].answer("train", sent)
    with pytest.raises(AggregationError, match=message):
        game.server.accept("east", sent, Message(spoil(answer.arrays), answer.meta))


@pytest.mark.parametrize("count", [0, -3, None, "many"])
def test_a_site_without_a_number_of_examples_is_refused(play, count):
    game = play(sites=("east",))
    sent = game.server.train_task("east")
    answer = game.sites["east"].answer("train", sent)
    with pytest.raises(AggregationError, match="at least 1 training example"):
        game.server.accept("east", sent, Message(answer.arrays, answer.meta | {"num_examples": count}))


@pytest.mark.parametrize(("name", "value"), [("loss", float("nan")), ("loss", None), ("drift", float("inf"))])
def test_a_metric_that_cannot_be_written_down_is_refused(play, name, value):
    game = play(sites=("east",))
    sent = game.server.train_task("east")
    answer = game.sites["east"].answer("train", sent)
    metrics = answer.meta["metrics"] | {name: value}
    with pytest.raises(AggregationError, match=f"site 'east' must send its {name} as a finite number"):
        game.server.accept("east", sent, Message(answer.arrays, answer.meta | {"metrics": metrics}))


def test_sites_with_images_of_different_sizes_cannot_share_an_amplitude(play):
    game = play(sites=("east", "west"), name="harmofl", preset="paper")
    sent = {site: game.server.train_task(site) for site in game.sites}
    answers = {site: game.sites[site].answer("train", sent[site]) for site in game.sites}
    game.server.accept("east", sent["east"], answers["east"])
    arrays = answers["west"].arrays | {AMPLITUDE: np.ones((1, 16, 9), np.float32)}
    with pytest.raises(AggregationError, match=r"site 'west' must have images of the other sites' size.*\(1, 16, 9\)"):
        game.server.accept("west", sent["west"], Message(arrays, answers["west"].meta))


def test_fedbn_sends_no_batchnorm_and_local_training_nothing(play):
    game = play(name="fedbn")
    game.round()
    assert game.answers["east"].arrays and not [n for n in game.answers["east"].arrays if ".adn.N." in n]
    local = play(folder="local", name="local")
    local.round()
    assert local.answers["east"].arrays == {}
    assert local.server.ledger[0].metrics["east"]["loss"] > 0


def test_the_amplitude_is_the_plain_mean_sent_once_and_then_fixed(play):
    game = play(name="harmofl", preset="paper")
    game.round()
    amplitudes = [answer.arrays[AMPLITUDE] for answer in game.answers.values()]
    np.testing.assert_allclose(game.server.amplitude, np.mean(amplitudes, axis=0), rtol=1e-6)
    assert all(AMPLITUDE in game.server.train_task(site).arrays for site in game.sites)
    game.round()
    assert not any(AMPLITUDE in answer.arrays for answer in game.answers.values())
    assert not any(AMPLITUDE in game.server.train_task(site).arrays for site in game.sites)


def test_a_site_that_missed_the_amplitude_gets_it_when_it_comes_back(play):
    game = play(name="harmofl", preset="paper")
    game.round()
    game.round(absent=("north",))
    assert AMPLITUDE in game.server.train_task("north").arrays
    assert AMPLITUDE not in game.server.train_task("east").arrays
    game.round()
    assert AMPLITUDE not in game.server.train_task("north").arrays


def test_the_first_rounds_model_is_tested_with_the_amplitude_that_came_after_it(play):
    game = play(name="harmofl", preset="paper", rounds=2)
    game.round()
    game.round()
    game.server.best_round, game.server.best_models = 1, game.server.models
    assert AMPLITUDE in game.server.evaluation_task("east", 1).arrays
    assert AMPLITUDE not in game.server.evaluation_task("east", 2).arrays


def test_a_first_round_without_its_amplitude_is_refused(play):
    game = play(sites=("east",), name="harmofl", preset="paper")
    sent = game.server.train_task("east")
    answer = game.sites["east"].answer("train", sent)
    arrays = {name: value for name, value in answer.arrays.items() if name != AMPLITUDE}
    with pytest.raises(AggregationError, match="site 'east' must send an amplitude"):
        game.server.accept("east", sent, Message(arrays, answer.meta))


def test_the_best_round_is_the_one_that_validates_best_and_its_model_is_kept(play):
    server = play(rounds=3).all_rounds().server
    ranks = [record.rank for record in server.ledger]
    assert server.best_round == 1 + ranks.index(max(ranks))
    assert server.reported_round() == server.best_round


def test_a_round_that_more_sites_validated_wins_over_a_higher_mean_of_fewer(play):
    game = play()
    game.round()
    game.server.note_validation({site: {"value": 0.3, "num_cases": 2, "num_excluded": 0} for site in game.sites})
    game.round()
    game.server.note_validation({"east": {"value": 0.9, "num_cases": 2, "num_excluded": 0}})
    assert game.server.best_round == 1


def test_without_validation_the_last_round_is_reported(play):
    game = play()
    game.round()
    game.round(change=lambda site, a: Message(a.arrays, a.meta | {"metrics": a.meta["metrics"] | {"validation": None}}))
    assert game.server.best_round is None and game.server.reported_round() == 2
    assert game.server.reported_models() is game.server.models


def test_a_checkpoint_brings_back_the_whole_run(play, tmp_path):
    game = play(name="harmofl")
    game.round()
    game.round()
    save_tensors(tmp_path / "checkpoint.pt", game.server.state())
    back = ServerRounds.restore(game.study, load_tensors(tmp_path / "checkpoint.pt"))
    assert models_equal(back.models["west"], game.server.models["west"])
    assert back.models["east"].keys() == back.best_models["east"].keys()
    assert (back.best_round, back.informed, back.run) == (1, {"east": 2, "north": 2, "west": 2}, "run")
    assert [record.as_dict() for record in back.ledger] == [record.as_dict() for record in game.server.ledger]
    np.testing.assert_array_equal(back.amplitude, game.server.amplitude)


def test_a_checkpoint_stores_a_shared_model_once(play, tmp_path):
    game = play()
    game.round()
    save_tensors(tmp_path / "three.pt", game.server.state())
    one_model = sum(array.nbytes for array in game.server.models["east"].values())
    overhead = 2000 * len(game.server.models["east"])
    assert (tmp_path / "three.pt").stat().st_size < one_model + overhead


def test_the_same_study_and_seed_give_the_same_weights_and_another_seed_others(play):
    games = [play(folder=str(i), seed=seed, name="harmofl") for i, seed in enumerate((0, 0, 1))]
    for game in games:
        game.round()
        game.round()
    first, again, other = (game.server.models["east"] for game in games)
    assert models_equal(first, again)
    assert not models_equal(first, other)


def test_training_lowers_the_loss_of_every_algorithm(play):
    for name in ("fedavg", "fedbn", "harmofl", "fedprox", "local"):
        game = play(folder=name, name=name, rounds=6)
        for _ in range(6):
            game.round()
        losses = [np.mean([m["loss"] for m in record.metrics.values()]) for record in game.server.ledger]
        assert losses[-1] < losses[0], name
    assert torch.get_num_threads() == 1
