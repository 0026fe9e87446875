"""The comparison of sites in a run: it says what `silofl advise` says, trains as without, and needs no site."""

import numpy as np
import pytest

from silofl.algorithms.advice.comparison import advise
from silofl.algorithms.advice.exchange import FILE, ROLE
from silofl.algorithms.advice.sketch import build_fixed_network, sketch
from silofl.federation.egress import Gate, Request
from silofl.parts.load import start_parts
from silofl.parts.task import Message

SITES = ("east", "north", "west")


def advice_of(game):
    """Return the advice, and what is said of it."""
    part = game.server.parts[ROLE]
    return part.document, part.sentences


def spoiled(answer, name, array):
    arrays = {key: value for key, value in answer.arrays.items() if key != name}
    return Message(arrays | ({} if array is None else {name: array}), answer.meta)


def test_a_run_measures_what_the_sites_data_say_and_trains_as_without(play):
    game, without = play(name="advice", folder="with"), play(name="fedavg", folder="without")
    game.rounds(2)
    without.rounds(2)
    network = build_fixed_network(game.study)
    sketches = {name: sketch(name, game.sites[name].data.training, game.study, network) for name in SITES}
    expected = advise(sketches)
    found, sentences = advice_of(game)
    assert found == expected.as_dict() | {"not_compared": {}}
    assert sentences == tuple(expected.sentences()) and "look different" in sentences[0]
    assert set(sentences) <= set(game.server.ledger[0].notes) and not set(sentences) & set(game.server.ledger[1].notes)
    assert game.asked.count(ROLE) == 1
    for name in SITES:
        for key, value in game.models(name).items():
            np.testing.assert_array_equal(value, without.models(name)[key])


def test_what_leaves_is_of_one_kind_that_a_site_can_keep_back(play):
    game = play(name="advice")
    game.rounds(1)
    answer, request = game.answers[ROLE]["east"], Request(ROLE, "run", 0, 1)
    gate = Gate.of(game.study, game.settings)
    assert {gate.kind(name) for name in answer.arrays} == {"advice"} and gate.refusal(request, answer) is None
    closed = Gate.of(game.study, game.settings.model_copy(update={"may_leave": ("model",)}))
    assert "leave, not advice" in closed.refusal(request, answer)
    smuggled = spoiled(answer, "advice/labels", np.ones(10**5))
    assert "only as float64 of shape" in gate.refusal(request, smuggled)


def test_a_site_with_too_few_patients_is_not_compared_and_that_is_said(play):
    game = play(name="advice", min_patients=100)
    game.rounds(1)
    assert all(answer.arrays == {} for answer in game.answers[ROLE].values())
    found, sentences = advice_of(game)
    assert found == {} and game.server.parts[ROLE].files() == {}
    assert sentences[0] == "no comparison: fewer than 2 sites shared what compares them"
    assert sentences[1] == "site 'east' is not compared: fewer than 100 patients in training"


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("advice/labels", None, "must send all of a comparison; it lacks ['advice/labels']"),
        ("advice/within/labels", np.full((40, 2), -1.0), "with values of at least 0"),
        ("advice/amplitude", np.ones((1, 2, 2)), "with shape (1, 32, 17) as the other sites"),
        ("advice/x", np.ones(1), "must send only arrays that were asked for"),
    ],
)
def test_a_wrong_answer_costs_its_site_the_comparison_and_no_round(play, name, array, reason):
    game = play(name="advice")

    def change(task, site, answer):
        return spoiled(answer, name, array) if (task, site) == (ROLE, "north") else answer

    record = game.round(change=change)
    found, sentences = advice_of(game)
    assert found["not_compared"].keys() == {"north"} and reason in found["not_compared"]["north"]
    assert found["cases"].keys() == {"east", "west"} and any("'north' is not compared" in one for one in sentences)
    assert record.round == 1


def test_a_run_that_is_taken_up_keeps_its_advice(play):
    game = play(name="advice")
    game.rounds(1)
    part = game.server.parts[ROLE]
    again = start_parts(game.study, SITES, None)[ROLE].restored(part.state())
    assert again.files() == {FILE: part.document} and again.sentences == part.sentences


@pytest.mark.parametrize(("annotated", "compared"), [([1], "1"), ([10**7], "none")])
def test_what_a_site_annotates_decides_which_labels_are_compared(play, annotated, compared):
    game = play(name="advice")

    def change(task, site, answer):
        is_north = (task, site) == (ROLE, "north")
        more = {ROLE: answer.meta[ROLE] | {"annotated": annotated}} if is_north else {}
        return Message(answer.arrays, answer.meta | more)

    game.round(change=change)
    found, _ = advice_of(game)
    assert found["not_compared"] == {} and ("labels" in found["findings"]) == (compared != "none")
    assert f"the sites annotate different labels; those are compared that all annotate: {compared}" in found["notes"]
