from pathlib import Path
from typing import get_args

import pytest

from silofl.base.schema import dump_record
from silofl.study.data_settings import SplitUnit
from silofl_desk.report.run_page import make_run_page
from silofl_desk.report.run_records import RunRecords
from silofl_desk.report.sentences import (
    caveats,
    describe_problems,
    lead_sentence,
    list_incidents,
    list_result_notes,
    normalization_label,
    privacy_sentence,
    regions_text,
    remedy_sentence,
    split_sentence,
    unfinished_sentence,
)
from silofl_desk.studies.print_results import print_results
from silofl_hospital.report.metrics import metric_sentence
from tests.report.conftest import joined


def test_the_same_incident_is_told_once_with_its_rounds(record):
    failed = {"failed": {"west": "disk full"}}
    unlike = {"unlike": {"west": {"cosine": -0.1, "amplitude": 10.0}}}
    names = {"withheld": {"east": ["a.weight", "b.weight", "c.weight", "d.weight"]}}
    ledger = [record(1, **failed, **unlike), record(2, **failed, **names), record(3, **failed)]
    ledger += [record(5, **failed, **unlike, notes=["a b"]), record(6, late=["east"], notes=["a b"])]
    assert sorted(list_incidents(ledger)) == [
        "east: late in round 6: no answer in time",
        "east: withheld by its policy in round 2: 4 arrays (a.weight, b.weight, c.weight, ...)",
        "noted in rounds 5-6: a b",
        "west: failed in rounds 1-3, 5: disk full",
        "west: unlike the others in rounds 1, 5: its amplitude",
        "west: unlike the others in rounds 1, 5: its update points away from their mean",
    ]
    assert list_incidents([record(1), record(2)]) == []


def test_an_unfinished_run_names_what_goes_on():
    simulated = unfinished_sentence(Path("runs/a"), True, 3, 10)
    assert simulated.startswith("3 of 10 rounds are finished")
    assert "running or interrupted; go on with: python -m silofl resume runs/a" in simulated
    served = unfinished_sentence(Path("runs/small-1"), False, 3, None)
    assert "The id is the name of the run's folder at the server (small-1, if" in served


def test_a_run_that_its_lead_has_followed_names_the_command_that_goes_on(tmp_path):
    (tmp_path / "job").mkdir()
    command = f"python -m silofl continue {tmp_path} --kit KIT"
    assert unfinished_sentence(tmp_path, False, 3, None).endswith(f"go on with: {command}")
    assert remedy_sentence(tmp_path, "FAILED", False).endswith(f"continue: {command}")


@pytest.mark.parametrize(("status", "is_simulation"), [("COMPLETE", True), ("FAILED", False)])
def test_only_a_failed_simulation_has_a_remedy(status, is_simulation):
    assert remedy_sentence(Path("a"), status, is_simulation) == ""
    assert "resume a" in remedy_sentence(Path("a"), "FAILED", True)
    assert remedy_sentence(Path("my runs/a"), "FAILED", True).endswith("silofl resume 'my runs/a'")


def test_each_metric_is_defined_and_an_unknown_one_named():
    assert "excluded" in metric_sentence("dice")
    assert "background" in metric_sentence("dice_with_background")
    assert "right" in metric_sentence("accuracy")
    assert "class" in metric_sentence("auroc") and "class" not in metric_sentence("auroc", has_findings=True)
    assert metric_sentence("hausdorff") == "The study's metric is hausdorff."


def test_what_differential_privacy_has_spent_is_said_by_site(results):
    assert privacy_sentence(results()) == ""
    spent = {"epsilon": {"west": 2.5, "east": 1.25}, "delta": 0.001, "unit": "patient", "noise": 1.0, "clip": 0.5}
    sentence = privacy_sentence(results(privacy=spent))
    assert sentence.startswith("Differential privacy of each patient in training")
    assert "epsilon 1.25 at east; 2.5 at west, at delta 0.001 (DP-SGD with noise 1 and clip 0.5)" in sentence


def test_regions_are_named_with_the_labels_of_their_unions(results):
    eye = {"labels": {"1": "rim", "2": "cup"}}
    assert regions_text(results(**eye)) == ""
    assert regions_text(results(**eye, regions={"disc": [1, 2], "cup": [2]})) == "disc (rim and cup), cup (cup)"


def test_stateless_batchnorm_carries_its_catch():
    assert normalization_label("batch_stateless").endswith("(a prediction depends on the other images of its batch)")
    assert normalization_label("group") == "group"
    assert normalization_label(None) == "-"


