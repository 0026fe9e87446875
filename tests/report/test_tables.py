import io

import pytest
from rich.console import Console

from silofl.report.tables import (
    TextTable,
    comparison_table,
    label_table,
    number,
    print_comparison,
    print_results,
    print_table,
    site_comparison_table,
    site_table,
)


def printed(function, value, width=80):
    stream = io.StringIO()
    function(value, Console(file=stream, width=width))
    return stream.getvalue()


def test_each_site_has_a_row_and_three_rows_sum_up(results):
    table = site_table(results())
    assert table.columns == ("site", "dice", "test cases", "excluded cases", "validation")
    assert table.rows == (
        ("east", "0.500", "1", "0", "0.400"),
        ("west", "0.750", "4", "2", "0.600"),
        # (0.4 + 0.6) / 2
        ("mean over sites", "0.625", "", "", "0.500"),
        ("spread over sites (std)", "0.125", "", "", ""),
        ("pooled over all cases", "0.700", "5", "2", ""),
    )
    assert table.num_summary == 3


def test_a_site_without_value_is_a_dash_and_the_mean_says_how_many_it_is_over(results):
    rows = site_table(results(sites={"east": 0.5, "west": None}, cases={"east": 1}, excluded_cases={"east": 0})).rows
    assert rows[1][:4] == ("west", "-", "-", "-")
    assert rows[2][0] == "mean over 1 of 2 sites"


def test_no_validation_at_all_is_a_dash(results):
    assert [row[4] for row in site_table(results(validation={})).rows[:3]] == ["-", "-", "-"]


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0, "0.000"), (0.12345, "0.123"), (1, "1.000")])
def test_values_have_three_decimals(value, text):
    assert number(value) == text


def test_a_printed_result_says_status_model_metric_normalisation_and_numbers(results):
    text = printed(print_results, results())
    assert "COMPLETE  small: harmofl, preset recommended, seed 0, 2 rounds" in text
    assert "model: best validation, round 2" in text and "metric: dice" in text and "normalization: batch\n" in text
    assert "0.625" in text and "same person" not in text


def test_an_incomplete_result_is_printed_with_its_reasons(results):
    text = printed(print_results, results(status="INCOMPLETE", reasons=["site west missed rounds [2]"]))
    assert text.startswith("INCOMPLETE") and "  - site west missed rounds [2]" in text


def test_a_failed_result_has_reasons_and_no_table():
    failed = {"status": "FAILED", "study": "small", "reasons": ["no site joined"], "sites": {}}
    text = printed(print_results, failed)
    assert "FAILED" in text and "no site joined" in text and "mean" not in text


def test_a_split_by_slices_and_a_stateless_network_are_said(results):
    text = printed(print_results, results(split_unit="slices", normalization="batch_stateless"))
    assert "same person in training and test" in text
    assert "batch_stateless (a prediction depends on the batch it stands in)" in text


def test_names_are_printed_as_they_are_and_not_as_markup(results):
    named = results(reasons=["[bold]site[/bold]"], sites={"[red]east": 0.5})
    text = printed(print_results, named)
    assert "[bold]site[/bold]" in text and "[red]east" in text


def test_numbers_are_never_cropped_in_a_narrow_terminal(results):
    sites = {f"a_long_name_of_hospital_{i}": 0.1 * i for i in range(1, 9)}
    text = printed(print_comparison, [results(sites=sites), results(sites=sites)], width=40)
    assert all(f"{value:.3f}" in text for value in sites.values()) and "…" not in text


def test_a_comparison_has_one_row_a_run_and_one_column_a_site(results):
    table = comparison_table([results(), results(algorithm="fedavg", sites={"east": 0.25}, mean=0.25, spread=0.0)])
    assert table.columns[-5:] == ("mean", "spread", "pooled", "east", "west")
    assert table.rows[0][:7] == ("1", "small", "harmofl", "recommended", "batch", "0", "COMPLETE")
    assert table.rows[1][-5:] == ("0.250", "0.000", "0.700", "0.250", "-")


