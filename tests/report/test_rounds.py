import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from silofl.base.schema import read_record
from silofl.training.site_score import SiteScore
from silofl_desk.report.rounds import (
    MEAN_LINE,
    ROUND_TEST,
    VALIDATION,
    curve_images,
    drift_curves,
    mean_over_sites,
    model_curves,
    round_test_curves,
    selector_accuracy,
    training_curves,
    weights_image,
)
from silofl_desk.report.run_records import SiteWeights, read_run
from silofl_hospital.report.canvas import LINE_COLOURS, PAGE, encode_png
from tests.report.conftest import shown_colours

BEFORE = ([0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.25, 0.25, 0.5])


@pytest.fixture
def weights():
    """Build one computation for the sites a, b and c; of a row given as two numbers, the own weight is 0.5."""

    def build(*rows, sites=("a", "b", "c"), **changes):
        size = len(sites)
        matrix = np.array(rows) if rows else np.full((size, size), 1 / size)
        values = {"round": 3, "source": "running", "layers": "all", "self_weight": 0.5, "without": {}}
        distances = (np.ones((size, size)) - np.eye(size)).tolist()
        values |= {"sites": list(sites), "distances": distances, "weights": matrix.tolist()}
        return read_record(SiteWeights, values | changes, "weights.json")

    return build


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "running statistics of the BatchNorm layers"),
        ({"source": "pretrained"}, "inputs of the BatchNorm layers in a pretrained model"),
        ({"source": "pretrained", "layers": "last"}, "inputs of the last layer in a pretrained model"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_the_caption_says_what_sites_are_compared_by(weights, changes, words):
    caption = weights_image(weights(*BEFORE, **changes)).caption
    assert words in caption and "lambda = 0.5" in caption and "Hatched" not in caption


@pytest.mark.usefixtures("undrawn")
def test_a_site_that_shares_nothing_is_hatched_and_said(weights):
    distances = [[0, None, 1], [None] * 3, [1, None, 0]]
    shown = weights(*BEFORE, distances=distances, without={"b": "too few examples"})
    image = weights_image(shown)
    assert "Hatched: a site that shares no statistics" in image.caption
    patches = [patch for axes in image.plot.draw(PAGE).axes for patch in axes.patches]
    # the distances of b to a, b and c and of a and c to b
    assert sum(patch.get_hatch() is not None for patch in patches) == 5
    assert ("a", "b", 0.3, None) in image.plot.rows


# From 11 sites on without numbers in the cells.
@pytest.mark.parametrize("count", [1, 11])
def test_any_number_of_sites_has_a_picture(weights, count):
    image = weights_image(weights(sites=[f"site-{i}" for i in range(count)]))
    assert Image.open(io.BytesIO(image.png)).size[0] > 1000 and f"{count} sites" in image.alt


def draw(plot):
    """Return the PNG of a plot."""
    return encode_png(plot.draw(PAGE))


def drawn_lines(plot):
    """Return the values of the first panel's lines by their colours; of one value alone the marker shows."""
    lines = [line for line in plot.draw(PAGE).axes[0].lines if len(line.get_ydata()) > 1 or line.get_markersize()]
    return {line.get_color(): [*line.get_ydata()] for line in lines}


@pytest.fixture
def records(run, results):
    """Return the records of a run with these rounds."""
    return lambda *ledger: read_run(run().json("results.json", results()).ledger(*ledger).path)


def test_each_site_has_a_line_of_its_own_colour(record):
    png = draw(training_curves([record(1), record(2)], ["east", "west"], "dice", 2))
    assert shown_colours(png, LINE_COLOURS[:3]) == [True, True, False]


def test_the_table_of_curves_has_the_values_that_are_drawn(record):
    curves = training_curves([record(1), record(2, (None, 0.5))], ["east", "west"], "dice", None)
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
    # Of one round too.
    alone = training_curves([record(1, (None, 0.5))], ["east", "west", "new"], "dice", None)
    assert drawn_lines(alone)[LINE_COLOURS[1]] == [0.5]


def test_with_differential_privacy_what_is_spent_is_drawn_in_place_of_the_loss(record):
    spent = {"east": {"epsilon": 0.5}, "west": {"epsilon": 0.7}}
    ledger = [dataclasses.replace(record(number), metrics=spent) for number in (1, 2)]
    panel = training_curves(ledger, ["east", "west"], "dice", 2).panels[-1]
    assert panel.title == "Epsilon of differential privacy"
    assert panel.lines == {"east": [0.5, 0.5], "west": [0.7, 0.7]}


@pytest.mark.parametrize("best", [1, 3])
def test_the_best_round_is_marked_by_its_number_which_covers_no_value(record, best):
    ledger = [record(number, (0.5, 0.5)) for number in range(1, 4)]
    ledger[best - 1] = record(best, (0.9, 0.9))
    figure = training_curves(ledger, ["east", "west"], "dice", best).draw(PAGE)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    (label,) = axes.texts
    assert str(best) in label.get_text()
    # 4.5 points is the size of a marker
    radius = 4.5 / 2 / 72 * figure.dpi
    assert label.get_window_extent().y0 > axes.transData.transform((best, 0.9))[1] + radius


def test_drift_is_drawn_where_a_round_measured_it(record, records, run, results):
    without = {"east": {"loss": 0.5}, "west": {"loss": 0.5}}
    assert LINE_COLOURS[0] in drawn_lines(drift_curves(records(record(1), record(2, metrics=without))))
    nowhere = run("none").json("results.json", results()).ledger(record(1, metrics=without, drift=None))
    assert drift_curves(read_run(nowhere.path)) is None


def test_global_and_personalised_models_have_curves_of_their_own(super_record, record, records):
    curves = model_curves(records(super_record(1), super_record(2)))
    # of each site, and so of their mean
    assert [panel.lines[MEAN_LINE] for panel in curves.panels] == [[0.3, 0.3], [0.5, 0.5], [0.5, 0.5]]
    assert {*LINE_COLOURS[:2]} <= drawn_lines(curves).keys()


def test_a_selector_that_learns_later_has_no_accuracy_to_draw(super_record, records):
    without = super_record(1, None)
    assert selector_accuracy(super_record(1, 0.5), "east") == 0.5 and selector_accuracy(without, "east") is None
    titles = [panel.title for panel in model_curves(records(without)).panels]
    assert titles == ["Global model: dice", "Personalised models: dice"]


def test_a_single_model_has_no_curves_beside_it(record, records):
    assert model_curves(records(record(1), record(2))) is None


def test_the_mean_is_over_the_sites_that_validated(record):
    assert mean_over_sites(VALIDATION.scores(record(1, (None, 0.5)))) == 0.5
    assert mean_over_sites(VALIDATION.scores(record(1, (None, None)))) is None


@pytest.mark.usefixtures("undrawn")
def test_a_test_in_every_round_has_a_figure_that_says_that_it_chose_nothing(records, record):
    def scored(**values):
        return {site: SiteScore(value=value, num_cases=1, num_excluded=0) for site, value in values.items()}

    ledger = [record(1, test=scored(east=0.25, west=0.5)), record(2, test=scored(east=0.75, west=0.5))]
    # (0.25 + 0.5) / 2
    assert mean_over_sites(ROUND_TEST.scores(ledger[0])) == 0.375 and ROUND_TEST.scores(record(1)) == {}
    run = records(*ledger)
    assert round_test_curves(dataclasses.replace(run, ledger=[record(1)])) is None
    (image,) = [image for image in curve_images(run) if image.plot.name == "round_test"]
    # east ends at 0.75, west at 0.5, their mean is 0.625
    assert image.alt == "Test: dice after round 2: east 0.75, west 0.5, mean over sites 0.625."
    assert drawn_lines(image.plot)[LINE_COLOURS[0]] == [0.25, 0.75]
    assert "These scores chose neither" in image.caption


@pytest.mark.usefixtures("undrawn")
def test_curves_say_which_round_is_reported_and_why(finished, run, results, record):
    (first, *_) = curve_images(read_run(finished()))
    assert first.caption == "Reported: best validation, round 2 (validation dice 0.500)."
    assert "Training loss after round 2: east 0.5, west 0.5." in first.alt
    last = results(model="last round, 2: no validation data", validation={})
    files = run("last").json("results.json", last).ledger(record(1, (None, None)), record(2, (None, None)))
    (first, *_) = curve_images(read_run(files.path))
    assert first.caption == "Reported: last round, 2: no validation data."


@pytest.mark.usefixtures("undrawn")
def test_a_mean_of_rounds_is_no_round_of_the_curves(finished):
    how = "best validation, mean of the models of rounds 1 to 2"
    mean = read_run(finished(best_round=None, model=how, validation={"east": {"value": 0.5}, "west": {"value": 0.75}}))
    (first, *_) = curve_images(mean)
    # (0.5 + 0.75) / 2, and no round of the ledger
    assert first.caption == f"Reported: {how} (validation dice 0.625)."
    assert {panel.marked_round for panel in first.plot.panels} == {None}


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_a_selector_has_curves_of_both_models(finished_super, run, super_results, super_record):
    image = curve_images(read_run(finished_super()))[1]
    assert "Selector: slices it gets right after round 2: east 0.5" in image.alt
    assert "else with the global model" in image.caption
    files = run("without").json("results.json", super_results()).ledger(super_record(1, None), super_record(2, None))
    image = curve_images(read_run(files.path))[1]
    assert "elector" not in image.alt + image.caption


def test_before_the_first_round_there_are_no_curves(run):
    records = read_run(run().json("run.json", {}).path)
    assert curve_images(records) == []
