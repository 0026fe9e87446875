"""The list of facts: each is stated where it holds, and the terminal and the page print the same ones."""

from pathlib import Path

import pytest

from silofl.base.schema import dump_record
from silofl.core.gain import WORSE
from silofl_desk.report.facts import list_sentences
from silofl_desk.report.run_page import make_run_page
from silofl_desk.report.run_records import RunRecords
from silofl_desk.report.sentences import (
    RUN_FACTS,
    describe_problems,
    lead_sentence,
    list_incidents,
    list_result_notes,
    normalization_label,
    regions_text,
    remedy_sentence,
    split_sentence,
    unfinished_sentence,
)
from silofl_desk.studies.runs.print_results import print_results
from silofl_hospital.report.metrics import metric_sentence
from tests.report.conftest import joined

SPENT = {"epsilon": {"west": 2.5, "east": 1.25}, "delta": 0.001, "unit": "patient", "noise": 1.0, "clip": 0.5}
SURFACE = {"hd95": 12.25, "surface_dice": 0.5, "num_cases": 1, "num_undefined": 3}
FAILED = {"a==1/overlap": {"value": None, "num_cases": 0, "has_failed": True}}
BY_LABEL = {"east": {"organ": 0.8}, "west": {"organ": 0.7, "lesion": 0.2}}
EMPTY = {"empty_cases": {"west": 3}, "false_positive_cases": {"west": 1}, "with_truth": {"west": 0.9}}


@pytest.mark.parametrize(
    ("level", "changes", "stated"),
    [
        *((level, {}, []) for level in ("bad", "warning", "limit", "note")),
        ("limit", {"sites": {"pooled": 0.5, "east": 0.5}}, []),
        ("limit", {"sites": {"pooled": 0.5}}, ["the data of all sites were pooled in one place"]),
        (
            "limit",
            {"local_models": {"east": {"rounds": 9, "best_round": 8, "is_finished": False}}},
            ["the site's local model is not known to be trained to its end at east: take more rounds."],
        ),
        ("limit", {"split_unit": "unknown"}, ["patients unknown: one person may be in training and test"]),
        (
            "limit",
            {"split_unit": "slices", "normalization": "batch_stateless"},
            [
                "same person in training and test: the data are split by slices;",
                "a prediction depends on the other",
                "the network has no BatchNorm to keep at home",
            ],
        ),
        ("limit", {"recipe": {"cautions": ["Poor."]}}, ["Poor."]),
        (
            "warning",
            {"by_label": {"east": {"organ": 0.9, "lesion": 0.02}}},
            ["the model cannot find lesion: Dice 0.020"],
        ),
        ("warning", {"by_label": {"east": {"organ": 0.9, "lesion": 0.02}, "west": {"lesion": 0.3}}}, []),
        ("note", {"withheld": {"east": {"least": 3}}}, ["site east withholds its test score: "]),
        (
            "note",
            {"by_label": BY_LABEL},
            ["Values are means over different labels and compare sites badly: east without lesion. Compare"],
        ),
        # A class that a site lacks is no label of its images.
        ("note", {"by_label": BY_LABEL, "metric": "accuracy"}, []),
        (
            "note",
            EMPTY,
            ["False positives in cases without any label, each of which counts as 0 in a Dice: west 1 of 3 ("],
        ),
        ("note", {"surface": {"east": SURFACE, "west": SURFACE | {"num_undefined": 0}}}, ["HD95 and surface Dice"]),
        ("note", {"extra_metrics": {"west": FAILED}}, ["overlap is a metric of the package a==1, mean over"]),
        ("note", {"privacy": SPENT}, ["Differential privacy of each patient in training"]),
    ],
)
def test_a_fact_is_stated_only_where_it_holds(results, level, changes, stated):
    found = list_sentences(RUN_FACTS, results(**changes), level)
    assert len(found) == len(stated) and all(map(str.startswith, found, stated))


def test_notes_name_sites_counts_and_numbers(results):
    changes = {"surface": {"east": SURFACE}, "extra_metrics": {"west": FAILED}, "privacy": SPENT} | EMPTY
    notes = list_result_notes(results(**changes))
    assert notes["Empty cases"].endswith("west 1 of 3 (0.900 over others).")
    assert notes["Surfaces"].endswith(" Cases without a distance, which do not count: east 3.")
    assert notes["Metrics of packages"].endswith(" It failed at west; the site's own log says how.")
    assert "epsilon 1.25 at east, 2.5 at west, with delta 0.001 (DP-SGD with noise 1 and clip 0.5)" in notes["Privacy"]


