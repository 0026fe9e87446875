"""The course of a study over a network of sites in this process."""

import shutil
from collections import Counter
from dataclasses import replace

import pytest

from silofl.base.errors import AggregationError
from silofl.base.schema import dump_record
from silofl.federation.course import Answers, Course, describe_answers, separate_failures
from silofl.parts.answer import Numbers, SiteAnswer
from silofl.parts.task import Message

from ..conftest import assert_alike


def spoilt(wrong, spoil):
    """Return a change of one site's updates."""
    return lambda task, site, answer: spoil(answer) if (task, site) == ("train", wrong) else answer


def saying(**meta):
    return lambda answer: Message(answer.arrays, answer.meta | meta)


# --- who is asked what


def test_run_validates_and_tests_once_and_saves_each_round(play):
    game, saved = play(rounds=2), []
    server = game.server

    def save():
        saved.append((server.finished_rounds, bool(server.ledger[-1].validation)))

    tests = Course(server, game.ask, save).run()
    assert game.asked == ["train", "train", "validate", "test"] and server.finished_rounds == 2
    assert tests.scores.keys() == {"east", "north", "west"} and tests.missing == {}
    assert saved == [(1, False), (2, False), (2, True)]
    # A run that is over is only tested.
    game.asked.clear()
    assert game.finish() == tests and game.asked == ["test"]


def test_round_is_validated_with_the_next_task(play):
    game = play(("east", "west"), rounds=3)
    assert game.round().validation == {}
    game.round()
    first, second = game.server.ledger
    assert first.validation.keys() == {"east", "west"} and second.validation == {}
    assert game.answers["train"]["east"].meta["metrics"]["validation"] == dump_record(first.validation["east"])


def test_ended_run_asks_nobody_and_keeps_last_whole_round(play):
    game = play(("east", "west"), name="fedsm", selector={"steps": 3}, model={"normalization": "instance"})
    game.round()
    before = game.models("east")
    game.asked.clear()
    assert Course(game.server, game.ask, is_aborted=lambda: len(game.asked) == 1).run() is None
    assert game.server.finished_rounds == 1
    assert_alike(game.models("east"), before)
    # Of the round's three exchanges the second one is the last.
    assert Course(game.server, game.ask, is_aborted=lambda: len(game.asked) == 3).run() is None
    assert game.asked == ["train", "train", "selector"] and game.server.finished_rounds == 1


def test_the_order_of_answers_does_not_matter(play):
    games = [play(folder=folder) for folder in ("one", "two")]
    ask = games[1].ask

    def ask_backwards(task, messages):
        answers = ask(task, messages)
        return replace(answers, given=dict(reversed(answers.given.items())))

    games[1].ask = ask_backwards
    for game in games:
        game.round()
    assert_alike(games[0].models("east"), games[1].models("east"))
    assert list(games[1].server.ledger[0].weights) == ["east", "north", "west"]


# --- who is not there


def test_late_site_is_recorded_and_returns_to_shared_model(play):
    game = play()
    late = game.round(absent=("north",))
    assert late.failed == {"north": "no answer in time"} and late.missed == ["north"]
    assert late.answered == ["east", "west"]
    # 5 and 3 training images
    assert late.weights["east"] == {"east": 5 / 8, "west": 3 / 8}
    failed = game.round(change=spoilt("west", lambda answer: answer.failed("no GPU")))
    assert failed.failed == {"west": "no GPU"} and failed.answered == ["east", "north"]
    assert_alike(game.sent["train"]["north"].arrays, game.sent["train"]["east"].arrays)


def test_bytes_count_both_ways_but_not_of_refused_answers(play):
    game = play(("east", "west"))
    record = game.round(change=spoilt("west", saying(num_examples=0)))
    model = sum(array.nbytes for array in game.models("east").values())
    assert record.bytes_to == {"east": model, "west": model} and record.bytes_from == {"east": model}
    shutil.rmtree(game.folder("east") / "rounds")
    assert game.round().bytes_to == {"east": 2 * model, "west": model}


