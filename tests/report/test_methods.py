import json

import pytest

from silofl.report.method_rows import Method
from silofl.report.methods import markdown, mean_and_deviation, methods_table, methods_values
from silofl.report.tables import TextTable


def test_deviation_is_that_of_a_sample_and_stands_only_beside_several_seeds():
    # mean 0.6, deviation sqrt((0.1 ** 2 + 0.1 ** 2) / 1)
    assert mean_and_deviation((0.5, 0.7)) == "0.600 ± 0.141"
    assert mean_and_deviation((0.5,)) == "0.500"
    assert mean_and_deviation(()) == "-"


def test_a_method_without_any_result_is_a_row_of_dashes(method):
    table = methods_table([method("fedavg", (0.5, 0.75)), Method("fedprox", {}, unfinished={0: "no disk"})], 1)
    assert table.rows[1] == ("fedprox", "-", "-", "-", "-")


def test_rows_stay_in_the_order_they_were_given(method):
    table = methods_table([method("second", (0.1, 0.1)), method("first", (0.9, 0.9))], 1)
    assert [row[0] for row in table.rows] == ["second", "first", "winner"]
    assert table.columns == ("method", "east", "west", "client average", "pooled", "sites won")


def test_each_site_names_its_winner_and_each_method_its_sites(method):
    table = methods_table([method("a", (0.5, 0.75)), method("b", (0.75, 0.5)), method("c", (0.25, 0.75))], 1)
    assert table.columns[-1] == "sites won" and table.num_summary == 1
    assert [row[-1] for row in table.rows] == ["1", "1", "1", ""]
    # means 0.625, 0.625 and 0.5; pooled (0.5 + 3) / 5 = 0.7, (0.75 + 2) / 5 = 0.55 and (0.25 + 3) / 5 = 0.65
    assert table.rows[-1] == ("winner", "b", "a, c", "a, b", "a", "")
    assert table.best_cells == {(1, 1), (0, 2), (2, 2), (0, 3), (1, 3), (0, 4)}
    assert table.second_cells == {(0, 1), (1, 2), (2, 3), (2, 4)}


def test_local_training_can_win_and_pooled_data_cannot(method):
    local = method("local", (0.9, 0.9), recipe={"stays_home": "everything"})
    pooled = Method("centralised", method("", (1.0, 1.0)).results, needs_pool=True)
    table = methods_table([local, method("a", (0.5, 0.75)), pooled], 1)
    assert table.rows[-1][1:5] == ("local",) * 4
    assert table.rows[2] == ("centralised (data pooled: simulation only)", *["1.000"] * 4, "0")


def test_a_row_that_lacks_a_seed_does_not_win(method):
    methods = [method("a", (0.9, 0.9)), method("b", (0.5, 0.5), (0.5, 0.5)), method("c", (0.6, 0.4), (0.6, 0.4))]
    assert methods_table(methods, 2).rows[-1][1:3] == ("c", "b")


def test_nobody_wins_where_values_say_different_things_or_nobody_is_compared(method):
    methods = [method("a", (0.5, 0.75)), method("b", (0.75, 0.5))]
    for table in (methods_table(methods, 1, is_ranked=False), methods_table(methods[:1], 1)):
        assert table.best_cells == frozenset() and "sites won" not in table.columns
        assert "winner" not in [row[0] for row in table.rows]


def test_many_sites_stand_in_rows_with_their_winner_beside_them(results):
    def run(*values):
        sites = {f"s{i}": value for i, value in enumerate(values)}
        return {0: results(sites=sites, pooled=0.5, recipe={"stays_home": "nothing"})}

    table = methods_table([Method("a", run(*[0.5] * 8, 0.25)), Method("b", run(*[0.25] * 8, 0.5))], 1)
    assert table.columns == ("site", "a", "b", "winner")
    assert table.rows[0] == ("s0", "0.500", "0.250", "a") and table.rows[8] == ("s8", "0.250", "0.500", "b")
    # (8 * 0.5 + 0.25) / 9 and (8 * 0.25 + 0.5) / 9
    assert table.rows[9] == ("client average", "0.472", "0.278", "a")
    assert table.rows[10:] == (("pooled", "0.500", "0.500", "a, b"), ("sites won", "8", "1", ""))
    assert table.num_summary == 3
    assert table.best_cells == {*((i, 1) for i in range(8)), (8, 2), (9, 1), (10, 1), (10, 2)}


def test_averages_beside_the_metric_turn_the_table_because_their_names_are_long(method):
    also = {site: {"balanced_accuracy": 0.5} for site in ("east", "west")}
    methods = [method(name, (0.5, 0.75), metric="accuracy", also=also) for name in ("a", "b", "c")]
    table = methods_table(methods, 1)
    assert table.columns == ("site", "a", "b", "c", "winner")
    assert table.rows[-2] == ("balanced accuracy (site average)", "0.500", "0.500", "0.500", "3 equal")


def test_markdown_has_the_best_in_bold_the_second_best_underlined_and_the_notes_below():
    rows = (("a", "0.500"), ("b|c", "0.250"), ("d", "0.125"))
    table = TextTable(("method", "east"), rows, best_cells=frozenset({(0, 1)}), second_cells=frozenset({(1, 1)}))
    assert markdown(table, ["One.", "Two."]).splitlines() == [
        "| method | east |",
        "| --- | --- |",
        "| a | **0.500** |",
        "| b/c | <ins>0.250</ins> |",
        "| d | 0.125 |",
        "",
        "- One.",
        "- Two.",
    ]


def test_the_rows_are_plain_values_for_programs(method, fedsm):
    values = methods_values([method("fedavg", (0.5, 0.75), (0.75, 0.75)), fedsm])
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    east = values[0]["sites"]["east"]
    # mean 0.625, deviation 0.125 * sqrt(2)
    assert east == {"mean": 0.625, "std": pytest.approx(0.125 * 2**0.5), "values": [0.5, 0.75]}
    assert values[1]["name"] == "fedsm super" and values[1]["client_average"]["std"] is None
    assert values[0]["is_federated"] and not values[0]["needs_pooled_data"]


def test_the_rows_for_programs_name_the_sites_won_and_the_averages_beside(method):
    also = {"east": {"balanced_accuracy": 0.5}, "west": {"balanced_accuracy": 0.25}}
    methods = [method("a", (0.5, 0.75), metric="accuracy", also=also), method("b", (0.75, 0.75), metric="accuracy")]
    a, b = methods_values(methods)
    assert (a["sites_won"], b["sites_won"]) == (["west"], ["east", "west"])
    # (0.5 + 0.25) / 2
    assert a["also"] == {"balanced_accuracy": {"mean": 0.375, "std": None, "values": [0.375]}}
    assert b["also"]["balanced_accuracy"]["values"] == []
    assert [row["sites_won"] for row in methods_values([*methods, method("c", (1, 1), metric="dice")])] == [[], [], []]
