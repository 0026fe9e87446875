"""The plan of a run: it says what `silofl plan` says, trains as without, and needs no site."""

import json
import shutil

import numpy as np
import pytest

from silofl.algorithms.plan.exchange import FILE, ROLE, make_draft
from silofl.algorithms.plan.rules import make_plan
from silofl.data.data_fingerprint import measure_site
from silofl.data.manifest import read_manifest
from silofl.federation.egress import Gate, Request
from silofl.parts.load import start_parts
from silofl.parts.task import Message
from silofl.software import read_software
from silofl.studies.traffic import count_traffic

SITES = ("east", "north", "west")


def plan_of(game):
    """Return the plan, and what is said of it."""
    part = game.server.parts[ROLE]
    return part.document, part.sentences


def spoiled(answer, name, array):
    arrays = {key: value for key, value in answer.arrays.items() if key != name}
    return Message(arrays | ({} if array is None else {name: array}), answer.meta)


def test_a_run_plans_from_the_sites_data_and_trains_as_without(play, site_data):
    game, without = play(name="plan", folder="with"), play(name="fedavg", folder="without")
    game.rounds(2)
    without.rounds(2)
    study = game.study
    fingerprints = {site: measure_site(read_manifest(site_data / site, study), study, 0) for site in SITES}
    expected = make_plan(make_draft(study), fingerprints)
    found, sentences = plan_of(game)
    assert found == expected.as_dict() | {"not_planned_with": {}} and sentences == tuple(expected.sentences())
    assert sentences[0].startswith("planned: data.")
    assert set(sentences) <= set(game.server.ledger[0].notes) and not set(sentences) & set(game.server.ledger[1].notes)
    assert game.asked.count(ROLE) == 1
    for name in SITES:
        for key, value in game.models(name).items():
            np.testing.assert_array_equal(value, without.models(name)[key])


def test_no_least_largest_or_single_value_leaves(play):
    game = play(name="plan")
    game.rounds(1)
    answer = game.answers[ROLE]["east"]
    shapes = {name: array.shape for name, array in answer.arrays.items()}
    assert shapes == {
        "fingerprint/spacing_mm": (3, 3),
        "fingerprint/shape": (3, 3),
        "fingerprint/intensity": (1, 5),
        "fingerprint/channels": (1,),
        "fingerprint/classes": (2,),
    }
    # The first answer of a run says what the site runs.
    software = {"software": read_software().model_dump()}
    assert answer.meta == {"round": 0, "num_patients": 5, ROLE: {"cases": 5}} | software


def test_what_leaves_is_of_one_kind_that_a_site_can_keep_back(play):
    game = play(name="plan")
    game.rounds(1)
    answer, request = game.answers[ROLE]["east"], Request(ROLE, "run", 0, 1)
    gate = Gate.of(game.study, game.settings)
    assert {gate.kind(name) for name in answer.arrays} == {"fingerprint"} and gate.refusal(request, answer) is None
    closed = Gate.of(game.study, game.settings.model_copy(update={"may_leave": ("model",)}))
    assert "leave, not fingerprint" in closed.refusal(request, answer)
    smuggled = spoiled(answer, "fingerprint/classes", np.ones(10**5))
    assert "only as float64 of shape" in gate.refusal(request, smuggled)


def test_a_site_with_too_few_patients_sends_nothing_and_that_is_said(play):
    # 5, 4 and 3 patients in training
    game = play(name="plan", min_patients=4)
    game.rounds(1)
    assert game.answers[ROLE]["west"].arrays == {} and game.answers[ROLE]["east"].arrays
    found, sentences = plan_of(game)
    assert found["not_planned_with"] == {"west": "fewer than 4 patients in training"}
    assert found["sites"].keys() == {"east", "north"}
    assert sentences[-1] == "site 'west' is not planned with: fewer than 4 patients in training"


def test_a_fingerprint_of_too_few_patients_is_stopped_at_the_door_too(play):
    game = play(name="plan")
    game.rounds(1)
    answer = game.answers[ROLE]["west"]
    gate = Gate.of(game.study, game.settings.model_copy(update={"min_patients": 4}))
    reason = gate.refusal(Request(ROLE, "run", 0, 1), answer)
    assert reason == "the site lets fingerprint leave only from 4 patients or more; it has fewer"


def test_many_scans_of_one_patient_are_no_patients(play, site_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(site_data, data, ignore=shutil.ignore_patterns(".*"))
    path = data / "east" / "dataset.json"
    content = json.loads(path.read_text())
    for number, record in enumerate(content["training"]):
        record |= {"patient": "one", "case": f"c{number}"}
    path.write_text(json.dumps(content))
    game = play(name="plan", min_patients=2, data=data)
    game.rounds(1)
    assert game.answers[ROLE]["east"].arrays == {} and plan_of(game)[0]["not_planned_with"].keys() == {"east"}


def test_without_any_site_there_is_no_plan(play):
    game = play(name="plan", min_patients=100)
    game.rounds(1)
    assert all(answer.arrays == {} for answer in game.answers[ROLE].values())
    found, sentences = plan_of(game)
    assert found == {} and game.server.parts[ROLE].files() == {}
    assert sentences[0].startswith("no plan: a plan must have at least 1 site's fingerprint, not 0")
    assert sentences[1] == "site 'east' is not planned with: fewer than 100 patients in training"


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("fingerprint/classes", None, "must send all of a fingerprint; it lacks ['fingerprint/classes']"),
        ("fingerprint/spacing_mm", np.zeros((3, 3)), "the quartiles of spacing_mm must rise within 0.001 to 1000"),
        ("fingerprint/classes", np.array([-1.0, 2]), "with values of at least 0"),
        ("fingerprint/shape", np.ones((3, 2)), "with shape (3, 3)"),
        ("fingerprint/x", np.ones(1), "must send only arrays that were asked for"),
    ],
)
def test_a_wrong_answer_costs_its_site_the_plan_and_no_round(play, name, array, reason):
    game = play(name="plan")

    def change(task, site, answer):
        return spoiled(answer, name, array) if (task, site) == (ROLE, "north") else answer

    record = game.round(change=change)
    found, sentences = plan_of(game)
    assert found["not_planned_with"].keys() == {"north"} and reason in found["not_planned_with"]["north"]
    assert found["sites"].keys() == {"east", "west"} and any("'north' is not planned with" in one for one in sentences)
    assert record.round == 1


def test_a_run_that_is_taken_up_keeps_its_plan(play):
    game = play(name="plan")
    game.rounds(1)
    part = game.server.parts[ROLE]
    again = start_parts(game.study, SITES, None)[ROLE].restored(part.state())
    assert again.files() == {FILE: part.document} and again.sentences == part.sentences


def test_its_bytes_are_known_before(make_study):
    plain, planned = (count_traffic(make_study(name=name), 3, (1, 32, 32)) for name in ("fedavg", "plan"))
    # 9 + 9 + 5 + 1 + 2 numbers of 8 bytes
    assert planned.bytes_from[0] - plain.bytes_from[0] == 26 * 8
    assert planned.bytes_from[1:] == plain.bytes_from[1:] and planned.bytes_to == plain.bytes_to