def test_too_few_answers_end_the_run_with_every_sites_reason(play):
    game = play(federation={"min_sites": 2})

    def change(task, site, answer):
        return answer.failed("no GPU") if site == "east" else saying(metrics=5)(answer)

    with pytest.raises(AggregationError) as caught:
        game.round(absent=("north",), change=change)
    said = str(caught.value)
    assert said.startswith("round 1 must have answers of at least 2 sites, not 0: east: no GPU; ")
    assert "; west: the answer of site 'west'" in said and "north: no answer in time" in said
    assert game.server.finished_rounds == 0


def test_site_late_with_its_test_is_missing(play):
    game = play(rounds=1)
    game.round()
    tests = game.finish(absent=("east",))
    assert tests.missing == {"east": "no answer in time"} and tests.scores.keys() == {"north", "west"}
    assert game.server.ledger[0].validation.keys() == {"north", "west"}
    said = "site 'east' did not validate the models of round 1: no answer in time"
    assert game.server.ledger[0].notes.count(said) == 1


def test_answers_are_settled_in_order_without_failures():
    given = {"b": Message(meta={"round": 1}), "c": Message(meta={"error": "no\nGPU"}), "a": Message()}
    assert separate_failures(given, ["e", "d"]) == Answers(
        {"a": Message(), "b": Message(meta={"round": 1})},
        {"c": "no GPU", "d": "no answer in time", "e": "no answer in time"},
    )
    assert list(separate_failures(given).given) == ["a", "b"]


@pytest.mark.parametrize(("value", "held"), [(2, {"a": 2}), ("2", {}), (True, {}), (-1, {}), (None, {}), (2.0, {})])
def test_a_site_that_failed_may_say_which_round_it_holds(value, held):
    given = {"a": Message(meta={"error": "state", "held": value}), "b": Message(meta={"held": 5})}
    assert separate_failures(given).held == held


def test_site_is_asked_once_more_for_lost_state(play):
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


# --- what is refused


DRIFT = {"measures_drift": True}


def test_measured_drift_changes_no_weight_and_must_come(play):
    def without_drift(answer):
        metrics = {name: value for name, value in answer.meta["metrics"].items() if name != "drift"}
        return Message(answer.arrays, answer.meta | {"metrics": metrics})

    measured, plain = play(name="harmofl", training=DRIFT), play(name="harmofl", folder="plain")
    assert measured.round().drift > 0
    record = plain.round()
    assert "drift" not in record.metrics["east"] and record.failed == {}
    assert (record.drift, record.dissimilarity) == (None, None)
    assert_alike(measured.models("east"), plain.models("east"))
    refused = measured.round(change=spoilt("west", without_drift)).failed
    assert refused == {"west": "the answer of site 'west' lacks its drift"}


@pytest.mark.parametrize(("name", "shared"), [("fedavg", True), ("softpull", False)])
def test_any_algorithm_measures_its_drift_where_the_study_asks(play, name, shared):
    record = play(("east", "west"), name=name, training=DRIFT).rounds(2)
    assert record.failed == {} and record.drift > 0 and record.metrics.keys() == {"east", "west"}
    # Only what begins from one model in each round has gradients at one place.
    assert (record.dissimilarity is not None) == shared