def test_the_best_mean_is_marked_in_print(results):
    text = printed(print_comparison, [results(mean=0.5), results(mean=0.625)], width=200)
    assert "0.625 *" in text and "0.500 *" not in text and "* best mean" in text


def test_without_a_best_mean_nothing_is_marked_in_print(results):
    assert "*" not in printed(print_comparison, [results(), results(metric="accuracy")], width=200)


def test_several_labels_have_a_column_each_with_the_mean_over_sites():
    results = {
        "metric": "dice",
        "sites": {"east": 0.5, "west": 0.75},
        "mean": 0.625,
        "by_label": {"east": {"organ": 0.75, "lesion": 0.25}, "west": {"organ": 0.75}},
    }
    table = site_table(results)
    assert table.columns[-2:] == ("dice of organ", "dice of lesion")
    assert [row[-2:] for row in table.rows[:3]] == [("0.750", "0.250"), ("0.750", "-"), ("0.750", "0.250")]
    assert site_table(results | {"by_label": {"east": {"organ": 0.5}}}).columns[-1] == "validation"


def test_a_classification_has_its_other_scores_beside_its_value(results):
    also = {"east": {"accuracy": 0.5, "balanced_accuracy": 0.25}, "west": {"balanced_accuracy": 0.75, "auroc": 0.875}}
    table = site_table(results(metric="accuracy", also=also))
    assert table.columns[-2:] == ("balanced accuracy", "AUROC")
    # (0.25 + 0.75) / 2, and the one AUROC there is
    assert [row[-2:] for row in table.rows[:3]] == [("0.250", "-"), ("0.750", "0.875"), ("0.500", "0.875")]


def test_the_test_data_of_all_sites_are_printed_below(results):
    everyone = {"accuracy": 0.5, "balanced_accuracy": 0.25, "num_cases": 40}
    assert "on all sites' test data (40 cases)" in printed(print_results, results(everyone=everyone))
    assert "all sites' test data" not in printed(print_results, results())


def test_many_labels_have_a_table_of_their_own(results):
    by_label = {"east": {f"class {i}": 0.1 * i for i in range(5)}, "west": {"class 4": 0.8}}
    run = results(by_label=by_label)
    assert site_table(run).columns[-1] == "validation"
    table = label_table(run)
    assert table.columns == ("site", *(f"class {i}" for i in range(5))) and table.num_summary == 1
    assert table.rows[1] == ("west", "-", "-", "-", "-", "0.800")
    # (0.4 + 0.8) / 2
    assert table.rows[2] == ("mean over sites", "0.000", "0.100", "0.200", "0.300", "0.600")
    assert label_table(results(by_label={"east": {"organ": 0.5, "lesion": 0.5}})) is None


def test_many_sites_of_several_runs_stand_in_rows_of_a_second_table(results):
    sites = {f"s{i}": 0.125 * i for i in range(9)}
    runs = [results(sites=sites), results(sites={"s1": 0.5}, algorithm="fedavg")]
    assert comparison_table(runs).columns[-1] == "pooled"
    table = site_comparison_table(runs)
    assert table.columns == ("site", "1: harmofl", "2: fedavg") and len(table.rows) == 9
    assert table.rows[1] == ("s1", "0.125", "0.500") and table.rows[2] == ("s2", "0.250", "-")
    assert "s8" in printed(print_comparison, runs)
    assert site_comparison_table([results()]) is None


def test_places_are_marked_with_signs_where_letters_cannot_be_bold():
    rows = (("a", "0.3"), ("b", "0.2"), ("c", "0.1"))
    table = TextTable(("method", "x"), rows, best_cells=frozenset({(0, 1)}), second_cells=frozenset({(1, 1)}))
    lines = printed(print_table, table).splitlines()
    assert [line.split() for line in lines[-3:]] == [["a", "0.3", "*"], ["b", "0.2", "+"], ["c", "0.1"]]


def test_a_split_by_recordings_is_said(results):
    text = printed(print_results, results(split_unit="recordings"))
    assert "split by recordings, same person in training and test; recordings are apart" in text
