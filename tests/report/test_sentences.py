from pathlib import Path
from typing import get_args

import pytest

from silofl.algorithms.recipe import Recipe
from silofl.report.sentences import (
    caveats,
    metric_sentence,
    normalization_label,
    recipe_answers,
    remedy_sentence,
    split_sentence,
    unfinished_sentence,
)
from silofl.study import SplitUnit


def answers(**changes):
    recipe = Recipe(**changes)
    return [answer for _, answer in recipe_answers(vars(recipe))]


def test_the_plain_recipe_says_that_nothing_special_is_done():
    amplitude, step, home, mixing = answers()
    assert amplitude.startswith("Not:") and step.startswith("Plain:") and home.startswith("Nothing:")
    assert mixing == "Every site gets the same weighted mean; a site's weight is its number of training examples."


@pytest.mark.parametrize(
    ("band", "words"), [("full", "of all frequencies"), (0, "of the mean intensity alone"), (3, "up to radius 3")]
)
def test_the_band_of_amplitude_normalisation_is_told(band, words):
    assert words in answers(amplitude_band=band)[0]


def test_a_step_is_told_with_its_constant():
    assert "alpha = 0.2" in answers(step="perturbed", perturbation=0.2)[1]
    assert "mu = 0.3" in answers(step="proximal", proximal=0.3)[1]


def test_a_server_learning_rate_is_told_when_it_changes_something():
    assert "learning rate 0.5" in answers(server_lr=0.5)[3]


def test_local_training_listens_to_nobody():
    assert answers(stays_home="everything")[2:] == [
        "Everything: each site trains alone and sends only its scores.",
        "Nobody: no weights travel.",
    ]


def test_softpull_tells_lambda_and_the_global_model_beside_it():
    alone, both = (answers(mixing="softpull", selector=selector) for selector in ("none", "gradients"))
    assert "keeps lambda = 0.7 of itself" in alone[3] and "global model" not in alone[3]
    assert "The global model beside it is the weighted mean" in both[3]


@pytest.mark.parametrize(
    ("selector", "words"),
    [("gradients", "takes 1 step(s)"), ("local_steps", "local steps"), ("moments", "Adam's moments")],
)
def test_a_selector_tells_how_it_learns(selector, words):
    assert words in answers(mixing="softpull", selector=selector)[4]


def test_an_answer_of_another_version_is_shown_as_it_is():
    assert recipe_answers({"step": "sideways", "mixing": "ring", "weights": "uniform"})[1][1] == "sideways"


def test_an_unfinished_simulation_names_the_command_that_goes_on():
    sentence = unfinished_sentence(Path("runs/a"), True, 3, 10)
    assert sentence.startswith("3 of 10 rounds are finished")
    assert "running or interrupted; resume with: python -m silofl resume runs/a" in sentence


def test_an_unfinished_run_at_a_server_names_the_setting_that_goes_on():
    assert "set continue_run: small-1 in study.yaml" in unfinished_sentence(Path("runs/small-1"), False, 3, None)


@pytest.mark.parametrize(("status", "is_simulation"), [("COMPLETE", True), ("FAILED", False)])
def test_only_a_failed_simulation_has_a_remedy(status, is_simulation):
    assert remedy_sentence(Path("a"), status, is_simulation) == ""
    assert "resume a" in remedy_sentence(Path("a"), "FAILED", True)


def test_each_metric_is_defined_and_an_unknown_one_named():
    assert "excluded" in metric_sentence("dice")
    assert "background" in metric_sentence("dice_with_background")
    assert "right" in metric_sentence("accuracy")
    assert metric_sentence("hausdorff") == "The study's metric is hausdorff."


def test_stateless_batchnorm_carries_its_catch():
    assert normalization_label("batch_stateless").endswith("(a prediction depends on the batch it stands in)")
    assert normalization_label("group") == "group"
    assert normalization_label(None) == "-"


def test_caveats_are_said_only_where_they_hold(results):
    assert caveats(results()) == []
    found = caveats(results(split_unit="slices", normalization="batch_stateless"))
    assert found[0].startswith("same person in training and test")
    assert found[1].startswith("a prediction depends on the batch it stands in")


def test_a_head_at_home_is_told():
    assert answers(stays_home="head")[2].startswith("The head, the last layer, which decides (FedPer)")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "the BatchNorm layers' own, taken after half of the rounds of FedBN (f-AdaFed)"),
        ({"statistics_rounds": 3, "refresh_every": 5}, "taken after 3 round(s) of FedBN, and anew every 5 round(s)"),
        (
            {"statistics": "pretrained"},
            "mean and variance of the inputs of every BatchNorm layer in a pretrained model",
        ),
        ({"statistics": "pretrained", "statistics_layers": "last"}, "inputs of the last layer (d-AdaFed)"),
    ],
)
def test_adafed_tells_lambda_and_the_statistics_that_sites_are_compared_by(changes, words):
    mixing = answers(mixing="adafed", self_weight=0.5, stays_home="batchnorm", **changes)[3]
    assert "keeps lambda = 0.5 of itself" in mixing and words in mixing


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


def test_recordings_are_said_to_be_apart():
    assert "recordings are apart" in split_sentence("recordings")
    assert "apart" not in split_sentence("examples")


def test_a_split_by_patient_has_no_catch():
    assert split_sentence("patient") == split_sentence(None) == "by patient"
