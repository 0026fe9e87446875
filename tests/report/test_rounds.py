"""Curves and the table of a run's rounds."""

import dataclasses

import numpy as np
import pytest

from silofl.training.site_score import SiteScore
from silofl_desk.report.round_tables import participation_table
from silofl_desk.report.rounds import MEAN_LINE, ROUND_TEST, curve_images, make_curves
from silofl_desk.report.run_records import read_run
from silofl_hospital.report.canvas import LINE_COLOURS, PAGE, encode_png
from tests.report.conftest import shown_colours


def drawn_lines(plot):
    """Return the values of the first panel's lines by their colours; of one value alone the marker shows."""
    lines = [line for line in plot.draw(PAGE).axes[0].lines if len(line.get_ydata()) > 1 or line.get_markersize()]
    return {line.get_color(): [*line.get_ydata()] for line in lines}


@pytest.fixture
def records(run, results):
    """Return the records of a run with these rounds."""
    return lambda *ledger: read_run(run().json("results.json", results(best_round=1)).ledger(*ledger).path)


def test_each_site_has_a_line_and_its_values(record, records):
    curves = make_curves(records(record(1), record(2, (None, 0.5))), "training")
    validation = [row[1:] for row in curves.rows if row[0] == "Validation: dice"]
    # means of 0.4 and 0.6, and of 0.5 alone
    assert validation == [
        *(("east", 1, 0.4), ("east", 2, None)),
        *(("west", 1, 0.6), ("west", 2, 0.5)),
        *((MEAN_LINE, 1, 0.5), (MEAN_LINE, 2, 0.5)),
    ]
    drawn = drawn_lines(curves)
    np.testing.assert_array_equal(drawn[LINE_COLOURS[0]], [0.4, np.nan])
    assert drawn[LINE_COLOURS[1]] == [0.6, 0.5]
    assert [panel.title for panel in curves.panels] == ["Validation: dice", "Training loss"]
    assert MEAN_LINE not in curves.panels[1].lines
    assert shown_colours(encode_png(curves.draw(PAGE)), LINE_COLOURS[:3]) == [True, True, False]


def test_what_privacy_spends_is_drawn_instead_of_the_loss(record, records):
    spent = {"east": {"epsilon": 0.5}, "west": {"epsilon": 0.7}}
    panel = make_curves(records(record(1, metrics=spent), record(2, metrics=spent)), "training").panels[-1]
    assert panel.title == "Epsilon of differential privacy"
    assert panel.lines == {"east": [0.5, 0.5], "west": [0.7, 0.7]}


@pytest.mark.parametrize("best", [1, 3])
def test_the_best_round_is_marked_by_its_number(record, records, best):
    ledger = [record(number, (0.5, 0.5)) for number in range(1, 4)]
    ledger[best - 1] = record(best, (0.9, 0.9))
    run = records(*ledger)
    run = dataclasses.replace(run, results=dataclasses.replace(run.results, best_round=best))
    (label,) = make_curves(run, "training").draw(PAGE).axes[0].texts
    # On the side that has more room.
    assert (label.get_text(), label.get_ha()) == (f"round {best}", "left" if best == 1 else "right")


def test_what_some_rounds_have_is_drawn(record, super_record, records):
    without = {"east": {"loss": 0.5}, "west": {"loss": 0.5}}
    run = records(record(1), record(2, metrics=without))
    assert make_curves(run, "drift").panels[0].lines["east"] == [0.1, None]
    run = dataclasses.replace(run, ledger=[record(1, metrics=without)])
    assert make_curves(run, "drift") is make_curves(run, "models") is make_curves(run, "round_test") is None
    models = make_curves(dataclasses.replace(run, ledger=[super_record(1), super_record(2)]), "models")
    # of each site, and so of their mean
    assert [panel.lines[MEAN_LINE] for panel in models.panels] == [[0.3, 0.3], [0.5, 0.5], [0.5, 0.5]]
    # A selector that learns later.
    models = make_curves(dataclasses.replace(run, ledger=[super_record(1, None)]), "models")
    assert [panel.title for panel in models.panels] == ["Global model: dice", "Personalised models: dice"]


@pytest.mark.usefixtures("undrawn")
def test_a_test_in_every_round_chose_nothing(records, record):
    def scored(**values):
        return {site: SiteScore(value=value, num_cases=1, num_excluded=0) for site, value in values.items()}

    run = records(record(1, test=scored(east=0.25, west=0.5)), record(2, test=scored(east=0.75, west=0.5)))
    assert ROUND_TEST.scores(record(1)) == {}
    (image,) = [image for image in curve_images(run) if image.plot.name == "round_test"]
    # east ends at 0.75, west at 0.5, their mean is 0.625
    assert image.alt == "Test: dice after round 2: east 0.75, west 0.5, mean over sites 0.625."
    assert "These scores chose neither" in image.caption


@pytest.mark.usefixtures("undrawn")
def test_curves_say_which_round_is_reported_and_why(finished, run, results, record):
    (first, *_) = curve_images(read_run(finished()))
    assert first.caption == "Reported: best validation, round 2 (validation dice 0.500)."
    assert "Training loss after round 2: east 0.5, west 0.5." in first.alt
    last = results(model="last round, 2: no validation data", validation={}, best_round=None)
    files = run("last").json("results.json", last).ledger(record(1, (None, None)), record(2, (None, None)))
    (first, *_) = curve_images(read_run(files.path))
    assert first.caption == "Reported: last round, 2: no validation data."
    assert {panel.marked_round for panel in first.plot.panels} == {None}
    assert curve_images(read_run(run("empty").json("run.json", {}).path)) == []


def test_who_took_part_is_counted_with_its_bytes(record):
    ledger = [
        record(1),
        record(2, answered=["east"], examples={"east": 12}),
        record(3, answered=["east"], failed={"west": "no data"}, examples={"east": 12}),
    ]
    table = participation_table(ledger, ["east", "west", "south"])
    assert table.columns[1:] == ("asked", "answered", "failed", "training examples", "sent to it", "sent by it")
    # three rounds of 1 MB to and 0.5 MB from each site
    assert table.rows[0] == ("east", "3", "3", "0", "12", "3.0 MB", "1.5 MB")
    assert table.rows[1] == ("west", "3", "1", "1", "30", "3.0 MB", "1.5 MB")
    # Who never answered has no training examples.
    assert table.rows[2] == ("south", "0", "0", "0", "-", "0 B", "0 B")
