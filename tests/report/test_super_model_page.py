import pytest

from silofl.report.page import Group, Heading, Picture, Table
from silofl.report.run_records import read_run
from silofl.report.super_model_page import (
    alone_table,
    choice_table,
    choices_sentence,
    describe_choices,
    describe_right,
    is_ensemble,
    model_meanings,
    model_table,
    selector_counts,
    shortfalls,
    super_model_sections,
    threshold_sentence,
    threshold_table,
    unseen_section,
    unseen_sentence,
)
from silofl.studies.comparison import run_models_table
from silofl.studies.leave_out import gamma_table, print_unseen, unseen_table


def told(sentence, results):
    return sentence(results, results.super_model)


def headings_of(section):
    return [block.text for block in section.blocks if isinstance(block, Heading)]


def tables_of(section):
    return [block.content for block in section.blocks if isinstance(block, Table)]


def test_a_run_without_selector_has_nothing_to_say_of_one(finished):
    assert super_model_sections(read_run(finished())) == [] and unseen_section(None) is None


def test_a_run_with_a_selector_has_tables_and_its_map(finished_super):
    models, selector = super_model_sections(read_run(finished_super()))
    assert tables_of(models)[0].rows[-1][0] == "mean over sites"
    (counts,) = (block for block in selector.blocks if isinstance(block, Group))
    assert [group.blocks[0].text for group in counts.blocks] == [
        "<strong>Slice by slice</strong>: 13 of 14 right",
        "<strong>Case by case</strong>: 5 of 5 right",
    ]
    (image,) = (block.image for block in selector.blocks if isinstance(block, Picture))
    assert "PCA" in image.caption


def test_a_real_federations_run_has_no_map(run, super_results):
    _, selector = super_model_sections(read_run(run().json("results.json", super_results()).path))
    assert headings_of(selector) == ["What it takes the test images for", "Which model it chooses"]


def test_a_result_with_nothing_but_its_models_is_shown(run, super_results):
    nothing = {"outputs": ["east"], "cases": {"east": {}}, "slices": {}}
    results = super_results(selector=nothing, choices={}, by_threshold=[], threshold=None)
    _, selector = super_model_sections(read_run(run().json("results.json", results).path))
    (only,) = selector.blocks
    assert only.text.startswith("No threshold is used")


def test_values_by_threshold_are_accuracies_where_the_metric_is_balanced_accuracy(run, super_results):
    # Sites send sums over single cases, which have no balanced accuracy.
    results = super_results(metric="balanced_accuracy")
    _, selector = super_model_sections(read_run(run().json("results.json", results).path))
    assert tables_of(selector)[-1].rows[0][0] == "accuracy of the test cases"


def test_each_site_has_its_own_personal_value_and_one_seed_marks_no_best(super_results):
    table = model_table(super_results())
    assert table.columns == ("site", "global", "personal", "super", "ensemble")
    assert table.rows == (
        ("east", "0.400", "0.600", "0.500", "0.550"),
        ("west", "0.700", "0.750", "0.750", "0.650"),
        # the means of the two rows above
        ("mean over sites", "0.550", "0.675", "0.625", "0.600"),
    )
    assert not table.best_cells


def test_a_site_that_did_not_test_is_a_row_of_dashes(super_results):
    values = super_results(sites={"east": 0.5, "west": 0.75, "south": None})
    assert model_table(values).rows[-2:] == (
        ("south", "-", "-", "-", "-"),
        ("mean over 2 of 3 sites", "0.550", "0.675", "0.625", "0.600"),
    )


def test_the_selectors_right_answers_are_counts(super_results):
    selector = super_results().super_model.selector
    east, west = selector_counts(selector.outputs, selector.slices).rows
    assert (east.end, west.end) == ("3 of 4", "10 of 10")
    # three of east's four, the other for west
    assert [(cell.text, cell.share) for cell in east.cells] == [("3", 0.75), ("1", 0.25)]
    assert [(cell.text, cell.share) for cell in west.cells] == [("0", 0), ("10", 1)]
    assert describe_right(selector.outputs, selector.slices) == "13 of 14"


