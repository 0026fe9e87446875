import json

import numpy as np
import pytest

from silofl.algorithms.adafed import adafed_weights, distances
from silofl.errors import ConfigError
from silofl.federation.ledger import Round
from silofl.federation.message import Message
from silofl.federation.server import ServerRounds
from silofl.federation.similarity import Similarity, statistics_arrays
from silofl.models import build_plain_model


@pytest.fixture
def study(make_study):
    return make_study(rounds=4, name="adafed")


def random_statistics(similarity, seed):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=size), rng.uniform(1, 2, size)) for size in similarity.sizes]


def answer_of(similarity, seed):
    return Message(statistics_arrays(random_statistics(similarity, seed)))


def filled(study, sites):
    similarity = Similarity.start(study)
    for seed, site in enumerate(sites):
        similarity.accept(site, answer_of(similarity, seed))
    return similarity


def test_weights_are_adafeds_of_the_sites_that_are_present(study):
    similarity = filled(study, "abc")
    statistics = [random_statistics(similarity, seed) for seed in range(3)]
    np.testing.assert_allclose(similarity.weights("abc"), adafed_weights(distances(statistics), 0.5))
    # lambda stays on the diagonal, and of the two that are left each has the whole rest of the other's row
    np.testing.assert_allclose(similarity.weights("ac"), [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_array_equal(similarity.weights("b"), [[1]])


def test_a_site_that_shares_nothing_gets_the_uniform_row_and_changes_no_other(study):
    similarity = filled(study, "abc")
    alone = similarity.weights("abc")
    similarity.accept("d", Message(meta={"withheld": "fewer than 20 training examples"}))
    weights = similarity.weights("abcd")
    np.testing.assert_array_equal(weights[:3], np.column_stack([alone, np.zeros(3)]))
    np.testing.assert_array_equal(weights[3], [0.25] * 4)
    (note,) = similarity.compute("abcd", 2, {})
    assert "'d' shares no statistics (fewer than 20 training examples): it listens to all sites equally" in note


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_statistics_that_are_not_finite_are_refused_by_name(study, value):
    similarity = filled(study, "ab")
    arrays = statistics_arrays(random_statistics(similarity, 5))
    arrays["statistics/1/mean"][0] = value
    similarity.accept("c", Message(arrays))
    assert "'statistics/1/mean' holds NaN or infinity" in similarity.without["c"]
    np.testing.assert_array_equal(similarity.weights("abc")[:2, 2], [0, 0])


def test_negative_variances_and_other_layers_are_refused(study):
    similarity = Similarity.start(study)
    arrays = statistics_arrays(random_statistics(similarity, 0))
    similarity.accept("a", Message(arrays | {"statistics/0/variance": -arrays["statistics/0/variance"]}))
    assert "variances of at least 0" in similarity.without["a"]
    similarity.accept("b", Message({name: a for name, a in arrays.items() if name != "statistics/0/mean"}))
    assert "must send the statistics of every layer" in similarity.without["b"]
    similarity.accept("c", Message(arrays | {"statistics/0/mean": np.zeros(1)}))
    assert "not (1,)" in similarity.without["c"]


def test_all_sites_are_asked_once_and_those_without_an_answer_again(study):
    similarity = Similarity.start(study)
    # of 4 rounds, half are shared
    assert similarity.sites_to_ask(["a", "b"], 1) == []
    assert similarity.sites_to_ask(["a", "b"], 2) == ["a", "b"]
    similarity.accept("a", answer_of(similarity, 0))
    (note,) = similarity.compute(["a", "b"], 2, {"b": "no answer in time"})
    assert "site 'b' shares no statistics (no answer in time)" in note
    assert similarity.sites_to_ask(["a", "b"], 3) == ["b"]
    similarity.accept("b", Message(meta={"withheld": "policy"}))
    assert similarity.sites_to_ask(["a", "b"], 3) == []


def test_a_refresh_asks_all_sites_anew(make_study):
    similarity = filled(make_study(rounds=9, name="adafed", statistics_rounds=2, refresh_every=3), "ab")
    similarity.compute("ab", 2, {})
    assert [number for number in range(9) if similarity.sites_to_ask("ab", number)] == [5, 6, 7, 8]
    similarity.compute("ab", 5, {})
    assert [number for number in range(5, 9) if similarity.sites_to_ask("ab", number)] == [8]


def test_the_history_is_plain_and_says_who_was_compared(study):
    similarity = filled(study, "ab")
    similarity.accept("c", Message(meta={"withheld": "policy"}))
    similarity.compute("abc", 2, {})
    (record,) = json.loads(json.dumps(similarity.history))
    assert (record["round"], record["source"], record["sites"]) == (2, "running", ["a", "b", "c"])
    assert record["without"] == {"c": "policy"}
    assert record["distances"][2] == [None, None, None] and record["distances"][0][1] > 0
    np.testing.assert_allclose(np.sum(record["weights"], axis=1), 1)


def test_a_checkpoint_brings_back_the_same_weights(study):
    similarity = filled(study, "abc")
    similarity.compute("abc", 2, {})
    again = Similarity.restore(study, similarity.state())
    np.testing.assert_array_equal(again.weights("abc"), similarity.weights("abc"))
    assert again.history == similarity.history


def test_a_network_without_batchnorm_is_refused_before_any_round(make_study):
    with pytest.raises(ConfigError, match="BatchNorm"):
        Similarity.start(make_study(rounds=4, name="adafed", model={"normalization": "group"}))


# --- whole rounds


def test_f_adafed_is_fedbn_until_the_statistics_are_taken(play):
    games = [play(folder=name, rounds=4, name=name) for name in ("adafed", "fedbn")]
    for _ in range(2):
        for game in games:
            game.round()
    ours, theirs = (game.server.models["east"] for game in games)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    record = games[0].round()
    assert [record.weights[site][site] for site in record.answered] == [0.5] * 3
    assert games[0].server.models["east"] is not games[0].server.models["west"]
    assert games[0].server.similarity.history[0]["round"] == 2


def test_the_running_statistics_that_leave_are_the_sites_own(play):
    game = play(rounds=2, name="adafed")
    game.round()
    tasks = game.server.statistics_tasks()
    answer = game.sites["east"].answer("statistics", tasks["east"])
    state = game.sites["east"]._state("run").load(1)["home"]
    names = [name for name in state if name.endswith("running_mean")]
    sent = [answer.arrays[f"statistics/{layer}/mean"] for layer in range(len(names))]
    for array, name in zip(sent, names, strict=True):
        np.testing.assert_array_equal(array, state[name].double().numpy())


def test_a_site_that_has_not_trained_yet_is_asked_again(play):
    game = play(rounds=4, name="adafed", statistics_rounds=1)
    game.round(absent=("west",))
    assert "must have trained a round before it has statistics" in game.round().notes[0]
    record = game.round()
    assert record.notes == [] and record.weights["west"]["west"] == 0.5


def test_a_site_with_few_examples_shares_nothing_and_the_ledger_says_so(play):
    # east has 5 training images, north 4, west 3
    game = play(rounds=2, name="adafed", min_examples=4)
    game.round()
    record = game.round()
    assert ["west" in note and "fewer than 4 training examples" in note for note in record.notes] == [True]
    assert record.weights["west"] == {"east": 1 / 3, "north": 1 / 3, "west": 1 / 3}
    assert record.weights["east"] == {"east": 0.5, "north": 0.5, "west": 0.0}


@pytest.fixture
def pretrained(make_study):
    study = make_study(rounds=2, seed=7)
    state = build_plain_model(study, 7).state_dict()
    arrays = {name: value.numpy().copy() for name, value in state.items() if value.is_floating_point()}
    return arrays | {name: arrays[name] + 0.25 for name in arrays if name.endswith("running_mean")}


def test_a_pretrained_model_compares_sites_before_the_first_round_and_everybody_starts_from_it(play, pretrained):
    options = {"rounds": 2, "name": "adafed", "preset": "paper", "model": {"pretrained": "f.pt"}}
    game = play(pretrained=pretrained, **options)
    name = next(iter(game.server.models["east"]))
    np.testing.assert_array_equal(game.server.models["east"][name], pretrained[name])
    record = game.round()
    assert (
        game.server.similarity.history[0] | {"round": 0, "source": "pretrained", "layers": "all"}
        == (game.server.similarity.history[0])
    )
    assert record.weights["east"]["east"] == 0.5
    means = [n for n in pretrained if n.endswith("running_mean")]
    sent = game.server.train_task("east").arrays
    assert not set(means) & sent.keys(), "the pretrained BatchNorm travels once"


def test_the_pretrained_batchnorm_is_where_a_site_begins(play, pretrained):
    game = play(pretrained=pretrained, rounds=2, name="adafed", preset="paper", model={"pretrained": "f.pt"})
    task = game.server.train_task("east")
    start = game.sites["east"]._start(task, 0)
    for name, array in start.members.read(pretrained).items():
        np.testing.assert_array_equal(array, pretrained[name])


def test_statistics_of_a_pretrained_model_do_not_depend_on_the_batch_size(play, pretrained):
    def distances_with(size):
        study = {"rounds": 2, "name": "adafed", "preset": "reference", "model": {"pretrained": "f.pt"}}
        game = play(folder=f"size{size}", pretrained=pretrained, **study)
        for site in game.sites.values():
            site.study = site.study.model_copy(
                update={"training": site.study.training.model_copy(update={"batch_size": size})}
            )
        game.share_statistics(Round(1), list(game.sites))
        return game.server.similarity.distances(sorted(game.sites))

    # batches of 4: the site of 5 images ends with one of a single image
    np.testing.assert_allclose(distances_with(4), distances_with(5), rtol=1e-5)


def test_a_run_that_goes_on_has_the_same_weights_and_models(play, make_study):
    study = make_study(rounds=3, name="adafed", statistics_rounds=1)
    game = play(study=study)
    game.round()
    game.round()
    state = game.server.state()
    game.server = ServerRounds.restore(study, state)
    again = game.round()
    whole = play(study=study, folder="whole")
    for _ in range(3):
        record = whole.round()
    assert again.weights == record.weights
    for site, arrays in whole.server.models.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(game.server.models[site][name], array)
