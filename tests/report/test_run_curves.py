import io

import pytest
from PIL import Image

from silofl.report.canvas import LINE_COLOURS
from silofl.report.run_curves import best_so_far, round_test_image, run_curves, validation_image
from silofl.report.run_records import read_run
from silofl.training.site_score import SiteScore


def has_colour(png, colour):
    """Whether a picture holds a colour, given as #rrggbb."""
    wanted = tuple(bytes.fromhex(colour[1:]))
    return wanted in {pixel for _, pixel in Image.open(io.BytesIO(png)).convert("RGB").getcolors(2**20)}


def scores(*values):
    """Return the test of a round at east and west."""
    return {
        site: SiteScore(value=value, num_cases=3, num_excluded=0)
        for site, value in zip(("east", "west"), values, strict=False)
    }


@pytest.fixture
def read(run, results, record):
    """Return the records of a run of two rounds, each with some test or none."""

    def make(name, *tests):
        files = run(name).json("results.json", results()).json("run.json", {})
        return read_run(files.ledger(*(record(i, test=one) for i, one in enumerate(tests, start=1))).path)

    return make


@pytest.mark.parametrize("num_panels", [1, 3, 7])
def test_runs_share_one_picture_however_many_panels_there_are(record, num_panels):
    ledgers = {"1: fedavg": [record(1), record(2)], "2: harmofl": [record(1)]}
    values = {f"panel {i}": {"1: fedavg": [0.5, 0.6], "2: harmofl": [0.4]} for i in range(num_panels)}
    png = run_curves(ledgers, values)
    assert has_colour(png, LINE_COLOURS[0]) and has_colour(png, LINE_COLOURS[1])
    assert not has_colour(png, LINE_COLOURS[2])


def test_a_run_looks_the_same_in_a_panel_that_others_are_not_in(record):
    ledgers = {"1: fedavg": [record(1)], "2: harmofl": [record(1)]}
    png = run_curves(ledgers, {"all": {"2: harmofl": [0.5]}})
    assert has_colour(png, LINE_COLOURS[1]) and not has_colour(png, LINE_COLOURS[0])


def test_the_best_so_far_never_falls_and_waits_for_the_first_validation(record):
    means = [None, 0.5, 0.25, None, 0.75]
    ledger = [record(number, (mean, mean)) for number, mean in enumerate(means, start=1)]
    assert best_so_far(ledger) == [None, 0.5, 0.5, 0.5, 0.75]


def test_tests_of_every_round_are_drawn_of_the_runs_that_have_them_and_chose_nothing(read):
    both = [read("with", scores(0.5, 0.6), scores(0.7, 0.8)), read("without", None, None)]
    image = round_test_image(both)
    assert image.alt == "Test of 1 runs over their rounds: mean over sites, and east, west."
    assert "These scores chose nothing" in image.caption
    assert round_test_image(both[1:]) is None and validation_image(both).alt.startswith("Validation of 2 runs")


def test_another_test_is_another_picture_and_leaves_that_of_the_validation_as_it_is(read):
    one, other = (
        [read(name, scores(0.5, 0.6), scores(*last))] for name, last in (("a", (0.7, 0.8)), ("b", (0.1, 0.8)))
    )
    assert round_test_image(one).png != round_test_image(other).png
    assert validation_image(one).png == validation_image(other).png


def test_before_the_first_round_there_is_nothing_to_draw(run):
    records = read_run(run().json("run.json", {}).path)
    assert validation_image([records]) is None and round_test_image([records]) is None
