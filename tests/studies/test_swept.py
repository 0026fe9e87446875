import pytest
from matplotlib.axes import Axes

from silofl_desk.studies.swept import SweptRows, sweep_image


@pytest.fixture
def runs(method):
    """Build the runs of a row at a point of a sweep from its seeds' values at two sites."""
    validation = {site: {"value": 0.25} for site in ("east", "west")}
    return lambda *values: method("a", *values, validation=validation)["a"]


def test_a_sweep_is_a_table_of_rows_by_values_with_validation_beside_test(runs):
    rows = {("fedavg", "0.1"): runs((0.5, 0.75), (0.75, 1.0)), ("fedavg", "1"): runs((0.5, 0.5), (0.5, 0.5))}
    table = SweptRows(["alpha"], rows, "dice").table()
    assert table.columns == ("row", "part", "alpha=0.1", "alpha=1") and table.num_text == 2
    # means over sites 0.625 and 0.875: mean 0.75, deviation 0.25 / sqrt(2)
    assert table.rows[1] == ("fedavg", "test", "0.750 ± 0.177", "0.500 ± 0.000")
    assert table.rows[0] == ("fedavg", "validation", "0.250 ± 0.000", "0.250 ± 0.000")


def test_further_settings_are_columns_of_their_own_and_a_hole_is_a_dash(runs):
    rows = dict.fromkeys([("a", "1", "2"), ("a", "1", "4"), ("a", "5", "2"), ("b", "1", "2")], runs((0.5, 0.5)))
    table = SweptRows(["alpha", "epochs"], rows, "dice").table()
    assert table.columns == ("row", "alpha", "part", "epochs=2", "epochs=4")
    tests = [row for row in table.rows if row[2] == "test"]
    assert tests == [
        ("a", "1", "test", "0.500", "0.500"),
        ("a", "5", "test", "0.500", "-"),
        ("b", "1", "test", "0.500", "-"),
    ]


@pytest.mark.parametrize("values", [("0.001", "0.1", "1"), ("even", "odd"), ("0", "100")])
def test_the_figure_has_a_line_a_row_over_numbers_near_and_far_and_over_words(runs, values, monkeypatch):
    widths, draw = [], Axes.errorbar
    monkeypatch.setattr(Axes, "errorbar", lambda self, *a, **k: widths.append(k["elinewidth"]) or draw(self, *a, **k))
    rows = dict.fromkeys([(row, value) for row in ("a", "b") for value in values], runs((0.5, 0.75), (0.75, 0.5)))
    image = sweep_image(SweptRows(["x"], rows, "dice"))
    assert image.png.startswith(b"\x89PNG")
    assert image.alt.startswith(f"dice over x = {', '.join(values)}, of 2 rows: highest in")
    # Bars of the later row are thinner, so that none covers another.
    first, second = widths[:2]
    assert first > second > 0


def test_a_point_whose_runs_all_failed_is_a_gap(runs):
    swept = SweptRows(["x"], {("a", "1"): runs((0.5, 0.5)), ("a", "2"): []}, "dice")
    assert swept.table().rows[1] == ("a", "test", "0.500", "-") and sweep_image(swept).png


def test_a_run_that_lacks_a_sites_value_does_not_count(runs, method):
    # at 2, east alone has a value with the first seed, and a validation with the second
    both, east = ({site: {"value": 0.25} for site in sites} for sites in (("east", "west"), ("east",)))
    (first,), (second,) = method("a", (0.9, None), validation=both)["a"], method("a", (0.5, 0.75), validation=east)["a"]
    plain = {("a", "1"): runs((0.5, 0.5))}
    table = SweptRows(["x"], plain | {("a", "2"): [first, second]}, "dice").table()
    assert table.rows == (("a", "validation", "0.250", "0.250"), ("a", "test", "0.500", "0.625"))
    sweep = SweptRows(["x"], plain | {("a", "2"): [second]}, "dice")
    assert sweep.table().rows[0] == ("a", "validation", "0.250", "-") and sweep_image(sweep).png
    # A site that no run has a value of is in no mean.
    rows = dict.fromkeys([("a", "1"), ("a", "2")], method("a", (0.5, 0.5), validation=east)["a"])
    assert SweptRows(["x"], rows, "dice").table().rows[0] == ("a", "validation", "0.250", "0.250")