def test_rows_follow_the_outputs_so_that_right_answers_stand_on_the_diagonal(super_results):
    selector = super_results().super_model.selector
    counts = selector_counts(selector.outputs, selector.cases)
    assert list(counts.columns) == [row.name for row in counts.rows] == ["east", "west"]


def test_a_selector_of_best_models_has_no_right_answers():
    counts = selector_counts(("global", "east", "west"), {"east": {"global": 2}})
    assert counts.end == "" and [row.end for row in counts.rows] == [""]


@pytest.mark.parametrize("counted", [{}, {"east": {}}])
def test_without_counts_there_is_no_table_of_them(counted):
    assert selector_counts(("east",), counted) is None


def test_choices_are_counted_by_site_and_model(super_results):
    table = choice_table(super_results().super_model.choices)
    assert table.columns == ("test cases of", "global", "east", "west", "cases")
    assert table.rows == (("east", "0", "1", "0", "1"), ("west", "2", "0", "4", "6"), ("all sites", "2", "1", "4", "7"))
    assert choice_table({}) is None


def test_the_threshold_that_was_used_is_named_and_none_is_called_the_best():
    table = threshold_table({0.0: 0.5, 0.999: None}, 0.999, "dice")
    assert table.columns == ("threshold gamma", "0", "0.999 (used)")
    assert table.rows == (("dice of the test cases", "0.500", "-"),) and not table.best_cells


def test_local_fedavg_and_the_models_of_fedsm_stand_below_one_another(results, super_results):
    local = results(recipe={"stays_home": "everything"}, sites={"east": 0.3, "west": 0.8})
    fedavg = results(recipe={"stays_home": "nothing"}, sites={"east": 0.4, "west": None})
    table = run_models_table([local, fedavg, super_results()], ["1: local", "2: fedavg", "3: fedsm"])
    assert table.columns == ("run", "model", "east", "west", "mean")
    assert table.rows[:3] == (
        ("1: local", "local: each site alone", "0.300", "0.800", "0.550"),
        ("2: fedavg", "global", "0.400", "-", "-"),
        ("3: fedsm", "global", "0.400", "0.700", "0.550"),
    )
    assert [row[1] for row in table.rows[3:]] == ["personal", "super", "ensemble"]
    assert not table.best_cells


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"stays_home": "nothing", "mixing": "softpull"}, "personal"),
        ({"stays_home": "everything", "sends_model_once": True}, "ensemble"),
        ({"stays_home": "nothing", "mixing": "shared", "takes_own_steps": True}, "personal"),
        ({"stays_home": "batchnorm", "mixing": "shared"}, "global but for BatchNorm"),
        ({"stays_home": "nothing", "mixing": "shared", "keeps_personal": True}, "personal"),
        ({}, "the run's model"),
    ],
)
def test_a_run_without_selector_names_its_one_model(results, super_results, recipe, words):
    assert run_models_table([results(recipe=recipe), super_results()], ["1", "2"]).rows[0][1] == words


def test_runs_without_models_and_runs_without_values_add_no_rows(results, super_results):
    assert run_models_table([results(), results()], ["1", "2"]) is None
    failed = results(status="FAILED")
    assert {row[0] for row in run_models_table([failed, super_results()], ["1", "2"]).rows} == {"2"}


def test_chosen_models_are_told_by_their_cases():
    assert describe_choices({"west": 1, "global": 3, "east": 0}) == "global 3, west 1"
    assert describe_choices({}) == ""


def test_every_model_is_told_in_words(super_results):
    assert [name for name, _ in model_meanings(super_results())] == ["global", "personal", "super", "ensemble"]


def test_an_ensemble_says_that_the_super_model_is_one(super_results):
    averaged = super_results(recipe={"constants": {"super_model": {"answer": "ensemble"}}})
    assert is_ensemble(averaged) and not is_ensemble(super_results())
    assert "both columns are equal" in dict(model_meanings(averaged))["super"]
    assert "here the ensemble answers" in choices_sentence(averaged, averaged.super_model)