def test_a_site_that_withholds_classes_lacks_none(classes):
    """As of a selector's run with a floor: two sites have all classes, and the third does not say which it has."""
    counts = dict.fromkeys(("east", "north"), {"healthy": 6, "sick": 6}) | {"west": {"healthy": 6}}
    also = dict.fromkeys(counts, {"accuracy": 0.5, "balanced_accuracy": 0.5}) | {"west": {"accuracy": 0.5}}
    recalls = dict.fromkeys(("east", "north"), {"healthy": 0.5, "sick": 0.5}) | {"west": {"healthy": 0.5}}
    given = {"also": also, "label_cases": counts, "by_label": recalls, "sites": dict.fromkeys(counts, 0.5)}
    found = classes(**given, withheld={"west": {"least": 3, "names": ["ring", "sick"]}})
    assert [*list_result_notes(found)] == ["Withheld"]
    assert list_result_notes(found)["Withheld"].startswith("site west withholds its test score of ring, sick: ")
    assert found.mean_of_sites([0.25, 0.75, None], "balanced_accuracy") == 0.5
    # One that says so lacks them, and joins no mean.
    assert [*list_result_notes(classes(**given))] == ["Classes"]
    assert "west without sick" in list_result_notes(classes(**given, metric="balanced_accuracy", mean=None))["Labels"]


def test_a_class_that_is_never_recognised_is_named(classes):
    recalls = dict.fromkeys(("east", "west"), {"healthy": 1.0, "sick": 0.0})
    given = {"by_label": recalls, "also": dict.fromkeys(recalls, {"accuracy": 0.95})}
    given |= {"label_cases": {"east": {"healthy": 19, "sick": 9}, "west": {"healthy": 19, "sick": 0}}}
    sentence = "east: the model recognises no test case of sick (9): recall 0.000; see training.class_weights"
    ((tone, text),) = describe_problems(classes(**given))
    assert tone == "warning" and text.startswith(sentence)
    # One that is recognised at the site's threshold is not missed.
    read = {"temperature": 1.0, "thresholds": {"sick": 0.1}, "num_units": 9, "error": 0.1, "error_after": 0.1}
    read |= {"sensitivity": {"sick": 0.889}, "specificity": {"sick": 0.9}}
    assert describe_problems(classes(**given, operating_points_by_site={"east": read})) == []


@pytest.mark.parametrize(
    ("one", "stated"),
    [
        (joined(), []),
        (joined(local=0.0, federated=0.0, kept=0.0, verdict=WORSE), [("bad", "its model is near 0, 0.000")]),
        (
            joined(local=0.7, federated=0.8, kept=0.6, verdict=WORSE),
            [
                (
                    "bad",
                    "the model that it keeps scores 0.600, its local model 0.700 (25 patients: worse for its patients)",
                )
            ],
        ),
        (
            joined(local=0.38, kept=0.332, verdict="too few to say", num_test_units=6),
            [("warning", "the model that it keeps scores 0.332, its local model 0.380 (6 patients: too few to say)")],
        ),
        # below by less than the decimals that are shown
        (joined(kept=0.6998, local=0.7002, federated=0.7, verdict="no clear difference"), []),
        (joined(federated=0.6), [("warning", "the federated model scores 0.600, the hospital's local model 0.700")]),
        (joined(federated=0.696), []),
    ],
)
def test_of_a_site_that_stands_badly_the_worst_is_told(joining, one, stated):
    found = describe_problems(joining(sites={"east": one.test["federated"]}, east=one))
    assert found == [(tone, f"east: {sentence}") for tone, sentence in stated]


def test_the_same_incident_is_told_once_with_its_rounds(record):
    failed = {"failed": {"west": "disk full"}}
    outliers = {"outliers": {"west": {"cosine": -0.1, "amplitude": 10.0}}}
    ledger = [record(1, **failed, **outliers), record(2, **failed), record(3, **failed)]
    ledger += [record(5, **failed, **outliers, notes=["a b"]), record(6, notes=["a b"])]
    assert sorted(list_incidents(ledger)) == [
        "noted in rounds 5-6: a b",
        "west: failed in rounds 1-3, 5: disk full",
        "west: unlike the others in rounds 1, 5: its amplitude",
        "west: unlike the others in rounds 1, 5: its update points away from their mean",
    ]
    assert list_incidents([record(1), record(2)]) == []