@pytest.mark.parametrize(
    ("changes", "beginnings"),
    [
        ({}, []),
        ({"sites": {"pooled": 0.5, "east": 0.5}}, []),
        ({"sites": {"pooled": 0.5}}, ["the data of all sites were pooled in one place, which only a simulation"]),
        (
            {"split_unit": "slices", "normalization": "batch_stateless"},
            ["same person in training", "a prediction depends on the other", "the network has no BatchNorm to keep"],
        ),
        ({"split_unit": "unknown"}, ["patients unknown: one person may be in training and test"]),
        ({"batchnorm": "BatchNorm excluded at east"}, ["BatchNorm excluded at east."]),
    ],
)
def test_caveats_are_said_only_where_they_hold(results, changes, beginnings):
    found = caveats(results(**changes))
    assert len(found) == len(beginnings) and all(map(str.startswith, found, beginnings))


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ("slices", "the data are split by slice;"),
        ("recordings", "by recording: no recording is in both, but a person may be;"),
        ("examples", "by single examples: examples of one recording may be in both;"),
        ("beats", "the data are split by beats;"),
    ],
)
def test_every_split_that_is_not_by_patient_says_who_is_in_both(results, unit, words):
    sentence, caveat = split_sentence(unit), caveats(results(split_unit=unit))[0]
    assert sentence.startswith(f"by {unit}, same person in training and test")
    assert ("no recording is in both" in sentence) == (unit == "recordings")
    assert caveat.startswith("same person in training and test") and words in caveat
    assert split_sentence("patient") == split_sentence(None) == "by patient"


def test_every_split_that_a_study_knows_has_a_sentence_of_its_own(results):
    for unit in {*get_args(SplitUnit)} - {"patient"}:
        assert f"split by {unit};" not in caveats(results(split_unit=unit))[0]
    assert split_sentence("unknown") == "by examples, patients unknown: one person may be in training and test"


@pytest.mark.parametrize(
    ("found", "not_found", "sentence"),
    [
        (0.0, 1.0, "east: the model recognises no test case of nodule (4)"),
        (1.0, 0.0, "east: the model finds nodule (2) in every test case without it"),
    ],
)
def test_a_finding_that_is_never_or_always_found_is_named(findings, found, not_found, sentence):
    recalls = {"east": {"nodule": found, "no nodule": not_found}, "west": {}}
    *_, (tone, text) = describe_problems(findings(by_label=recalls))
    assert tone == "warning" and text.startswith(sentence)


def test_a_class_of_which_no_test_case_is_recognised_is_named(classes):
    recalls = {"east": {"healthy": 1.0, "sick": 0.0}, "west": {"healthy": 0.9, "sick": 0.5}}
    cases = {site: {"healthy": 19, "sick": 1} for site in recalls}
    also = {site: {"accuracy": 0.95, "balanced_accuracy": 0.5} for site in recalls}
    sentence = (
        "east: the model recognises no test case of sick (1): recall 0.000; see training.class_weights and metric: "
        "balanced_accuracy"
    )
    assert describe_problems(classes(by_label=recalls, label_cases=cases, also=also))[-1] == ("warning", sentence)
    # Sites that miss the same classes share a sentence, with all their cases.
    both = classes(by_label=dict.fromkeys(recalls, recalls["east"]), label_cases=cases, also=also)
    found = [text for _, text in describe_problems(both) if "recognises" in text]
    ends = "recognises no test case of sick (2): recall 0.000; see training.class_weights"
    assert len(found) == 1 and found[0].startswith(f"east, west: the model {ends}")


def test_a_class_that_is_recognised_at_the_sites_threshold_is_not_missed(classes):
    recalls = {"east": {"healthy": 1.0, "sick": 0.0}, "west": {"healthy": 0.9, "sick": 0.5}}
    cases, also = ({site: one for site in recalls} for one in ({"healthy": 19, "sick": 9}, {"accuracy": 0.95}))
    for sensitivity, is_missed in ((0.889, False), (0.0, True)):
        read = {"temperature": 1.0, "thresholds": {"sick": 0.1}, "num_units": 9, "error": 0.1, "error_after": 0.1}
        read |= {"sensitivity": {"sick": sensitivity}, "specificity": {"sick": 0.9}}
        more = {"labels": {"0": "healthy", "1": "sick"}, "callings": {"east": read}}
        found = describe_problems(classes(by_label=recalls, label_cases=cases, also=also, **more))
        assert any("the model recognises no test case of sick (9)" in text for _, text in found) == is_missed


def score_classes(classes, accuracy, auroc=0.5, cases=25, **changes):
    also = {site: {"accuracy": accuracy, "balanced_accuracy": accuracy, "auroc": auroc} for site in ("east", "west")}
    counts = {site: {"healthy": cases, "sick": cases} for site in also}
    recalls = {site: {"healthy": accuracy, "sick": accuracy} for site in also}
    sites = dict.fromkeys(also, accuracy)
    return classes(sites=sites, also=also, label_cases=counts, by_label=recalls, **changes)