def test_where_the_super_model_loses_is_said_with_both_values():
    values = {"super": {"a": 0.5, "b": 0.75}, "personal": {"a": 0.6, "b": 0.7504}, "global": {"a": 0.5, "b": None}}
    assert shortfalls(values) == [
        "The super model is below the site's own personalised model at 1 of 2 sites: a (0.500 against 0.600).",
        "The super model is nowhere below the global model.",
    ]


def test_without_values_nothing_is_compared():
    assert shortfalls({"super": {"a": None}, "personal": {"a": 0.5}, "global": {}}) == []


def test_a_tuned_threshold_says_on_what(super_results):
    sentence = told(threshold_sentence, super_results())
    assert sentence.startswith("The threshold gamma is 0.9: a site's model answers where")
    assert "tuned on the sites' validation cases: each site sent only its sums by threshold" in sentence


def test_a_threshold_of_1_says_that_the_super_model_is_the_global_one(super_results):
    sentence = told(threshold_sentence, super_results(threshold=1.0))
    assert sentence.startswith("The threshold gamma is 1: no score is above it, so that the global model is chosen for")
    assert "tuned on the sites' validation cases" in sentence


def test_a_threshold_that_could_not_be_tuned_says_so(super_results):
    assert "No site had validation cases" in told(threshold_sentence, super_results(threshold=1.0, validation={}))


def test_a_fixed_threshold_says_so(super_results):
    assert told(threshold_sentence, super_results(recipe={"constants": {"super_model": {"threshold": 0.9}}})).endswith(
        "The study fixed it."
    )


def test_without_a_threshold_the_most_probable_model_answers(super_results):
    assert told(threshold_sentence, super_results(threshold=None)).startswith("No threshold is used")
    assert told(choices_sentence, super_results(threshold=None)).endswith("its model answered.")


ONE_EXCHANGE = {"sends_model_once": True, "constants": {"hand_over": {"answer": "choice"}}}
WITHOUT_GLOBAL = {
    "recipe": ONE_EXCHANGE,
    "threshold": None,
    "by_threshold": [],
    "models": {
        "east": {"east": 0.5, "west": 0.25, "ensemble": 0.4, "super": 0.5},
        "west": {"east": 0.1, "west": 0.75, "ensemble": 0.5, "super": 0.75},
    },
}


def test_models_of_one_exchange_stand_without_a_global_one(super_results):
    found = super_results(**WITHOUT_GLOBAL)
    table = model_table(found)
    assert table.columns == ("site", "personal", "super", "ensemble")
    assert table.rows[0] == ("east", "0.500", "0.500", "0.400")
    assert [name for name, _ in model_meanings(found)] == ["personal", "super", "ensemble"]
    said = dict(model_meanings(found))
    assert "as it trained alone" in said["personal"] and "global" not in said["super"]
    assert told(threshold_sentence, found).startswith("No threshold is used: there is no global model")
    runs = run_models_table([found], ["oneshot"])
    assert [row[1] for row in runs.rows] == ["personal", "super", "ensemble"]
    counted = {"east": {"east": 2}, "west": {"west": 1, "east": 1}}
    assert choice_table(counted).columns == ("test cases of", "east", "west", "cases")


def test_an_ensemble_of_one_exchange_says_that_it_is_one(super_results):
    recipe = {"sends_model_once": True, "constants": {"hand_over": {"answer": "ensemble"}}}
    assert is_ensemble(super_results(**WITHOUT_GLOBAL | {"recipe": recipe}))


def test_a_left_out_site_is_answered_without_a_global_model(unseen):
    nothing = {"threshold": None, "threshold_from": None, "by_threshold": [], "best_in_hindsight": None}
    found = unseen(models={"north": 0.5, "south": 0.4, "ensemble": 0.45}, choices={"north": 3, "south": 1}, **nothing)
    table = unseen_table(found)
    assert table.columns == ("answer", "dice", "chosen: north", "chosen: south")
    assert table.rows[0] == ("super model, most probable model: what a clinic would get", "0.600", "3 (75%)", "1 (25%)")
    assert [row[0] for row in table.rows[1:]] == [
        "model of north alone",
        "model of south alone",
        "ensemble of all models",
    ]


