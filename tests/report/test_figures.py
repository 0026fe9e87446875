import io

import pytest
from PIL import Image

from silofl.report.canvas import LINE_COLOURS
from silofl.report.figures import (
    drift_curves,
    mean_validation,
    model_curves,
    run_curves,
    selector_accuracy,
    traffic_bars,
    training_curves,
    validation_value,
)


def has_colour(png, colour):
    """Whether a picture holds a colour, given as #rrggbb."""
    wanted = tuple(bytes.fromhex(colour[1:]))
    return wanted in {pixel for _, pixel in Image.open(io.BytesIO(png)).convert("RGB").getcolors(2**20)}


def test_each_site_has_a_line_of_its_own_colour(record):
    png = training_curves([record(1), record(2)], ["east", "west"], "dice", 2)
    assert has_colour(png, LINE_COLOURS[0]) and has_colour(png, LINE_COLOURS[1])
    assert not has_colour(png, LINE_COLOURS[2])


def test_curves_draw_a_run_of_one_round_and_sites_without_values(record):
    assert has_colour(training_curves([record(1, (None, 0.5))], ["east", "west", "new"], "dice", None), LINE_COLOURS[1])


def test_the_best_round_changes_the_picture(record):
    ledger = [record(i) for i in range(1, 4)]
    pictures = {training_curves(ledger, ["east", "west"], "dice", best) for best in (None, 1, 3)}
    assert len(pictures) == 3


def test_drift_is_drawn_where_a_round_measured_it(record):
    assert has_colour(drift_curves([record(1), record(2, drift=None)], ["east", "west"]), LINE_COLOURS[0])
    assert drift_curves([record(1, drift=None)], ["east", "west"]) is None


def test_global_and_personalised_models_have_curves_of_their_own(super_record):
    png = model_curves([super_record(1), super_record(2)], ["east", "west"], "dice", 2)
    assert has_colour(png, LINE_COLOURS[0]) and has_colour(png, LINE_COLOURS[1])


def test_a_selector_that_learns_later_has_no_accuracy_to_draw(super_record):
    with_accuracy, without = ([super_record(1, accuracy), super_record(2, accuracy)] for accuracy in (0.5, None))
    assert selector_accuracy(with_accuracy[0], "east") == 0.5 and selector_accuracy(without[0], "east") is None
    assert model_curves(with_accuracy, ["east"], "dice", None) != model_curves(without, ["east"], "dice", None)


def test_a_single_model_has_no_curves_beside_it(record):
    assert model_curves([record(1), record(2)], ["east"], "dice", 2) is None


def test_traffic_shows_both_ways(record):
    png = traffic_bars([record(1), record(2)])
    assert has_colour(png, LINE_COLOURS[0]) and has_colour(png, LINE_COLOURS[5])


@pytest.mark.parametrize("num_sites", [1, 3, 5])
def test_runs_share_one_picture_however_many_sites_there_are(record, num_sites):
    sites = ["east", "west", "a", "b", "c"][:num_sites]
    png = run_curves({"1: fedavg": [record(1), record(2)], "2: harmofl": [record(1)]}, sites)
    assert has_colour(png, LINE_COLOURS[0]) and has_colour(png, LINE_COLOURS[1])


def test_validation_is_none_for_a_site_that_has_none(record):
    assert validation_value(record(1), "east") == 0.4
    assert validation_value(record(1), "new") is None


def test_the_mean_is_over_the_sites_that_validated(record):
    assert mean_validation(record(1, (None, 0.5))) == 0.5
    assert mean_validation(record(1, (None, None))) is None
