"""The course of a study over a network of sites in this process."""

import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from silofl.errors import AggregationError
from silofl.federation.course import Answers, Course, separate_failures
from silofl.federation.server import ServerRounds
from silofl.models import build_plain_model
from silofl.models.names import write_arrays
from silofl.parts.task import Message
from silofl.schema import dump_record
from silofl.training.evaluation import evaluate

from ..conftest import UNET, assert_alike

CPU = torch.device("cpu")


def spoilt(wrong, spoil):
    """Return a change of one site's updates."""
    return lambda task, site, answer: spoil(answer) if (task, site) == ("train", wrong) else answer


def saying(**meta):
    return lambda answer: Message(answer.arrays, answer.meta | meta)


def measuring(**metrics):
    return lambda answer: Message(answer.arrays, answer.meta | {"metrics": answer.meta["metrics"] | metrics})


# --- who is asked what


def test_a_run_is_its_rounds_then_one_validation_and_one_test(play):
    game = play(rounds=2)
    tests = game.finish()
    assert game.asked == ["train", "train", "validate", "test"]
    assert tests.scores.keys() == {"east", "north", "west"} and tests.missing == {}
    assert game.server.finished_rounds == 2


def test_a_round_is_validated_with_the_task_of_the_next_one(play):
    game = play(rounds=3)
    assert game.round().validation == {}
    game.round()
    first, second = game.server.ledger
    assert first.validation.keys() == {"east", "north", "west"} and second.validation == {}
    assert game.answers["train"]["east"].meta["metrics"]["validation"] == dump_record(first.validation["east"])


def test_a_run_is_saved_after_every_round_and_after_the_last_validation(play):
    game, saved = play(rounds=2), []
    server = game.server
    Course(server, game.ask, lambda: saved.append((server.finished_rounds, bool(server.ledger[-1].validation)))).run()
    assert saved == [(1, False), (2, False), (2, True)]


def test_a_run_that_is_over_is_only_tested(play):
    game = play(rounds=1)
    first = game.finish()
    game.asked.clear()
    assert game.finish() == first
    assert game.asked == ["test"]


def test_a_run_that_is_ended_from_outside_keeps_its_last_whole_round(play):
    game = play(rounds=3)
    game.round()
    before = game.models("east")
    is_over = []

    def ask(task, messages):
        is_over.append(True)
        return game.ask(task, messages)

    assert Course(game.server, ask, is_aborted=lambda: bool(is_over)).run() is None
    assert game.server.finished_rounds == 1
    assert_alike(game.models("east"), before)


def test_a_round_that_is_ended_from_outside_asks_nobody_anything_more(play):
    game = play(name="fedsm", selector={"steps": 3}, model={"normalization": "instance"})
    asked = []

    def ask(task, messages):
        asked.append(task)
        return game.ask(task, messages)

    # Of the round's three exchanges the second one is the last.
    assert Course(game.server, ask, is_aborted=lambda: len(asked) == 2).run() is None
    assert asked == ["train", "selector"] and game.server.finished_rounds == 0


def test_who_listens_to_whom_is_computed_once_a_round(play, monkeypatch):
    game, roles, weights = play(), [], ServerRounds._weights

    def counted(server, role, *rest):
        roles.append(role)
        return weights(server, role, *rest)

    monkeypatch.setattr(ServerRounds, "_weights", counted)
    game.round()
    assert roles == ["model"]


@pytest.mark.parametrize(
    "options",
    [
        {"average_last": 0.9},
        {"name": "scaffold", "training": {"optimizer": "sgd", "momentum": 0.0}},
        {"name": "fedsm", "selector": {"learning": "moments"}, "model": {"normalization": "instance"}},
    ],
)
def test_what_all_sites_are_sent_is_in_memory_once(play, options):
    game = play(rounds=2, **options)
    game.finish()
    both = [(sent["east"].arrays, sent["west"].arrays) for sent in game.sent.values()]
    pairs = [(east[name], west[name]) for east, west in both for name in east.keys() & west.keys()]
    alike = [pair for pair in pairs if np.array_equal(*pair)]
    assert alike and all(first is second for first, second in alike)


