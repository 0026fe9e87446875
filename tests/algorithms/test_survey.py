"""A survey over a network: nothing is trained, labels need not agree, and each hospital's floor holds."""

import json
import shutil

import pytest

from silofl.base.bundled_jobs import find_job
from silofl.data.inventory import take_inventory
from silofl.federation.egress import Gate, Request
from silofl.federation.outcome import finished_results
from silofl.parts.load import start_parts
from silofl.parts.task import Message
from silofl.study import load_study
from silofl_desk.studies.runs.simulation import study_file

SITES = ("east", "north", "west")


@pytest.fixture
def study():
    return load_study(study_file(find_job("survey_hospitals")))


@pytest.fixture
def outliers(site_data, tmp_path):
    """The sites' data, of which west calls its label otherwise."""
    data = shutil.copytree(site_data, tmp_path / "unlike", ignore=shutil.ignore_patterns(".*"))
    path = data / "west" / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"labels": {"1": "lump"}}))
    return data


def test_all_sites_are_asked_once_and_nothing_is_trained(play, study, outliers, tmp_path):
    game = play(study=study, data=outliers)
    tests = game.finish()
    results = finished_results(game.server, tests)
    assert game.asked == ["survey"] and results.status == "COMPLETE" and tests.scores == {}
    part = game.server.parts["survey"]
    document = part.outcome(None, {}).make_files()["survey.json"]
    east = take_inventory(outliers / "east", 0, has_progress=False)
    assert document["sites"]["east"] == east.model_dump(mode="json") and document["not_said"] == {}
    assert document["sentences"][:2] == ["There is no label that all can supply.", "east has no patient with lump."]
    assert document["sentences"][0] in results.model
    assert start_parts(study, SITES, None)["survey"].restored(part.state()).document == document


def test_a_hospital_below_its_own_floor_says_nothing(play, study, site_data):
    # 9, 8 and 7 patients in all parts together, all of whom have the label.
    game = play(study=study, data=site_data, min_patients=8)
    results = finished_results(game.server, game.finish())
    document = game.server.parts["survey"].document
    assert document["sites"]["east"]["labels"] == {"blob": 9} and document["sites"]["east"]["least"] == 8
    assert document["not_said"] == {"west": "fewer than 8 patients"} and results.status == "COMPLETE"
    assert document["sentences"][-1] == "west says nothing: fewer than 8 patients"


def test_it_is_one_kind_that_a_site_can_keep_back(play, study, site_data):
    game = play(study=study, data=site_data)
    game.finish()
    answer, request = game.answers["survey"]["east"], Request("survey", "run", 0, 1)
    gate = Gate.of(study, game.settings)
    assert gate.refusal(request, answer) is None
    first, numbers = gate.records(request, answer)
    assert (first["kind"], numbers["kind"]) == ("survey", "numbers") and "without any training" in first["purpose"]
    closed = Gate.of(study, game.settings.model_copy(update={"may_leave": ("weights",)}))
    assert "leave, not survey" in closed.refusal(request, answer)
    high = Gate.of(study, game.settings.model_copy(update={"min_patients": 10}))
    assert high.refusal(request, answer) == "the site lets survey leave only from 10 patients or more; it has fewer"


def test_a_failing_site_is_named_and_further_entries_are_refused(play, study, site_data):
    game = play(study=study, data=site_data)

    def change(task, site, answer):
        more = {"survey": answer.meta["survey"] | {"patients": ["p1"]}}
        return Message(answer.arrays, answer.meta | more) if site == "north" else answer

    results = finished_results(game.server, game.finish(absent=("west",), change=change))
    assert results.status == "INCOMPLETE" and game.server.parts["survey"].document["sites"].keys() == {"east"}
    assert "site north did not answer (" in results.reasons[0] and "site west did not answer (" in results.reasons[1]