def test_that_no_model_is_better_than_guessing_is_the_lead_and_no_further_problem(classes):
    said = "No model of this run is better than guessing: accuracy 0.480 in 100 test cases"
    poor = score_classes(classes, 0.48)
    assert lead_sentence(poor).startswith(f"{said}, 0.500 by always answering the most frequent class.")
    assert describe_problems(poor) == [] == describe_problems(score_classes(classes, 0.9))
    assert lead_sentence(score_classes(classes, 0.9)) == ""
    # What hospitals say of a finished model has a sentence of its own.
    assert lead_sentence(score_classes(classes, 0.48, rounds=0)) == ""


def test_an_own_model_that_is_better_than_guessing_is_one(classes):
    own = {site: dump_record(joined(local=0.9, federated=0.48, kept=0.9)) for site in ("east", "west")}
    assert "guessing" not in lead_sentence(score_classes(classes, 0.48, joining=own))
    poor = {site: dump_record(joined(local=0.54, federated=0.48, kept=0.54)) for site in ("east", "west")}
    said = "is shown to be better than guessing: the best has accuracy 0.540 in 100 test cases, 0.500"
    assert said in lead_sentence(score_classes(classes, 0.48, joining=poor))
    # Nothing is known of an own model's metric by guessing.
    assert "guessing" not in lead_sentence(score_classes(classes, 0.48, metric="auprc", joining=poor))


def test_a_site_that_withholds_classes_is_not_said_to_lack_them(classes):
    """As of a selector's run with a floor: two sites have all classes, and the third does not say which it has."""
    counts = dict.fromkeys(("east", "north"), {"healthy": 6, "sick": 6}) | {"west": {"healthy": 6}}
    also = dict.fromkeys(counts, {"accuracy": 0.5, "balanced_accuracy": 0.5}) | {"west": {"accuracy": 0.5}}
    withheld = {"west": {"least": 3, "names": ["ring", "sick"]}}
    recalls = dict.fromkeys(("east", "north"), {"healthy": 0.5, "sick": 0.5}) | {"west": {"healthy": 0.5}}
    given = {"also": also, "label_cases": counts, "withheld": withheld, "by_label": recalls}
    found = classes(sites=dict.fromkeys(counts, 0.5), **given)
    assert "Labels" not in list_result_notes(found)
    assert found.mean_of_sites([0.25, 0.75, None], "balanced_accuracy") == 0.5
    # Of the metric by which the study chooses its value is over fewer classes, and joins no mean.
    balanced = classes(sites=dict.fromkeys(counts, 0.5), metric="balanced_accuracy", mean=None, spread=None, **given)
    note = list_result_notes(balanced)["Labels"]
    assert "west without sick (withheld, in none of a site's test cases, or in all); they have no mean" in note


def test_findings_are_judged_by_their_order(findings):
    counts = {"effusion": 20, "no effusion": 20, "nodule": 20, "no nodule": 20}
    cases = dict.fromkeys(("east", "west"), counts)
    for area, is_said in ((0.52, True), (0.9, False)):
        also = dict.fromkeys(cases, {"accuracy": 0.5, "balanced_accuracy": 0.5, "auroc": area})
        text = lead_sentence(findings(label_cases=cases, also=also))
        assert (f"AUROC {area:.3f} in 80 test cases, 0.500 by guessing" in text) == is_said


def test_the_head_of_the_report_and_the_terminal_say_that_the_models_guess(classes, printed):
    # Also where each of two sites has a verdict on joining: nothing else counts.
    poor = {site: dump_record(joined(local=0.5, federated=0.48, kept=0.5)) for site in ("east", "west")}
    for guessing in (score_classes(classes, 0.48), score_classes(classes, 0.48, joining=poor)):
        lead = "No model of this run is better than guessing: "
        text = printed(print_results, guessing, width=300)
        assert "class. Try more rounds, or find a learning rate by silofl tune.\n" in text
        assert text.count(f"CAUTION  {lead}") == text.count("than guessing") == 1 and "Of 2 hospitals" not in text
        page = make_run_page(RunRecords(Path("run"), guessing, [], {}, {}))
        (banner, *_), places = page.opening, [section.place for section in page.sections]
        assert banner.tone == "warning" and banner.lead.startswith(lead) and "hospitals" not in banner.lead
        assert not any("guessing" in one for one in banner.reasons) and ("joining" in places) == bool(guessing.joining)
