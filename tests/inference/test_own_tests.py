from dataclasses import replace

import pytest

from silofl.core.operating_point import OperatingPoint
from silofl.inference.card import model_card
from silofl.inference.own_tests import describe_quality, list_low_labels, list_not_learnt
from silofl.study.sections import DoNotUseSettings

FINDINGS = {0: "effusion", 1: "nodule"}


def site_score(labels, **operating_point):
    return {"value": 0.7, "num_cases": 9, "num_excluded": 0, "labels": labels, "calling": operating_point}


@pytest.fixture
def called(make_contents, make_study):
    """A model that finds no tumour from one half on, and 0.889 of them from its threshold on."""
    read = {"thresholds": {"1": 0.1}, "sensitivity": {"1": 0.889}, "specificity": {"1": 0.75}}
    facts = {"test": {"north": site_score({"0": 1.0, "1": 0.0}, **read)}}
    made = make_contents("only", study=make_study("classification"))
    study = made.study.model_copy(update={"do_not_use": DoNotUseSettings(label_below=0.7)})
    return replace(made, study=study, facts=facts, operating_point=OperatingPoint(1.0, {1: 0.1}))


def test_a_model_with_a_threshold_is_judged_at_it(called):
    assert list_not_learnt(called) == [] and list_low_labels(called) == []
    # the first class is found where the second is not called
    assert describe_quality(called) == "recall in test: normal 0.75, tumour 0.89"
    at_half = replace(called, operating_point=OperatingPoint())
    assert list_not_learnt(at_half) and list_low_labels(at_half)
    assert describe_quality(at_half) == "recall in test: normal 1.00, tumour 0.00"


def test_recall_at_one_half_says_nothing_beside_a_threshold(called):
    validated = replace(called, facts={"validation": {"north": site_score({"0": 1.0, "1": 0.0})}})
    assert list_not_learnt(validated) == [] and describe_quality(validated) == ""
    assert list_low_labels(validated) == [
        "the recall of normal is not known, and the study asks for 0.70",
        "the recall of tumour is not known, and the study asks for 0.70",
    ]


def test_each_finding_is_judged_at_its_own_threshold(make_contents, make_study):
    study = make_study("multilabel", labels=FINDINGS)
    labels = {"0": 0.0, "no effusion": 1.0, "1": 0.0, "no nodule": 0.9}
    read = {"thresholds": {"0": 0.2}, "sensitivity": {"0": 0.8}, "specificity": {"0": 0.6}}
    facts = {"test": {"north": site_score(labels, **read)}}
    made = replace(make_contents("only", study=study), facts=facts, operating_point=OperatingPoint(1.0, {0: 0.2}))
    assert describe_quality(made) == "recall in test: effusion 0.80, nodule 0.00"
    assert [sentence.partition(" (")[0] for sentence in list_not_learnt(made)] == ["the model cannot recognise nodule"]
    row = next(line for line in model_card(made, {}, "").splitlines() if line.startswith("| north"))
    assert [cell.strip() for cell in row.split("|")][3:7] == ["0.800", "0.600", "0.000", "0.900"]
    assert "decision threshold" in model_card(made, {}, "")


def test_answers_that_may_be_guesses_are_called_so(make_contents, make_study):
    made = make_contents("only", study=make_study("classification"))

    def judge(accuracy, cases=10, **more):
        values = {"also": {"accuracy": accuracy}, "label_cases": {"0": cases, "1": cases}}
        test = site_score({"0": accuracy, "1": accuracy}) | values
        return list_not_learnt(replace(made, facts={"test": {"north": test, "south": test}} | more))

    sentence = "the model is not shown to be better than guessing: accuracy 0.550 in 40 test cases, 0.500 by always"
    (text,) = judge(0.55)
    assert text.startswith(sentence)
    assert judge(0.9) == [] and judge(0.5, cases=1) == [] and judge(0.5)[0].startswith("the model is not better than")
    of_one_site = replace(
        made, facts=site_score({"0": 0.5, "1": 0.5}) | {"also": {"accuracy": 0.5}, "label_cases": {"0": 20, "1": 20}}
    )
    assert list_not_learnt(of_one_site)[0].startswith("the model is not better than guessing")