def test_the_order_of_answers_does_not_matter(play):
    games = [play(folder=folder) for folder in ("one", "two")]
    ask = games[1].ask

    def ask_backwards(task, messages):
        answers = ask(task, messages)
        return replace(answers, given=dict(reversed(answers.given.items())))

    games[1].ask = ask_backwards
    for game in games:
        game.rounds(2)
    assert_alike(games[0].models("east"), games[1].models("east"))
    assert list(games[1].server.ledger[0].weights) == ["east", "north", "west"]


def test_the_same_study_and_seed_give_the_same_weights_and_another_seed_others(play):
    games = [play(folder=str(i), seed=seed, name="harmofl") for i, seed in enumerate((0, 0, 1))]
    for game in games:
        game.rounds(2)
    first, again, other = (game.models("east") for game in games)
    assert_alike(first, again)
    assert not any(np.array_equal(first[name], other[name]) for name in first if name.endswith("conv.weight"))


@pytest.mark.parametrize("name", ["fedavg", "harmofl", "fedprox"])
def test_training_lowers_the_loss_of_every_algorithm(play, name):
    game = play(name=name, rounds=6)
    game.rounds(6)
    losses = [np.mean([m["loss"] for m in record.metrics.values()]) for record in game.server.ledger]
    assert losses[-1] < losses[0]


# --- who is not there


def test_a_late_site_is_written_down_and_comes_back_to_the_shared_model(play):
    game = play()
    record = game.round(absent=("north",))
    assert record.late == record.missed == ["north"] and record.answered == ["east", "west"]
    # 5 and 3 training images
    assert record.weights["east"] == {"east": 5 / 8, "west": 3 / 8}
    assert game.round().answered == ["east", "north", "west"]
    assert_alike(game.sent["train"]["north"].arrays, game.sent["train"]["east"].arrays)


def test_a_site_that_cannot_do_its_task_is_written_down_with_the_reason(play):
    game = play()
    record = game.round(change=spoilt("west", lambda answer: answer.failed("no GPU")))
    assert record.failed == {"west": "no GPU"} and record.answered == ["east", "north"]
    assert record.late == [] and record.refused == {}


def test_bytes_count_both_ways_and_those_of_a_refused_answer_not(play):
    game = play(sites=("east", "west"))
    record = game.round(change=spoilt("west", saying(num_examples=0)))
    model = sum(array.nbytes for array in game.models("east").values())
    assert record.bytes_to == {"east": model, "west": model} and record.bytes_from == {"east": model}


def test_too_few_answers_end_the_run_with_every_sites_reason(play):
    game = play(federation={"min_sites": 2})
    with pytest.raises(AggregationError) as caught:
        game.round(absent=("north",), change=spoilt("west", lambda answer: answer.failed("no GPU")))
    assert str(caught.value) == (
        "round 1 must have answers of at least 2 sites, not 1: west: no GPU; north: no answer in time"
    )
    assert game.server.finished_rounds == 0


def test_a_site_that_is_late_with_the_test_is_missing_in_it(play):
    game = play(rounds=1)
    game.round()
    tests = game.finish(absent=("east",))
    assert tests.missing == {"east": "no answer in time"} and tests.scores.keys() == {"north", "west"}
    assert game.server.ledger[0].validation.keys() == {"north", "west"}
    said = "site 'east' did not validate the models of round 1: no answer in time"
    assert game.server.ledger[0].notes.count(said) == 1


def test_answers_are_settled_in_the_order_of_names_without_those_that_failed():
    given = {"b": Message(meta={"round": 1}), "c": Message(meta={"error": "no GPU"}), "a": Message()}
    assert separate_failures(given, ["e", "d"]) == Answers(
        {"a": Message(), "b": Message(meta={"round": 1})}, {"c": "no GPU"}, ["d", "e"]
    )
    assert list(separate_failures(given, []).given) == ["a", "b"]


@pytest.mark.parametrize(("value", "held"), [(2, {"a": 2}), ("2", {}), (True, {}), (-1, {}), (None, {}), (2.0, {})])
def test_a_site_that_failed_may_say_which_round_it_holds(value, held):
    given = {"a": Message(meta={"error": "state", "held": value}), "b": Message(meta={"held": 5})}
    assert separate_failures(given, []).held == held


