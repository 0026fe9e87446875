import pytest

from silofl.report.super_tables import (
    alone_table,
    choice_table,
    choices_in_words,
    has_models,
    mean_value,
    model_table,
    models_of_runs,
    selector_counts,
    threshold_table,
)


def test_only_a_run_with_a_selector_has_models(results, super_results):
    assert has_models(super_results()) and not has_models(results())


def test_each_site_has_its_own_personal_value_and_the_best_of_a_row_is_marked(super_results):
    table = model_table(super_results())
    assert table.columns == ("site", "global", "personal", "super", "ensemble")
    assert table.rows == (
        ("east", "0.400", "0.600", "0.500", "0.550"),
        ("west", "0.700", "0.750", "0.750", "0.650"),
        # the means of the two rows above
        ("mean over sites", "0.550", "0.675", "0.625", "0.600"),
    )
    # personal and super tie at west
    assert table.best_cells == {(0, 2), (1, 2), (1, 3), (2, 2)}


def test_a_site_that_did_not_test_is_a_row_of_dashes(super_results):
    values = super_results(sites={"east": 0.5, "west": 0.75, "south": None})
    assert model_table(values).rows[-2:] == (
        ("south", "-", "-", "-", "-"),
        ("mean over 2 of 3 sites", "0.550", "0.675", "0.625", "0.600"),
    )


def test_the_selectors_right_answers_are_counts(super_results):
    counts = selector_counts(super_results(), "slices")
    assert counts.right == {"east": "3 of 4", "west": "10 of 10", "all sites": "13 of 14"}
    assert (counts.share("east", "west"), counts.share("west", "east")) == (0.25, 0)


def test_rows_follow_the_outputs_so_that_right_answers_stand_on_the_diagonal(super_results):
    counts = selector_counts(super_results(), "cases")
    assert counts.columns == list(counts.rows) == ["east", "west"]


def test_a_selector_of_best_models_has_no_right_answers(super_results):
    selector = {"outputs": ["global", "east", "west"], "cases": {"east": {"global": 2}}}
    assert selector_counts(super_results(selector=selector), "cases").right == {}


@pytest.mark.parametrize("selector", [None, {}, {"outputs": ["east"], "slices": {"east": {}}}])
def test_without_counts_there_is_no_table_of_them(super_results, selector):
    assert selector_counts(super_results(selector=selector), "slices") is None


def test_choices_are_counted_by_site_and_model(super_results):
    table = choice_table(super_results())
    assert table.columns == ("test cases of", "global", "east", "west", "cases")
    assert table.rows == (("east", "0", "1", "0", "1"), ("west", "2", "0", "4", "6"), ("all sites", "2", "1", "4", "7"))
    assert choice_table(super_results(choices={})) is None


def test_the_threshold_that_was_used_is_named_and_none_is_called_the_best():
    rows = [{"threshold": 0.0, "value": 0.5}, {"threshold": 0.999, "value": None}]
    table = threshold_table(rows, 0.999, "dice")
    assert table.columns == ("threshold gamma", "0", "0.999 (used)")
    assert table.rows == (("dice of the test cases", "0.500", "-"),) and not table.best_cells


@pytest.mark.parametrize("rows", [[], [{"threshold": 0.5}]])
def test_without_values_there_is_no_table_of_thresholds(rows):
    assert threshold_table(rows, 0.5, "dice") is None


def test_local_fedavg_and_the_models_of_fedsm_stand_below_one_another(results, super_results):
    local = results(recipe={"stays_home": "everything"}, sites={"east": 0.3, "west": 0.8})
    fedavg = results(recipe={"stays_home": "nothing"}, sites={"east": 0.4, "west": None})
    table = models_of_runs([local, fedavg, super_results()], ["1: local", "2: fedavg", "3: fedsm"])
    assert table.columns == ("run", "model", "east", "west", "mean")
    assert table.rows[:3] == (
        ("1: local", "local: each site alone", "0.300", "0.800", "0.550"),
        ("2: fedavg", "global", "0.400", "-", "-"),
        ("3: fedsm", "global", "0.400", "0.700", "0.550"),
    )
    assert [row[1] for row in table.rows[3:]] == ["personal", "super", "ensemble"]
    # personal is the best at east, local at west; the mean of personal is 0.675
    assert table.best_cells == {(3, 2), (0, 3), (3, 4)}


def test_runs_that_measure_different_things_have_no_best_model(results, super_results):
    runs = [results(metric="dice_with_background"), super_results()]
    assert models_of_runs(runs, ["1", "2"]).best_cells == frozenset()


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"stays_home": "nothing", "mixing": "softpull"}, "personal"),
        ({"stays_home": "batchnorm", "mixing": "shared"}, "global but for BatchNorm"),
        ({}, "the run's model"),
    ],
)
def test_a_run_without_selector_names_its_one_model(results, super_results, recipe, words):
    assert models_of_runs([results(recipe=recipe), super_results()], ["1", "2"]).rows[0][1] == words


def test_runs_without_models_and_runs_without_values_add_no_rows(results, super_results):
    assert models_of_runs([results(), results()], ["1", "2"]) is None
    failed = {"status": "FAILED", "sites": {}}
    assert {row[0] for row in models_of_runs([failed, super_results()], ["1", "2"]).rows} == {"2"}


def test_a_mean_is_over_the_sites_that_have_a_value():
    assert mean_value({"east": 0.5, "west": None}) == 0.5
    assert mean_value({"west": None}) is None


def test_chosen_models_are_told_by_their_cases():
    assert choices_in_words({"west": 1, "global": 3, "east": 0}) == "global 3, west 1"
    assert choices_in_words({}) == ""


def test_a_left_out_site_shows_each_model_alone():
    table = alone_table({"value": 0.5, "models": {"global": 0.4, "east": 0.6}}, "dice")
    assert table.columns == ("model", "super", "global", "east")
    assert table.rows == (("dice", "0.500", "0.400", "0.600"),) and table.best_cells == {(0, 3)}
    assert alone_table({"value": 0.5}, "dice") is None