def test_one_site_cannot_have_the_super_model_doubt_no_image(play):
    """Its answer counts, and its images' look does not."""
    wide = {"kinds": ["pictures"], "intensities": [{"measure": "mean", "low": -1e15, "high": 1e15}]}
    wide["voxels"] = {"least": [0.001] * 3, "most": [1000.0] * 3}
    game, honest = play(), play(folder="honest")
    records = [game.round(change=spoilt("west", saying(domain=wide))) for _ in range(2)]
    honest.round(absent=("west",))
    assert game.server.data_profile.intensities == honest.server.data_profile.intensities
    assert game.server.data_profile.voxels is None
    assert records[0].failed == {} and records[0].notes == game.warnings
    assert "west: its images' mean, " in game.warnings[0]
    assert records[1].notes == []


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_site_outweighing_all_by_examples_is_named_once(play, weights):
    game, is_said = play(weights=weights), weights == "examples"
    records = [game.round(change=spoilt("west", saying(num_examples=10_000_000))) for _ in range(2)]
    assert records[0].notes == game.warnings and len(game.warnings) == is_said and records[1].notes == []
    sentence = "site 'west' says that it has 2.22e+06 times as many training examples as the others' median"
    assert all(sentence in note and "choose algorithm: {weights: uniform}" in note for note in game.warnings)
    # 10,000,000 of (5 + 4) / 2
    assert [record.outliers for record in records] == [{"west": {"examples": 2.22e6}} if is_said else None] * 2


def test_refused_update_changes_nothing_and_site_is_asked_again(play):
    spoiled, absent = play(), play(folder="absent")
    record = spoiled.round(change=spoilt("west", saying(num_examples=0)))
    assert spoiled.warnings == [record.failed["west"]]
    absent.round(absent=("west",))
    assert_alike(spoiled.models("east"), absent.models("east"))
    assert spoiled.round().answered == ["east", "north", "west"]


# --- parts' own exchanges


def test_parts_exchanges_come_before_after_and_at_end(play):
    similar = play(("east", "west"), name="adafed", rounds=2)
    similar.finish()
    assert similar.asked == ["train", "statistics", "train", "validate", "test"]
    options = {"name": "fedsm", "selector": {"steps": 3}, "model": {"normalization": "instance"}}
    beside = play(("east", "west"), "beside", rounds=1, **options)
    beside.finish()
    assert beside.asked == ["train", "selector", "selector", "validate", "assemble", "test_super_model"]


def test_unneeded_exchange_stops_no_round(play):
    game = play(name="adafed", rounds=2)
    game.round()
    record = game.round(change=lambda task, site, one: one.failed("no disk") if task == "statistics" else one)
    assert record.answered == ["east", "north", "west"] and record.failed == {}
    assert Counter("no disk" in note for note in record.notes) == {True: 3}
    assert game.warnings == record.notes


# --- a test in every round


def in_every_round(study):
    return study.model_copy(update={"evaluate_every_round": True})


def test_testing_every_round_changes_no_weight_or_choice(play, make_study, site_data):
    study, found = make_study(rounds=2, name="fedbn", baseline_comparison=True), {}
    for folder, one in (("without", study), ("with", in_every_round(study))):
        # Without the local models that other runs have left.
        for path in site_data.glob(".cache/*/local-*.pt"):
            path.unlink()
        game = play(("east", "west"), folder, one)
        found[folder] = game, game.finish()
    (plain, plain_tests), (tested, tests) = found["without"], found["with"]
    assert_alike(plain.models("east"), tested.models("east"))
    assert plain.server.best_round == tested.server.best_round and plain_tests.scores == tests.scores
    assert plain.server.parts["guard"].choices == tested.server.parts["guard"].choices != {}
    for before, now in zip(plain.server.ledger, tested.server.ledger, strict=True):
        assert before.validation == now.validation and before.notes == now.notes
        assert before.test is None and (now.test is not None) == (now.round <= study.training_rounds)
    assert all(record.test.keys() == {"east", "west"} for record in tested.server.ledger if record.test)


def test_ledger_says_what_answers_lack():
    answers = {
        "east": SiteAnswer({}, Numbers(round=1, unreadable={"damaged": 2, "not finite": 1})),
        "north": SiteAnswer({}, Numbers(round=1), withheld=("a", "b", "c", "d")),
        "west": SiteAnswer({}, Numbers(round=1)),
    }
    assert [*describe_answers({}, answers)] == [
        "site 'east' leaves out cases that cannot be read: 2 damaged, 1 not finite",
        "site 'north' keeps back 4 arrays by its policy: a, b, c, ...",
    ]