def test_an_unfinished_and_a_failed_run_name_what_goes_on(tmp_path):
    simulated = unfinished_sentence(Path("my runs/a"), True, 3, 10)
    assert simulated.startswith("3 of 10 rounds are finished")
    assert simulated.endswith("interrupted; go on with: python -m silofl resume 'my runs/a'")
    served = unfinished_sentence(Path("runs/small-1"), False, 3, None)
    assert "The id is the name of the run's folder at the server (small-1, if" in served
    assert remedy_sentence(Path("a"), "COMPLETE", True) == remedy_sentence(Path("a"), "FAILED", False) == ""
    # One that its lead has followed.
    (tmp_path / "job").mkdir()
    command = f"python -m silofl continue {tmp_path} --kit KIT"
    assert unfinished_sentence(tmp_path, False, 3, None).endswith(f"go on with: {command}")
    assert remedy_sentence(tmp_path, "FAILED", False) == f"Remove the cause, then continue: {command}"


def test_metrics_regions_splits_and_normalisation_are_explained(results):
    assert "excluded" in metric_sentence("dice") and metric_sentence("hausdorff") == "The study's metric is hausdorff."
    assert "class" in metric_sentence("auroc") and "class" not in metric_sentence("auroc", has_findings=True)
    eye = {"labels": {"1": "rim", "2": "cup"}}
    assert regions_text(results(**eye)) == ""
    assert regions_text(results(**eye, regions={"disc": [1, 2], "cup": [2]})) == "disc (rim and cup), cup (cup)"
    assert normalization_label("batch_stateless").endswith("(a prediction depends on the other images of its batch)")
    assert (normalization_label("group"), normalization_label(None)) == ("group", "-")
    assert split_sentence("patient") == split_sentence(None) == "by patient"
    assert split_sentence("slices") == "by slices, same person in training and test"
    assert split_sentence("unknown") == "by examples, patients unknown"


def score_classes(classes, accuracy, auroc=0.5, cases=25, **changes):
    also = {site: {"accuracy": accuracy, "balanced_accuracy": accuracy, "auroc": auroc} for site in ("east", "west")}
    counts = {site: {"healthy": cases, "sick": cases} for site in also}
    recalls = {site: {"healthy": accuracy, "sick": accuracy} for site in also}
    sites = dict.fromkeys(also, accuracy)
    return classes(sites=sites, also=also, label_cases=counts, by_label=recalls, **changes)


def test_that_models_guess_is_the_lead_and_no_further_problem(classes):
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
    # Nothing is known of a local model's metric by guessing.
    assert "guessing" not in lead_sentence(score_classes(classes, 0.48, metric="auprc", joining=poor))


def test_findings_are_judged_by_their_order(findings):
    counts = {"effusion": 20, "no effusion": 20, "nodule": 20, "no nodule": 20}
    cases = dict.fromkeys(("east", "west"), counts)
    for area, is_said in ((0.52, True), (0.9, False)):
        also = dict.fromkeys(cases, {"accuracy": 0.5, "balanced_accuracy": 0.5, "auroc": area})
        text = lead_sentence(findings(label_cases=cases, also=also))
        assert (f"AUROC {area:.3f} in 80 test cases, 0.500 by guessing" in text) == is_said


def test_report_and_terminal_say_that_the_models_guess(classes, printed):
    # Also where each of two sites has a verdict on joining: nothing else counts.
    poor = {site: dump_record(joined(local=0.5, federated=0.48, kept=0.5)) for site in ("east", "west")}
    guessing, lead = score_classes(classes, 0.48, joining=poor), "No model of this run is better than guessing: "
    text = printed(print_results, guessing, width=300)
    assert "class. Try more rounds, or find a learning rate by silofl tune.\n" in text
    assert text.count(f"CAUTION  {lead}") == text.count("than guessing") == 1 and "Of 2 hospitals" not in text
    (banner, *_) = make_run_page(RunRecords(Path("run"), guessing, [], {}, {})).opening
    assert banner.tone == "warning" and banner.lead.startswith(lead) and "hospitals" not in banner.lead


def test_the_terminal_states_the_facts_with_their_levels(joining, results, printed):
    text = printed(print_results, joining(east=joined(verdict=WORSE, kept=0.6)), 300)
    assert text.index("east would do better with") < text.index("mean over sites")
    assert "BAD  east: the model that it keeps scores 0.600, its local model 0.700" in text
    text = printed(print_results, results(split_unit="slices", **EMPTY), 300)
    assert "CAUTION  same person in training and test: " in text and "\nFalse positives in cases" in text
