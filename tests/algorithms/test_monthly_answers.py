"""A model's answers in use, month by month, over a network: no name leaves, and no number of few patients."""

import json
from datetime import UTC, datetime

import pytest

from silofl.algorithms.monthly_answers import ROLE
from silofl.base.files import write_json
from silofl.base.settings import parse
from silofl.federation.egress import Gate, Request
from silofl.federation.outcome import finished_results
from silofl.inference.answers import FILE
from silofl.parts.load import start_parts
from silofl.parts.task import Message
from silofl.study import Study

MODEL, SITES = "f" * 64, ("east", "north", "west")


def make_study(task="segmentation", labels=None, **more):
    asked = {"name": ROLE, ROLE: {"model": MODEL}}
    labels = labels or ({1: "organ", 2: "lesion"} if task == "segmentation" else {0: "benign", 1: "malignant"})
    plain = {"name": "months", "task": task, "labels": labels, "rounds": 0, "algorithm": asked}
    if task != "segmentation":
        plain |= {"metric": "accuracy" if task == "classification" else "auroc"}
        plain |= {"model": {"name": "densenet121"}, "training": {"loss": "cross_entropy"}}
    return parse(Study, plain | {"federation": {"min_sites": 1}} | more, "study.yaml")


def record(patient, month="2026-03", warnings=(), **more):
    """Return an entry of prediction.json as predict writes it, of a patient whose name is in every text of it."""
    one = {"input": f"Doe^{patient}.dcm", "time": f"{month}-05T10:00:00+00:00", "super_model": MODEL, "model": "north"}
    one |= {"scores": {}, "is_fallback": False, "warnings": [f"{text}: Doe^{patient}" for text in warnings]}
    one |= {"deviations": {}, "dicom": {"patient": f"Doe^{patient}", "study": "1.2.3"}}
    return one | ({} if more else {"volumes_ml": {"organ": 100.0, "lesion": 2.0}}) | more


@pytest.fixture
def ask(play, tmp_path):
    """Ask sites of the records given for each; return the game, its results and document."""

    def give(records, study=None, min_patients=5, change=None, **options):
        for site in SITES:
            write_json(tmp_path / "data" / site / "a" / "prediction.json", records.get(site, []))
        game = play(study=study or make_study(), data=tmp_path / "data", min_patients=min_patients, **options)
        results = finished_results(game.server, game.finish(change=change))
        return game, results, game.server.parts[ROLE].outcome(None, {}).make_files()[FILE]

    return give


def test_each_months_numbers_are_those_of_the_records_and_nothing_is_trained_or_tested(ask):
    march = [record(n, warnings=["odd"] * (n < 6)) for n in range(12)]
    april = [record(n, "2026-04", volumes_ml={"organ": 90.0 + n, "lesion": 0.0}) for n in range(5)]
    game, results, document = ask({"east": march + april, "north": march, "west": april})
    assert game.asked == [ROLE] and results.status == "COMPLETE" and results.model.startswith("none is trained.")
    # six of twelve had a warning; the mean of 90 to 94
    spring = {"answers": 12, "warned": 0.5, "labels": {"organ": 100.0, "lesion": 2.0}}
    later = {"answers": 5, "warned": None, "labels": {"organ": 92.0, "lesion": None}}
    assert document["sites"]["east"] == {"months": {"2026-03": spring, "2026-04": later}, "unit": "ml", "least": 5}
    assert document["sites"]["west"]["months"] == {"2026-04": later} and document["not_said"] == {}
    part = game.server.parts[ROLE]
    assert start_parts(game.study, SITES, None)[ROLE].restored(part.state()).document == document


def test_classes_are_counted_and_those_of_few_patients_withheld_with_the_next_smallest(ask):
    counts = {"a": 30, "b": 7, "c": 2}
    labels = dict(enumerate(counts))
    said = [record(f"{name}{n}", label_name=name) for name, count in counts.items() for n in range(count)]
    _, _, document = ask({"east": said}, make_study("classification", labels))
    assert document["sites"]["east"]["months"]["2026-03"]["labels"] == {"a": 30, "b": None, "c": None}
    # The answers of one patient are of two classes: those withheld are of four patients, and not of eight.
    shared = [record(n, label_name=name) for name in "bc" for n in range(4)]
    shared += [record(f"a{n}", label_name="a") for n in range(9)]
    _, _, document = ask({"east": shared}, make_study("classification", labels), folder="again")
    assert document["sites"]["east"]["months"]["2026-03"]["labels"] == {"a": None, "b": None, "c": None}


def test_a_finding_is_counted_where_enough_patients_have_it_and_enough_have_it_not(ask):
    study = make_study("multilabel", {0: "common", 1: "half"})
    said = [record(n, findings=["common"] * (n < 18) + ["half"] * (n < 10)) for n in range(20)]
    _, _, document = ask({"east": said}, study)
    assert document["sites"]["east"]["months"]["2026-03"]["labels"] == {"common": None, "half": 10}