def test_a_site_is_asked_once_more_for_the_state_that_it_lost_and_not_for_ever(play):
    game = play(name="harmofl", rounds=6)
    game.rounds(2)
    shutil.rmtree(game.folder("east") / "rounds")
    game.asked.clear()
    record = game.round(change=spoilt("east", lambda answer: answer.failed("no") | Message(meta={"held": 0})))
    assert game.asked == ["train", "train"] and record.failed == {"east": "no"} and record.notes == []
    # It still lacks the state, and is told so from the start.
    game.asked.clear()
    assert game.round().answered == ["east", "north", "west"] and game.asked == ["train"]
    assert "began the train of round 4 without its state of round 2, from none" in game.server.ledger[3].notes[0]
    assert "amplitude/mean" in game.sent["train"]["east"].arrays
    assert game.round().notes == [] and "amplitude/mean" not in game.sent["train"]["east"].arrays


def test_the_bytes_of_a_task_that_is_sent_twice_count_twice(play):
    game = play(name="fedbn")
    game.round()
    shutil.rmtree(game.folder("east") / "rounds")
    record = game.round()
    assert record.bytes_to["east"] == 2 * record.bytes_to["west"]


# --- what is refused


def test_the_drift_must_come_where_it_is_measured_and_there_alone(play):
    def without_drift(answer):
        metrics = {name: value for name, value in answer.meta["metrics"].items() if name != "drift"}
        return Message(answer.arrays, answer.meta | {"metrics": metrics})

    measured, plain = play(name="harmofl", training=DRIFT), play(folder="plain")
    refused = measured.round(change=spoilt("west", without_drift)).refused
    assert refused == {"west": "site 'west' must send its drift; it is missing from its answer"}
    assert measured.server.ledger[0].drift > 0
    record = plain.round()
    assert "drift" not in record.metrics["east"] and record.drift is None and record.refused == {}


DRIFT = {"measures_drift": True}


@pytest.mark.parametrize(
    ("options", "shared", "mixes"),
    [
        pytest.param({"name": "fedavg"}, True, True, id="fedavg"),
        pytest.param({"name": "local"}, False, False, id="local"),
        pytest.param({"name": "softpull"}, False, True, id="softpull"),
        pytest.param({"name": "ditto"}, True, True, id="ditto"),
    ],
)
def test_any_algorithm_measures_its_drift_where_the_study_asks(play, options, shared, mixes):
    record = play(**options, training=DRIFT, sites=("east", "west")).rounds(2)
    assert record.refused == {} and record.drift > 0 and record.metrics.keys() == {"east", "west"}
    # Only what begins from one model in each round has gradients at one place.
    assert (record.dissimilarity is not None) == shared and (record.distance is not None) == mixes
    plain = play(**options, sites=("east", "west"), folder="plain").rounds(2)
    assert (plain.drift, plain.dissimilarity, plain.distance) == (None, None, None)


def test_measuring_the_drift_changes_no_weight(play):
    games = [play(folder=folder, training=training) for folder, training in (("with", DRIFT), ("without", {}))]
    for game in games:
        game.rounds(2)
    first, second = (game.models("east") for game in games)
    assert all((first[name] == second[name]).all() for name in first)


def test_the_distance_of_shared_models_is_that_of_the_updates_from_their_mean(play):
    game = play(training=DRIFT, sites=("east", "west"))
    record = game.round()
    buffers = game.server.parts["model"].buffers
    changes = [
        np.concatenate(
            [a.ravel() for name, a in sorted(answer.arrays.items()) if name.partition("/")[2] not in buffers]
        )
        for answer in game.answers["train"].values()
    ]
    half = (changes[0].astype(float) - changes[1]) / 2
    np.testing.assert_allclose(record.distance, half @ half, rtol=1e-4)


