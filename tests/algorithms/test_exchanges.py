"""Sites are compared, or a run is planned, before its first round; it trains as without, and needs no site for it."""

import json
import shutil

import numpy as np
import pytest

from silofl.algorithms.advice.comparison import advise
from silofl.algorithms.advice.sketch import build_fixed_network, sketch
from silofl.algorithms.plan.exchange import make_draft
from silofl.algorithms.plan.rules import make_plan
from silofl.data.data_fingerprint import EDGES, measure_site
from silofl.data.manifest import read_manifest
from silofl.federation.egress import Gate, Request
from silofl.parts.load import start_parts
from silofl.parts.task import Message
from silofl.software import read_software
from silofl.studies.traffic import count_traffic

from ..conftest import assert_alike
from .conftest import COUNTS

SITES = tuple(COUNTS)
# Algorithm -> the exchange, the file, its key of the sites that are left out, and what is said of them.
EXCHANGES = {
    "advice": ("advice", "advice.json", "not_compared", "compared"),
    "plan": ("fingerprint", "plan.json", "not_planned_with", "planned with"),
}
both = pytest.mark.parametrize("name", EXCHANGES)


def result_of(game):
    """Return what was found, and what is said of it."""
    part = game.server.parts.get("advice") or game.server.parts["fingerprint"]
    return part.document, part.sentences


def spoiled(answer, name, array):
    arrays = {key: value for key, value in answer.arrays.items() if key != name}
    return Message(arrays | ({} if array is None else {name: array}), answer.meta)


def expect(name, game, site_data):
    """Return the result of the same rules on the sites' data."""
    if name == "advice":
        network = build_fixed_network(game.study)
        sketches = {site: sketch(site, game.sites[site].data.training, game.study, network) for site in SITES}
        return advise(sketches)
    study = game.study
    fingerprints = {site: measure_site(read_manifest(site_data / site, study), study, 0) for site in SITES}
    return make_plan(make_draft(study), fingerprints)


@both
def test_a_run_finds_what_the_sites_data_say_and_trains_as_without(play, site_data, name):
    game, without = play(name=name, folder="with"), play(name="fedavg", folder="without")
    game.rounds(2)
    without.rounds(2)
    (found, sentences), expected = result_of(game), expect(name, game, site_data)
    assert found == expected.as_dict() | {EXCHANGES[name][2]: {}} and sentences == tuple(expected.sentences())
    assert {"advice": "look different", "plan": "planned: data."}[name] in sentences[0]
    assert set(sentences) <= set(game.server.ledger[0].notes) and not set(sentences) & set(game.server.ledger[1].notes)
    assert game.asked.count(EXCHANGES[name][0]) == 1
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
    assert answer.meta == {"round": 0, "num_patients": 5, "min_partners": 0, "fingerprint": {"cases": 5}} | software


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


@both
def test_what_leaves_is_of_one_kind_that_a_site_can_keep_back(finished, name):
    game, role = finished(name=name, rounds=1), EXCHANGES[name][0]
    answer, request = game.answers[role]["east"], Request(role, "run", 0, 1)
    gate = Gate.of(game.study, game.settings)
    assert {gate.kind(array) for array in answer.arrays} == {role} and gate.refusal(request, answer) is None
    closed = Gate.of(game.study, game.settings.model_copy(update={"may_leave": ("model",)}))
    assert f"leave, not {role}" in closed.refusal(request, answer)
    smuggled = spoiled(
        answer, next(one for one in answer.arrays if one.endswith(("labels", "classes"))), np.ones(10**5)
    )
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


@both
def test_without_enough_sites_there_is_no_result(play, name):
    game = play(name=name, min_patients=100)
    game.round()
    role = EXCHANGES[name][0]
    assert all(answer.arrays == {} for answer in game.answers[role].values())
    found, sentences = result_of(game)
    assert found == {} and game.server.parts[role].files() == {}
    nothing = {"advice": "no comparison: fewer than 2 sites", "plan": "no plan: a plan must have at least 1 site's"}
    assert sentences[0].startswith(nothing[name])
    assert sentences[1] == f"site 'east' is not {EXCHANGES[name][3]}: fewer than 100 patients in training"


@pytest.mark.parametrize(
    ("name", "array", "value", "reason"),
    [
        ("advice", "advice/labels", None, "must send all of a comparison; it lacks ['advice/labels']"),
        ("advice", "advice/within/labels", np.full((40, 2), -1.0), "with values of at least 0"),
        ("advice", "advice/amplitude", np.ones((1, 2, 2)), "with shape (1, 32, 17) as the other sites"),
        ("advice", "advice/x", np.ones(1), "must send only arrays that were asked for"),
        ("plan", "fingerprint/classes", None, "must send all of a fingerprint; it lacks ['fingerprint/classes']"),
        ("plan", "fingerprint/spacing_mm", np.zeros((3, 3)), "the quartiles of spacing_mm must rise within 0.001 to"),
        ("plan", "fingerprint/classes", np.array([-1.0, 2]), "with values of at least 0"),
        ("plan", "fingerprint/shape", np.ones((3, 2)), "with shape (3, 3)"),
    ],
    ids=str,
)
def test_a_wrong_answer_costs_its_site_the_exchange_and_no_round(play, name, array, value, reason):
    game, (role, _, left_out, words) = play(name=name), EXCHANGES[name]

    def change(task, site, answer):
        return spoiled(answer, array, value) if (task, site) == (role, "north") else answer

    assert game.round(change=change).round == 1
    found, sentences = result_of(game)
    assert found[left_out].keys() == {"north"} and reason in found[left_out]["north"]
    assert found[{"advice": "cases", "plan": "sites"}[name]].keys() == {"east", "west"}
    assert any(f"'north' is not {words}" in one for one in sentences)


@both
def test_a_run_that_is_taken_up_keeps_its_result(finished, name):
    game, (role, file, *_) = finished(name=name, rounds=1), EXCHANGES[name]
    part = game.server.parts[role]
    again = start_parts(game.study, SITES, None)[role].restored(part.state())
    assert again.files() == {file: part.document} and again.sentences == part.sentences


def test_the_bytes_of_a_plan_are_known_before(make_study):
    plain, planned = (count_traffic(make_study(name=name), 3, (1, 32, 32)) for name in ("fedavg", "plan"))
    # 9 + 9 + 5 + 1 + 2 numbers of 8 bytes
    assert planned.bytes_from[0] - plain.bytes_from[0] == 26 * 8
    assert planned.bytes_from[1:] == plain.bytes_from[1:] and planned.bytes_to == plain.bytes_to


@pytest.mark.parametrize(("annotated", "compared"), [([1], "1"), ([10**7], "none")])
def test_what_a_site_annotates_decides_which_labels_are_compared(play, annotated, compared):
    game = play(name="advice")

    def change(task, site, answer):
        is_north = (task, site) == ("advice", "north")
        more = {"advice": answer.meta["advice"] | {"annotated": annotated}} if is_north else {}
        return Message(answer.arrays, answer.meta | more)

    game.round(change=change)
    found, _ = result_of(game)
    assert found["not_compared"] == {} and ("labels" in found["findings"]) == (compared != "none")
    assert f"the sites annotate different labels; those are compared that all annotate: {compared}" in found["notes"]