def test_months_and_sites_of_few_patients_are_said_to_be_withheld_and_never_zero(ask):
    few = [record(n % 4) for n in range(40)] + [record(n, "2026-04") for n in range(5)]
    nameless = [record(n, dicom={}, volumes_ml={"organ": 1.0}) for n in range(40)]
    _, results, document = ask({"east": few, "north": nameless, "west": few[:30]})
    assert document["sites"]["east"]["months"]["2026-03"] == {"answers": None, "warned": None, "labels": {}}
    why = "fewer than 5 patients in every month"
    assert document["not_said"] == dict.fromkeys(("north", "west"), why)
    assert f"west says nothing: {why}" in results.model


def test_a_few_new_patients_cannot_be_counted_by_asking_again_a_month_later(ask):
    march = [record(n) for n in range(6)]
    april = [record(n, "2026-04") for n in range(20, 23)]
    sent = []
    for folder, records in {"first": march, "second": march + april}.items():
        game, *_ = ask({"east": records}, folder=folder)
        sent.append(game.answers[ROLE]["east"].meta)
    assert sent[0]["num_patients"] == sent[1]["num_patients"] == 6
    assert sent[1][ROLE]["said"]["months"]["2026-04"]["answers"] is None
    _, _, document = ask({"east": april + [record(n, "2026-05") for n in range(30, 33)]}, folder="third")
    assert document["not_said"]["east"] == "fewer than 5 patients in every month"


def test_no_name_leaves_and_neither_another_models_answers_a_refused_input_or_this_month(ask):
    own = [record(n, warnings=["odd"]) for n in range(6)]
    others = [record(f"p{n}", super_model="e" * 64) for n in range(9)]
    refused = [{key: one[key] for key in ("input", "time", "super_model", "dicom")} | {"error": "x"} for one in own]
    now = [record(n, f"{datetime.now(UTC):%Y-%m}") for n in range(9)]
    game, _, document = ask({"east": own + others + refused + now})
    months = document["sites"]["east"]["months"]
    assert {month: one["answers"] for month, one in months.items()} == {"2026-03": 6}
    answer = json.dumps(game.answers[ROLE]["east"].meta)
    assert "Doe" not in answer and "1.2.3" not in answer and "odd" not in answer


def test_a_broken_record_stays_at_the_site_and_its_answer_is_a_fault_without_its_name(ask, tmp_path, caplog):
    good = [record(n) for n in range(6)]
    odd = [record(n, volumes_ml={"Doe^9": 1.0}) for n in range(6)]
    game, results, document = ask({"east": good, "north": [{"input": "Doe^1.dcm"}], "west": odd})
    assert document["sites"].keys() == {"east"} and results.status == "INCOMPLETE"
    reasons = document["not_said"]
    assert "settings have a fault" in reasons["north"] and "data have a fault" in reasons["west"]
    assert "Doe" not in json.dumps(reasons)
    assert "a/prediction.json must hold answers with their time" in caplog.text
    assert "answers must have the study's task and labels, not 'Doe^9'; move them away" in caplog.text


def test_a_study_of_another_task_gets_nothing_since_what_is_withheld_could_follow_from_it(ask, caplog):
    said = [record(n, label_name="a") for n in range(9)]
    _, _, document = ask({"east": said}, make_study("multilabel", {0: "a", 1: "b"}))
    assert document["sites"].keys() == set() and "data have a fault" in document["not_said"]["east"]
    assert "answers must have the study's task and labels, not 'classification'" in caplog.text


def test_a_folder_that_is_missing_is_named_at_the_site_alone(play, tmp_path, caplog):
    game = play(study=make_study(), data=tmp_path / "nowhere")
    tests = game.finish()
    assert {*tests.missing.values()} == {"the site's data have a fault; the site's own log names it"}
    assert "data of site.yaml must name a folder with answers of predict or serve, not" in caplog.text


def test_nothing_leaves_a_site_that_has_not_allowed_it_and_the_record_of_what_left_names_it(ask):
    game, *_ = ask({site: [record(n) for n in range(6)] for site in SITES})
    answer, request = game.answers[ROLE]["east"], Request(ROLE, "run", 0, 1)
    gate = Gate.of(game.study, game.settings)
    assert gate.refusal(request, answer) is None
    first, numbers = gate.records(request, answer)
    assert (first["kind"], numbers["kind"]) == (ROLE, "numbers") and "for each month" in first["purpose"]
    closed = Gate.of(game.study, game.settings.model_copy(update={"may_leave": ("weights", "evaluation")}))
    assert f"leave, not {ROLE}" in closed.refusal(request, answer)


def test_an_answer_with_more_than_months_is_refused(ask):
    def change(task, site, answer):
        return Message(
            meta=answer.meta | {ROLE: answer.meta[ROLE] | ({"patients": ["Doe^1"]} if site == "north" else {})}
        )

    game, *_ = ask({site: [record(n) for n in range(6)] for site in SITES}, change=change)
    assert game.server.parts[ROLE].document["sites"].keys() == {"east", "west"}
