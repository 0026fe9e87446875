import json

import pytest

from silofl.report.methods import (
    Method,
    best_cells,
    markdown,
    mean_and_deviation,
    methods_table,
    methods_values,
    rows_of,
)


@pytest.fixture
def method(results):
    """Build a method by its runs' values at the sites east (1 case) and west (4 cases)."""

    def build(name, *values, **changes):
        runs = {}
        for seed, (east, west) in enumerate(values):
            known = [value for value in (east, west) if value is not None]
            together = (east + 4 * west) / 5 if len(known) == 2 else known[0]
            sites = {"sites": {"east": east, "west": west}, "pooled": together, "mean": sum(known) / len(known)}
            runs[seed] = results(**{"recipe": {"stays_home": "nothing"}, "seed": seed, **sites, **changes})
        return Method(name, runs)

    return build


@pytest.fixture
def fedsm(method):
    """A method with a selector: its models' values at each site beside the super model's own."""
    models = {
        "east": {"global": 0.5, "east": 0.75, "west": 0.25, "ensemble": 0.625, "super": 0.75},
        "west": {"global": 0.25, "east": 0.0, "west": 0.5, "ensemble": 0.375, "super": 0.5},
    }
    return method("fedsm", (0.75, 0.5), models=models, threshold=0.9)


def cells(row):
    return dict(zip(("east", "west", "client average", "pooled"), row.cells, strict=True))


def test_a_row_has_the_values_of_all_seeds_by_site_then_both_means(method):
    (row,) = rows_of([method("fedavg", (0.5, 0.75), (0.25, 1.0))])
    assert cells(row) == {
        "east": (0.5, 0.25),
        "west": (0.75, 1.0),
        "client average": (0.625, 0.625),
        # (0.5 + 4 * 0.75) / 5 and (0.25 + 4 * 1) / 5
        "pooled": pytest.approx((0.7, 0.85)),
    }


def test_a_run_with_a_selector_gives_four_rows_and_personal_is_each_sites_own_model(fedsm):
    rows = {row.name: cells(row) for row in rows_of([fedsm])}
    assert list(rows) == ["fedsm super", "fedsm ensemble", "fedsm global", "fedsm personal"]
    assert (rows["fedsm ensemble"]["east"], rows["fedsm global"]["west"]) == ((0.625,), (0.25,))
    assert (rows["fedsm personal"]["east"], rows["fedsm personal"]["west"]) == ((0.75,), (0.5,))
    # (0.5 + 0.25) / 2, and (1 * 0.5 + 4 * 0.25) / 5
    assert rows["fedsm global"]["client average"] == (0.375,)
    assert rows["fedsm global"]["pooled"] == pytest.approx((0.3,))


def test_deviation_is_that_of_a_sample_and_stands_only_beside_several_seeds():
    # mean 0.6, deviation sqrt((0.1 ** 2 + 0.1 ** 2) / 1)
    assert mean_and_deviation((0.5, 0.7)) == "0.600 ± 0.141"
    assert mean_and_deviation((0.5,)) == "0.500"
    assert mean_and_deviation(()) == "-"


def test_a_run_without_a_value_at_a_site_has_no_means(method):
    (row,) = rows_of([method("fedavg", (0.5, None), (0.25, 1.0))])
    assert cells(row)["west"] == (1.0,) and cells(row)["client average"] == (0.625,)


def test_a_method_without_any_result_is_a_row_of_dashes(method):
    table = methods_table([method("fedavg", (0.5, 0.75)), Method("fedprox", {}, unfinished={0: "no disk"})], 1)
    assert table.rows[1] == ("fedprox", "-", "-", "-", "-")


def test_rows_stay_in_the_order_they_were_given(method):
    table = methods_table([method("second", (0.1, 0.1)), method("first", (0.9, 0.9))], 1)
    assert [row[0] for row in table.rows] == ["second", "first"]
    assert table.columns == ("method", "east", "west", "client average", "pooled")


def test_the_best_federated_value_of_each_column_is_marked_and_local_training_never(method):
    local = method("local", (0.9, 0.9), recipe={"stays_home": "everything"})
    pooled = Method("centralised", method("", (1.0, 1.0)).results, needs_pool=True)
    table = methods_table([local, method("a", (0.5, 0.75)), method("b", (0.75, 0.5)), pooled], 1)
    assert table.best_cells == {(2, 1), (1, 2), (1, 3), (2, 3), (1, 4)}
    assert table.rows[3][0] == "centralised (data pooled: simulation only)"


def test_a_row_that_lacks_a_seed_is_not_compared(method):
    rows = rows_of([method("a", (0.9, 0.9)), method("b", (0.5, 0.5), (0.5, 0.5)), method("c", (0.6, 0.4), (0.6, 0.4))])
    assert best_cells(rows, 2) == {(2, 0), (1, 1), (1, 2), (2, 2), (1, 3)}


def test_a_single_federated_row_is_not_called_the_best(method):
    assert best_cells(rows_of([method("a", (0.9, 0.9))]), 1) == frozenset()
    assert best_cells([], 1) == frozenset()


def test_nothing_is_marked_where_values_say_different_things(method):
    methods = [method("a", (0.5, 0.75)), method("b", (0.75, 0.5))]
    assert methods_table(methods, 1, is_comparable=False).best_cells == frozenset()


def test_markdown_has_the_best_in_bold_and_the_notes_below(method):
    text = markdown(methods_table([method("a", (0.5, 0.5)), method("b|c", (0.25, 0.25))], 1), ["One.", "Two."])
    assert text.splitlines() == [
        "| method | east | west | client average | pooled |",
        "| --- | --- | --- | --- | --- |",
        "| a | **0.500** | **0.500** | **0.500** | **0.500** |",
        "| b/c | 0.250 | 0.250 | 0.250 | 0.250 |",
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