def test_one_site_cannot_have_the_super_model_doubt_no_image(play):
    """Its answer counts, and its images' look does not."""
    wide = {"kinds": ["pictures"], "intensities": [{"measure": "mean", "low": -1e15, "high": 1e15}]}
    wide["voxels"] = {"least": [0.001] * 3, "most": [1000.0] * 3}
    game, honest = play(), play(folder="honest")
    records = [game.round(change=spoilt("west", saying(domain=wide))) for _ in range(2)]
    honest.round(absent=("west",))
    assert game.server.domain.intensities == honest.server.domain.intensities
    assert game.server.domain.voxels is None
    assert records[0].refused == {} and records[0].notes == game.warnings
    assert "the super model does not take what site 'west' says of its images' mean" in game.warnings[0]
    assert records[1].notes == []


@pytest.mark.parametrize(
    ("algorithm", "is_said"), [({"name": "fedavg"}, True), ({"name": "fedavg", "weights": "uniform"}, False)]
)
def test_a_site_that_outweighs_all_by_its_own_count_is_named_once(play, algorithm, is_said):
    game = play(**algorithm)
    records = [game.round(change=spoilt("west", saying(num_examples=10_000_000))) for _ in range(2)]
    said = [
        "site 'west' says that it has 2.22e+06 times as many training examples as the others' median, and counts by "
        "them: ask it, or choose algorithm: {weights: uniform}; `unlike` of the ledger has all rounds in which it is so"
    ]
    assert records[0].notes == game.warnings == said * is_said and records[1].notes == []
    # 10,000,000 of (5 + 4) / 2
    assert [record.unlike for record in records] == [{"west": {"examples": 2.22e6}} if is_said else None] * 2


def test_a_site_cannot_have_the_super_model_take_other_images_than_the_study_states(play, make_study):
    study = make_study()
    game = play(study=study.model_copy(update={"data": study.data.model_copy(update={"modality": "MR"})}))
    refused = game.round(change=spoilt("west", saying(domain={"modalities": ["CT", "MR"]}))).refused
    assert refused == {"west": "site 'west' must have MR images, as data.modality says, not CT"}
    refused = game.round(change=spoilt("west", saying(domain={"contrasts": {"of Ann": ["MR"]}}))).refused
    assert refused == {"west": "site 'west' must name contrasts of the study, not 'of Ann'"}


def test_a_refused_update_changes_nothing_and_its_site_is_asked_again(play):
    spoiled, absent = play(), play(folder="absent")
    record = spoiled.round(change=spoilt("west", saying(num_examples=0)))
    assert spoiled.warnings == [record.refused["west"]]
    absent.round(absent=("west",))
    assert_alike(spoiled.models("east"), absent.models("east"))
    assert spoiled.round().answered == ["east", "north", "west"]


def test_a_test_that_is_no_score_is_missing_with_the_reason(play):
    game = play(rounds=1)

    def change(task, site, answer):
        score = {"value": "good", "num_cases": 1, "num_excluded": 0}
        spoilt = answer.meta | {"metrics": {"test": score}}
        return Message(meta=spoilt) if (task, site) == ("test", "east") else answer

    tests = game.finish(change=change)
    sentence = "the answer of site 'east': metrics.test.value must be a valid number, not 'good'"
    assert tests.missing == {"east": sentence}
    assert tests.scores.keys() == {"north", "west"}


# --- parts' own exchanges


def test_a_parts_own_exchanges_come_before_and_after_a_round_and_at_the_end(play):
    similar = play(name="adafed", rounds=2)
    similar.finish()
    assert similar.asked == ["train", "statistics", "train", "validate", "test"]
    beside = play(folder="beside", name="fedsm", selector={"steps": 3}, rounds=2, model={"normalization": "instance"})
    beside.finish()
    rounds = ["train", "selector", "selector"] * 2
    assert beside.asked == [*rounds, "validate", "assemble", "test_super_model"]


def test_rounds_of_a_part_alone_come_in_place_of_training(play):
    options = {"selector": {"labels": "best_model"}, "extra_rounds": 2, "model": {"normalization": "instance"}}
    game = play(name="fedsm", rounds=1, **options)
    game.finish()
    assert game.asked == ["train", "validate", "assemble", "selector", "selector", "test_super_model"]
    assert [record.round for record in game.server.ledger] == [1, 2, 3]


