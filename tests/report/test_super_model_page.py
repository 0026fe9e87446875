import re

import pytest

from silofl_desk.report.left_out_site import unseen_section, unseen_sentence
from silofl_desk.report.run_records import read_run
from silofl_desk.report.super_model_page import (
    describe_right,
    model_table,
    selector_counts,
    super_model_sections,
    threshold_sentence,
)
from silofl_hospital.report.page import Text


def test_a_run_without_selector_has_nothing_to_say_of_one(finished):
    assert super_model_sections(read_run(finished())) == [] and unseen_section(None, "fedsm") is None


def test_a_result_with_nothing_but_its_models_is_shown(run, super_results):
    nothing = {"outputs": ["east"], "cases": {"east": {}}}
    found = super_results(selector=nothing, choices={}, threshold=None)
    _, section = super_model_sections(read_run(run().json("results.json", found).path))
    (only,) = section.blocks
    assert only.text.startswith("No threshold is used: the selector knows the global model too")


def test_each_site_has_its_own_personal_value(super_results):
    table = model_table(super_results())
    assert table.columns == ("site", "global", "personal", "super", "ensemble")
    assert table.rows == (
        ("east", "0.400", "0.600", "0.500", "0.550"),
        ("west", "0.700", "0.750", "0.750", "0.650"),
        # the means of the two rows above
        ("mean over sites", "0.550", "0.675", "0.625", "0.600"),
    )
    assert not table.best_cells
    untested = super_results(sites={"east": 0.5, "west": 0.75, "south": None})
    *_, south, mean = model_table(untested).rows
    assert south == ("south", *"----") and mean[:2] == ("mean over 2 of 3 sites", "0.550")


def test_the_selectors_right_answers_are_counts_on_the_diagonal(finished_super):
    outputs, counted = ("east", "west"), {"west": {"west": 10}, "east": {"east": 3, "west": 1}}
    counts = selector_counts(outputs, counted)
    # three of east's four, the other for west
    assert counts.content.rows == (("east", "3", "1"), ("west", "0", "10"))
    assert counts.shares == {(0, 1): 0.75, (0, 2): 0.25, (1, 1): 0, (1, 2): 1}
    assert describe_right(outputs, counted) == "13 of 14"
    # A selector of best models has no right answers.
    assert describe_right(("global", "east", "west"), {"east": {"global": 2}}) == ""
    assert selector_counts(("east",), {}) is selector_counts(("east",), {"east": {}}) is None
    _, selector = super_model_sections(read_run(finished_super()))
    notes = [str(block.text) for block in selector.blocks if isinstance(block, Text)]
    assert any("Right answers are on the diagonal: 5 of 5." in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, r"The threshold gamma is 0.9 \(tuned on .*, otherwise the global model, here in 2 of 7 test cases."),
        ({"recipe": {"threshold": "fixed"}}, r"The threshold gamma is 0.9 \(fixed\): a site's model answers where"),
        ({"threshold": None}, "No threshold is used: the selector knows the global model too"),
        ({"recipe": {"weighs_models": True}}, "No threshold is used: the ensemble answers."),
    ],
)
def test_a_threshold_says_its_effect_and_its_origin(super_results, changes, sentence):
    assert re.match(sentence, threshold_sentence(super_results(**changes)))


def test_a_left_out_site_is_told_in_a_sentence(unseen, unseen_plain):
    assert unseen_sentence(unseen(num_cases=1)) == (
        "Site coast took no part in the training. There the super model reaches dice 0.600 over 1 case, "
        "with the threshold gamma = 0.9 that the training sites found. Cases by the model that was chosen for them: "
        "global 3, north 1."
    )
    assert unseen_sentence(unseen_plain(value=None)).endswith("reaches dice - over 4 cases.")
    # Without a value nothing is set beside the local models.
    first = unseen_section(unseen_plain(value=None, own={"east": None}), "fedavg").blocks[0]
    assert first.text.startswith("Site coast took no part")