def test_without_values_there_is_no_table_of_thresholds():
    assert threshold_table({}, 0.5, "dice") is None


def test_a_left_out_site_shows_each_model_alone(unseen_plain):
    table = alone_table(unseen_plain(value=0.5, models={"global": 0.4, "east": 0.6}))
    assert table.columns == ("model", "super", "global", "east")
    assert table.rows == (("dice", "0.500", "0.400", "0.600"),) and not table.best_cells
    assert alone_table(unseen_plain(models={})) is None


def test_a_left_out_site_is_told_in_a_sentence(unseen, unseen_plain):
    assert unseen_sentence(unseen(num_cases=1)) == (
        "Site coast took no part in the training. There the super model reaches dice 0.600 over 1 case, "
        "with the threshold gamma = 0.9 that the training sites found."
    )
    assert unseen_sentence(unseen_plain(value=None)).endswith("reaches dice - over 4 cases.")


def test_the_page_shows_a_left_out_site_with_and_without_a_selector(unseen, unseen_plain):
    section = unseen_section(unseen())
    assert section.blocks[1].text == "Cases by the model that answered: global 3, north 1."
    assert tables_of(section)[1].columns[2] == "0.9 (used)"
    plain = unseen_section(unseen_plain())
    assert len(tables_of(plain)) == 1 and not any("answered" in block.text for block in plain.blocks[:1])


def test_what_a_clinic_would_get_comes_first_and_hindsight_is_called_hindsight(unseen):
    table = unseen_table(unseen())
    assert table.columns == ("answer", "dice", "chosen: global", "chosen: north")
    assert table.rows == (
        ("super model, gamma 0.9 (tuned on validation data): what a clinic would get", "0.600", "3 (75%)", "1 (25%)"),
        ("super model, gamma 0 (always a site's model)", "0.500", "0 (0%)", "4 (100%)"),
        (
            "super model, gamma 1 (best in hindsight: chosen on the test data, shown and never used)",
            "0.625",
            "4 (100%)",
            "0 (0%)",
        ),
        ("global model alone", "0.550", "", ""),
        ("model of north alone", "0.500", "", ""),
        ("ensemble of all models", "0.575", "", ""),
    )


def test_every_candidate_of_gamma_has_its_row(unseen):
    assert gamma_table(unseen(), unseen().selector.by_threshold).rows == (
        ("0", "0.500", "0 (0%)"),
        ("0.9", "0.600", "3 (75%)"),
        ("1", "0.625", "4 (100%)"),
    )


def test_a_selector_that_knows_the_global_model_has_no_gamma(unseen, printed):
    found = unseen(threshold=None, threshold_from=None, by_threshold=[], best_in_hindsight=None)
    assert unseen_table(found).rows[0][0] == "super model, most probable model: what a clinic would get"
    assert "gamma" not in printed(print_unseen, found)


def test_an_ensemble_answers_as_an_ensemble(unseen):
    assert unseen_table(unseen(answer="ensemble")).rows[0][0] == "super model, ensemble: what a clinic would get"


def test_one_model_for_all_is_the_global_one(unseen_plain):
    assert unseen_table(unseen_plain()).rows == (("global model: what a clinic would get", "0.600"),)


def test_models_of_sites_answer_by_their_mean_and_it_is_said_where_they_come_from(unseen_plain, printed):
    models = {"north": 0.5, "south": 0.25}
    found = unseen_plain(rule="mean", models=models, assembled_from="the sites' own models")
    assert [row[0] for row in unseen_table(found).rows] == [
        "mean of all sites: what a clinic would get",
        "model of north alone",
        "model of south alone",
    ]
    text = printed(print_unseen, found)
    assert "put together from the sites' own models: only a simulation can do this" in text


def test_a_printed_test_says_site_cases_and_metric_and_is_not_cropped(unseen, printed):
    text = printed(print_unseen, unseen(num_counted=3), width=60)
    assert "unseen site coast: 4 cases (1 with empty truth and prediction excluded), none of them seen" in text
    assert "metric: dice" in text and "what a clinic would get" in text and "…" not in text