def test_an_exchange_that_is_not_needed_keeps_no_round_from_running(play):
    game = play(name="adafed", rounds=2)
    game.round()
    failed = lambda task, site, answer: answer.failed("no disk") if task == "statistics" else answer  # noqa: E731
    record = game.round(change=failed)
    assert record.answered == ["east", "north", "west"] and record.failed == {}
    assert Counter("no disk" in note for note in record.notes) == {True: 3}
    assert game.warnings == record.notes


# --- a test in every round


ALL = ("east", "north", "west")
SGD = {"optimizer": "sgd", "momentum": 0.0}
TESTED = {
    "shared": {"name": "fedavg"},
    "guarded": {"name": "fedbn", "guard": True},
    "super model": {"name": "fedsm", "model": {"normalization": "instance"}},
    "personal": {"name": "ditto", "training": SGD, "network": UNET, "model": {"dropout": 0.3}},
    "own steps": {
        "name": "perfedavg",
        "training": {"local_epochs": 2},
        "network": UNET,
        "model": {"dropout": 0.3},
    },
    "amplitude": {"name": "harmofl", "average_last": 0.9},
    "rounds of a part": {
        "name": "fedsm",
        "selector": {"labels": "best_model"},
        "extra_rounds": 1,
        "model": {"normalization": "instance"},
    },
}


def in_every_round(study):
    return study.model_copy(update={"evaluate_every_round": True})


# The longest.
LONG = ("super model", "own steps", "rounds of a part")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in TESTED]
)
def test_a_test_in_every_round_changes_no_weight_and_no_choice(play, make_study, site_data, name):
    study, found = make_study(**TESTED[name]), {}
    for folder, one in (("without", study), ("with", in_every_round(study))):
        # Without the local models that other runs have left.
        for path in site_data.glob(".cache/*/local-*.pt"):
            path.unlink()
        game = play(folder=folder, study=one)
        found[folder] = game, game.finish()
    (plain, plain_tests), (tested, tests) = found["without"], found["with"]
    assert_alike(plain.models("east"), tested.models("east"))
    assert plain.server.best_round == tested.server.best_round and plain_tests.scores == tests.scores
    if name == "guarded":
        assert plain.server.parts["guard"].choices == tested.server.parts["guard"].choices != {}
    for before, now in zip(plain.server.ledger, tested.server.ledger, strict=True):
        assert before.validation == now.validation and before.notes == now.notes
        assert before.test is None and (now.test is not None) == (now.round <= study.training_rounds)
    assert all(record.test.keys() == set(ALL) for record in tested.server.ledger if record.test)


def test_the_test_of_a_round_is_that_of_its_model_and_of_the_reported_one_the_final_test(play, make_study):
    game = play(study=in_every_round(make_study()))
    game.round()
    model = build_plain_model(game.study, 0)
    write_arrays(model.state_dict(), {n.removeprefix("model/"): a for n, a in game.models("west").items()})
    value = evaluate(model, game.sites["west"].data.test, game.study, CPU)[1].value
    tests = game.finish()
    assert game.server.ledger[0].test["west"].value == value
    reported = game.server.ledger[game.server.reported.round - 1].test
    assert {site: score.value for site, score in reported.items()} == {
        site: score.value for site, score in tests.scores.items()
    }


def test_the_tests_of_a_run_that_goes_on_are_those_of_one_that_never_stopped(play, make_study):
    whole, halved = (play(folder=name, study=in_every_round(make_study())) for name in ("whole", "halved"))
    whole.finish(), halved.rounds(2), halved.resume(), halved.finish()
    assert [record.test for record in halved.server.ledger] == [record.test for record in whole.server.ledger]


def test_a_site_that_is_away_in_the_next_round_has_no_test_of_this_one(play, make_study):
    game = play(study=in_every_round(make_study(federation={"max_missed_rounds": 3})))
    game.round(), game.round(absent=("north",))
    assert game.server.ledger[0].test.keys() == {"east", "west"}


def test_a_test_of_a_round_that_nobody_asked_for_is_refused(play):
    score = {"value": 0.5, "num_cases": 2, "num_excluded": 0}
    game = play(federation={"max_missed_rounds": 3})
    game.round()
    record = game.round(change=spoilt("west", measuring(round_test=score)))
    assert record.refused == {
        "west": "site 'west' must send no test score of a round, for which the study does not ask"
    }
    assert game.server.ledger[0].test is None
