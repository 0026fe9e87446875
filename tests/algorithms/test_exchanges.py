"""A run is planned before its first round; it trains as without, and needs no site for it."""

import json
import shutil

import numpy as np
import pytest

from silofl.algorithms.plan.exchange import make_draft
from silofl.algorithms.plan.rules import make_plan
from silofl.data.data_fingerprint import EDGES, measure_site
from silofl.data.manifest import read_manifest
from silofl.federation.egress import Gate, Request
from silofl.parts.load import start_parts
from silofl.parts.task import Message
from silofl.setup.software import read_software
from silofl_desk.studies.traffic import count_traffic

from ..conftest import assert_alike
from .conftest import COUNTS

SITES = tuple(COUNTS)


def result_of(game):
    """Return what was found, and what is said of it."""
    part = game.server.parts["fingerprint"]
    return part.document, part.sentences


def spoiled(answer, name, array):
    arrays = {key: value for key, value in answer.arrays.items() if key != name}
    return Message(arrays | ({} if array is None else {name: array}), answer.meta)


def expect(game, site_data):
    """Return the result of the same rules on the sites' data."""
    study = game.study
    fingerprints = {site: measure_site(read_manifest(site_data / site, study), study, 0) for site in SITES}
    return make_plan(make_draft(study), fingerprints)


def test_a_run_finds_what_the_sites_data_say_and_trains_as_without(play, site_data):
    game, without = play(name="plan", folder="with"), play(name="fedavg", folder="without")
    game.rounds(2)
    without.rounds(2)
    (found, sentences), expected = result_of(game), expect(game, site_data)
    assert found == expected.as_dict() | {"not_planned_with": {}} and sentences == tuple(expected.sentences())
    assert "planned: data." in sentences[0]
    assert set(sentences) <= set(game.server.ledger[0].notes) and not set(sentences) & set(game.server.ledger[1].notes)
    assert game.asked.count("fingerprint") == 1
    for site in SITES:
        assert_alike(game.models(site), without.models(site))


def test_no_least_largest_or_single_value_leaves_for_a_plan(finished):
    answer = finished(name="plan", rounds=1).answers["fingerprint"]["east"]
    assert {name.removeprefix("fingerprint/"): array.shape for name, array in answer.arrays.items()} == {
        "spacing_mm": (3, 3),
        "shape": (3, 3),
        "intensity": (1, 5),
        "channels": (1,),
        "classes": (2,),
    }
    # The first answer of a run says what the site runs.
    software = {"software": read_software().model_dump()}
    policy = {"min_partners": 0, "shares_models": True}
    assert answer.meta == {"round": 0, "num_patients": 5, "fingerprint": {"cases": 5}} | policy | software


def test_of_ct_a_histogram_leaves_without_a_bin_of_few_patients_and_gives_the_plan_its_window(
    play, site_data, make_study
):
    study = make_study(name="plan", rounds=1)
    study = study.model_copy(update={"data": study.data.model_copy(update={"intensity": "raw", "modality": "CT"})})
    game = play(study=study, min_patients=3)
    game.round()
    sent = {site: game.answers["fingerprint"][site].arrays["fingerprint/histogram"] for site in SITES}
    values = []
    for site in SITES:
        content = json.loads((site_data / site / "dataset.json").read_text())
        arrays, rows = np.load(site_data / site / "site.npz"), [one["index"] for one in content["training"]]
        own = [arrays["images"][row][arrays["labels"][row] == 1] for row in rows]
        held = np.sum([np.histogram(one, EDGES)[0] > 0 for one in own], axis=0)
        assert held[sent[site] > 0].min() >= 3 and (sent[site] > 0).sum() == (held >= 3).sum()
        values += own
    gate, request = Gate.of(study, game.settings), Request("fingerprint", "run", 0, 1)
    assert gate.refusal(request, game.answers["fingerprint"]["east"]) is None
    (scale,) = [one for one in result_of(game)[0]["decisions"] if one["key"] == "data.transforms"]
    window = [scale["value"][-1]["ScaleIntensityRange"][key] for key in ("a_min", "a_max")]
    # To a bin, and to the bin beside it where too few patients have the ends.
    wanted = np.percentile(np.concatenate(values), [0.5, 99.5])
    np.testing.assert_allclose(window, wanted, atol=2 * (EDGES[1] - EDGES[0]))


