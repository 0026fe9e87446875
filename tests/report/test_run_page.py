"""What a run's page shows, and in which order, is decided before any template."""

from silofl.report.run_page import weights_table


def test_equal_weights_are_one_row_for_every_site(record):
    weights = weights_table([record(1), record(2)])
    assert weights.columns == ["east", "west"]
    ((name, cells),) = ((row.name, [(cell.text, cell.share) for cell in row.cells]) for row in weights.rows)
    assert name == "every site" and cells == [("0.250", 0.25), ("0.750", 0.75)]


def test_different_weights_keep_a_row_for_each_listener(record):
    rows = {"east": {"east": 0.7, "west": 0.3}, "west": {"east": 0.3, "west": 0.7}}
    shown = weights_table([record(1, weights=rows)]).rows
    assert {row.name: [cell.share for cell in row.cells] for row in shown} == {"east": [0.7, 0.3], "west": [0.3, 0.7]}


def test_a_site_that_a_listener_did_not_hear_is_an_empty_cell(record):
    heard = {"east": {"east": 0.5, "west": 0.5}, "west": {"west": 1.0}}
    _, west = weights_table([record(1, weights=heard)]).rows
    assert [(cell.text, cell.share) for cell in west.cells] == [("-", None), ("1.000", 1.0)]


def test_there_are_no_weights_before_the_first_round():
    assert weights_table([]) is None
