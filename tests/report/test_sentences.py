from pathlib import Path
from typing import get_args

import pytest

from silofl.report.sentences import (
    caveats,
    describe_problems,
    list_incidents,
    metric_sentence,
    normalization_label,
    privacy_sentence,
    regions_text,
    remedy_sentence,
    split_sentence,
    unfinished_sentence,
)
from silofl.study_sections import SplitUnit


def test_the_same_incident_is_told_once_with_its_rounds(record):
    ledger = [record(i, failed={"west": "disk full"}) for i in (1, 2, 3, 5)] + [record(6, late=["east"])]
    assert list_incidents(ledger) == [
        "west: failed in rounds 1-3, 5: disk full",
        "east: late in round 6: no answer in time",
    ]


def test_withheld_names_are_counted_and_the_first_shown(record):
    names = ["a.weight", "b.weight", "c.weight", "d.weight"]
    (sentence,) = list_incidents([record(1, withheld={"east": names})])
    assert sentence == "east: withheld by its policy in round 1: 4 arrays (a.weight, b.weight, c.weight, ...)"


def test_who_is_unlike_the_others_is_told_once_with_the_rounds(record):
    ledger = [record(i, unlike={"west": {"cosine": -0.1 * i, "amplitude": 10.0}}) for i in (1, 2)]
    assert list_incidents(ledger) == [
        "west: unlike the others in rounds 1-2: its update points away from their mean",
        "west: unlike the others in rounds 1-2: its amplitude",
    ]


def test_a_smooth_run_has_no_incidents(record):
    assert list_incidents([record(1), record(2)]) == []


def test_a_note_is_told_with_its_rounds(record):
    note = "site 'b' shares no statistics (fewer than 20 examples): it listens to all sites equally"
    assert list_incidents([record(i, notes=[note]) for i in (3, 4)]) == [f"noted in rounds 3-4: {note}"]


def test_an_unfinished_simulation_names_the_command_that_goes_on():
    sentence = unfinished_sentence(Path("runs/a"), True, 3, 10)
    assert sentence.startswith("3 of 10 rounds are finished")
    assert "running or interrupted; go on with: python -m silofl resume runs/a" in sentence


def test_an_unfinished_run_at_a_server_names_the_setting_that_goes_on():
    sentence = unfinished_sentence(Path("runs/small-1"), False, 3, None)
    assert "set continue_run in study.yaml to its id, by which the server calls its folder (small-1, where" in sentence


def test_a_run_that_its_lead_has_followed_names_the_command_that_goes_on(tmp_path):
    (tmp_path / "job").mkdir()
    command = f"python -m silofl continue {tmp_path} --kit KIT"
    assert unfinished_sentence(tmp_path, False, 3, None).endswith(f"go on with: {command}")
    assert remedy_sentence(tmp_path, "FAILED", False).endswith(f"go on with it: {command}")


@pytest.mark.parametrize(("status", "is_simulation"), [("COMPLETE", True), ("FAILED", False)])
def test_only_a_failed_simulation_has_a_remedy(status, is_simulation):
    assert remedy_sentence(Path("a"), status, is_simulation) == ""
    assert "resume a" in remedy_sentence(Path("a"), "FAILED", True)
    assert remedy_sentence(Path("my runs/a"), "FAILED", True).endswith("silofl resume 'my runs/a'")


def test_each_metric_is_defined_and_an_unknown_one_named():
    assert "excluded" in metric_sentence("dice")
    assert "background" in metric_sentence("dice_with_background")
    assert "right" in metric_sentence("accuracy")
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
    assert normalization_label("batch_stateless").endswith("(a prediction depends on the batch it stands in)")
    assert normalization_label("group") == "group"
    assert normalization_label(None) == "-"


def test_caveats_are_said_only_where_they_hold(results):
    assert caveats(results()) == []
    found = caveats(results(split_unit="slices", normalization="batch_stateless"))
    assert found[0].startswith("same person in training and test")
    assert found[1].startswith("a prediction depends on the batch it stands in")


def test_batchnorm_that_sites_exclude_is_a_caveat(results):
    sentence = "BatchNorm excluded at east, west: each site goes on with its own from here on, as in FedBN"
    assert caveats(results(batchnorm=sentence)) == [f"{sentence}."]


def test_a_run_on_pooled_data_says_that_it_is_no_federation(results):
    assert caveats(results(sites={"pooled": 0.5, "east": 0.5})) == []
    (sentence,) = caveats(results(sites={"pooled": 0.5}))
    assert sentence.startswith("the data of all sites were pooled in one place, which only a simulation can do")


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ("slices", "the data are split by slice;"),
        ("recordings", "by recording, so that recordings are apart but not persons;"),
        ("examples", "by single examples, and examples of one recording stand in both;"),
        ("beats", "the data are split by beats;"),
    ],
)
def test_every_split_that_is_not_by_patient_says_who_is_in_both(results, unit, words):
    assert split_sentence(unit).startswith(f"by {unit}, same person in training and test")
    caveat = caveats(results(split_unit=unit))[0]
    assert caveat.startswith("same person in training and test") and words in caveat


def test_every_split_that_a_study_knows_has_a_sentence_of_its_own(results):
    for unit in {*get_args(SplitUnit)} - {"patient"}:
        assert f"split by {unit};" not in caveats(results(split_unit=unit))[0]


def test_unknown_patients_are_said_to_be_unknown(results):
    (caveat,) = caveats(results(split_unit="unknown"))
    assert caveat.startswith("patients unknown: one person may be in training and test")
    assert split_sentence("unknown") == "by examples, patients unknown: one person may be in training and test"


def test_recordings_are_said_to_be_apart_and_examples_to_share_them():
    assert "recordings are apart" in split_sentence("recordings")
    assert "apart" not in split_sentence("examples")


def test_a_split_by_patient_has_no_catch():
    assert split_sentence("patient") == split_sentence(None) == "by patient"


def test_a_class_of_which_no_test_case_is_recognised_is_named_with_the_accuracy_that_hides_it(classes):
    recalls = {"east": {"healthy": 1.0, "sick": 0.0}, "west": {"healthy": 0.9, "sick": 0.5}}
    cases = {site: {"healthy": 19, "sick": 1} for site in recalls}
    also = {site: {"accuracy": 0.95, "balanced_accuracy": 0.5} for site in recalls}
    found = describe_problems(classes(by_label=recalls, label_cases=cases, also=also))
    assert found == [
        (
            "warning",
            "east: no test case is recognised of sick (1): recall 0.000 beside an accuracy of 0.950; see "
            "training.class_weights, training.sampler and metric: balanced_accuracy",
        )
    ]
