import pytest

from silofl.report.super_sentences import (
    choices_sentence,
    is_ensemble,
    model_meanings,
    shortfalls,
    threshold_sentence,
    unseen_sentence,
)


def test_every_model_is_told_in_words(super_results):
    assert [name for name, _ in model_meanings(super_results())] == ["global", "personal", "super", "ensemble"]


def test_an_ensemble_says_that_the_super_model_is_one(super_results):
    averaged = super_results(recipe={"answer": "ensemble"})
    assert is_ensemble(averaged) and not is_ensemble(super_results())
    assert "both columns are equal" in dict(model_meanings(averaged))["super"]
    assert "here the ensemble answers" in choices_sentence(averaged)


def test_where_the_super_model_loses_is_said_with_both_values():
    values = {"super": {"a": 0.5, "b": 0.75}, "personal": {"a": 0.6, "b": 0.7504}, "global": {"a": 0.5, "b": None}}
    assert shortfalls(values) == [
        "The super model is below the site's own personalised model at 1 of 2 sites: a (0.500 against 0.600).",
        "The super model is nowhere below the global model.",
    ]


def test_without_values_nothing_is_compared():
    assert shortfalls({"super": {"a": None}, "personal": {"a": 0.5}, "global": {}}) == []


def test_a_tuned_threshold_says_on_what(super_results):
    sentence = threshold_sentence(super_results())
    assert sentence.startswith("The threshold gamma is 0.9: a site's model answers where")
    assert "tuned on the sites' validation cases: each site sent only its sums by threshold" in sentence


def test_a_threshold_that_could_not_be_tuned_says_so(super_results):
    assert "No site had validation cases" in threshold_sentence(super_results(threshold=1.0, validation={}))


def test_a_fixed_threshold_says_so(super_results):
    assert threshold_sentence(super_results(recipe={"threshold": 0.9})).endswith("The study fixed it.")


def test_without_a_threshold_the_most_probable_model_answers(super_results):
    assert threshold_sentence(super_results(threshold=None)).startswith("No threshold is used")
    assert choices_sentence(super_results(threshold=None)).endswith("its model answered.")


@pytest.mark.parametrize(
    ("unseen", "sentence"),
    [
        (
            {"site": "south", "num_cases": 1, "value": 0.5, "threshold": 0.3},
            "Site south took no part in the training. There the super model reaches dice 0.500 over 1 case, "
            "with the threshold gamma = 0.3 that the training sites found.",
        ),
        ({}, "This site took no part in the training. There the super model reaches dice -."),
    ],
)
def test_a_left_out_site_is_told_as_far_as_it_is_known(unseen, sentence):
    assert unseen_sentence(unseen, "dice") == sentence