def test_what_leaves_is_of_one_kind_that_a_site_can_keep_back(finished):
    game = finished(name="plan", rounds=1)
    answer, request = game.answers["fingerprint"]["east"], Request("fingerprint", "run", 0, 1)
    gate = Gate.of(game.study, game.settings)
    assert {gate.kind(array) for array in answer.arrays} == {"fingerprint"} and gate.refusal(request, answer) is None
    closed = Gate.of(game.study, game.settings.model_copy(update={"may_leave": ("model",)}))
    assert "leave, not fingerprint" in closed.refusal(request, answer)
    smuggled = spoiled(answer, "fingerprint/classes", np.ones(10**5))
    assert "only as float64 of shape" in gate.refusal(request, smuggled)


def test_a_site_with_too_few_patients_sends_nothing_and_is_stopped_at_the_door_too(play, finished):
    game = play(name="plan", min_patients=4)
    game.round()
    assert game.answers["fingerprint"]["west"].arrays == {} and game.answers["fingerprint"]["east"].arrays
    found, sentences = result_of(game)
    assert found["not_planned_with"] == {"west": "fewer than 4 patients in training"}
    assert found["sites"].keys() == {"east", "north"}
    assert sentences[-1] == "site 'west' is not planned with: fewer than 4 patients in training"
    answer = finished(name="plan", rounds=1).answers["fingerprint"]["west"]
    reason = Gate.of(game.study, game.settings).refusal(Request("fingerprint", "run", 0, 1), answer)
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
    game.round()
    assert game.answers["fingerprint"]["east"].arrays == {} and result_of(game)[0]["not_planned_with"].keys() == {
        "east"
    }


def test_without_a_site_there_is_no_plan(play):
    game = play(name="plan", min_patients=100)
    game.round()
    assert all(answer.arrays == {} for answer in game.answers["fingerprint"].values())
    found, sentences = result_of(game)
    assert found == {} and game.server.parts["fingerprint"].outcome(game.server, {}).make_files() == {}
    assert sentences[0].startswith("no plan: a plan must have at least 1 site's")
    assert sentences[1] == "site 'east' is not planned with: fewer than 100 patients in training"


@pytest.mark.parametrize(
    ("array", "value", "reason"),
    [
        ("fingerprint/classes", None, "must send all of a fingerprint; it lacks ['fingerprint/classes']"),
        (
            "fingerprint/spacing_mm",
            np.array([[3.0] * 3, [2] * 3, [1] * 3]),
            "the quartiles of spacing_mm must rise within 0.001 to",
        ),
        ("fingerprint/classes", np.array([-1.0, 2]), "with values of at least 0"),
        ("fingerprint/shape", np.ones((3, 2)), "with shape (3, 3)"),
    ],
    ids=str,
)
def test_a_wrong_answer_costs_its_site_the_exchange_and_no_round(play, array, value, reason):
    game = play(name="plan")

    def change(task, site, answer):
        return spoiled(answer, array, value) if (task, site) == ("fingerprint", "north") else answer

    assert game.round(change=change).round == 1
    found, sentences = result_of(game)
    assert found["not_planned_with"].keys() == {"north"} and reason in found["not_planned_with"]["north"]
    assert found["sites"].keys() == {"east", "west"}
    assert any("'north' is not planned with" in one for one in sentences)


def test_a_run_that_is_taken_up_keeps_its_result(finished):
    game = finished(name="plan", rounds=1)
    part = game.server.parts["fingerprint"]
    again = start_parts(game.study, SITES, None)["fingerprint"].restored(part.state())
    assert again.outcome(None, {}).make_files() == {"plan.json": part.document} and again.sentences == part.sentences


def test_the_bytes_of_a_plan_are_known_before(make_study):
    plain, planned = (count_traffic(make_study(name=name), 3, (1, 32, 32)) for name in ("fedavg", "plan"))
    # 9 + 9 + 5 + 1 + 2 numbers of 8 bytes
    assert planned.bytes_from[0] - plain.bytes_from[0] == 26 * 8
    assert planned.bytes_from[1:] == plain.bytes_from[1:] and planned.bytes_to == plain.bytes_to
