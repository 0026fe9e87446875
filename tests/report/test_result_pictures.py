import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from silofl.core.gain import BETTER
from silofl_desk.report.result_pictures import (
    case_image,
    case_images,
    case_ranks,
    hospitals_image,
    normalization_image,
)
from silofl_desk.report.run_records import read_run
from silofl_hospital.report.canvas import PAGE
from silofl_hospital.report.outlines import LABEL_COLOURS, grey_window, label_colours, short_metric
from tests.report.conftest import LABELS, joined


def test_the_figure_holds_each_seed_of_each_hospital(chosen_run):
    one, other = (joined(local=0.5, federated=0.625, kept=kept, difference=0.125) for kept in (0.75, 0.625))
    runs = [chosen_run(north=one), chosen_run(north=other, changes={"seed": 1})]
    alone, image = hospitals_image({"fedavg": runs[:1]}), hospitals_image({"fedavg": runs})
    assert (
        alone.alt == "Test dice, mean over the hospitals: fedavg local 0.500, federated 0.625, kept 0.750 (1 better)."
    )
    assert image.png.startswith(b"\x89PNG") and image.plot.columns[3:7] == (
        "local",
        "federated",
        "at 0.5",
        "kept",
    )
    # gain is kept minus local, its interval joined()'s
    assert image.plot.rows == [
        ("fedavg", "north", 0, 0.5, 0.625, 0.625, 0.75, 0.125, 0.01, 0.2, BETTER),
        ("fedavg", "north", 1, 0.5, 0.625, 0.625, 0.625, 0.125, 0.01, 0.2, BETTER),
    ]
    (axes,) = image.plot.draw(5).axes
    intervals = [list(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    # from alone + 0.01 to alone + 0.2
    assert intervals == [[0.51, 0.7], [0.51, 0.7]]


def intervals_in(image):
    (axes,) = image.plot.draw(5).axes
    return [list(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]


def test_an_interval_is_drawn_where_it_is_of_the_points(chosen_run):
    wide = joined(local=0.9, federated=0.95, kept=0.95, difference=0.05, low=-0.95, high=0.3)
    assert intervals_in(hospitals_image({"fedavg": [chosen_run(north=wide)]})) == [[0.0, 1.0]]
    # Patients with several cases each.
    other = joined(local=0.9, federated=0.95, kept=0.95, difference=0.04, low=-0.01, high=0.1)
    image = hospitals_image({"fedavg": [chosen_run(north=other)]})
    assert intervals_in(image) == [] and image.caption.endswith("points.")


def test_no_interval_of_accuracies_is_drawn_on_another_metrics_scale(chosen_run):
    run = chosen_run(north=joined(local=0.5, federated=0.625, kept=0.75), changes={"metric": "auroc"})
    image = hospitals_image({"fedavg": [run]})
    assert image.plot.columns[7:10] == ("accuracy_gain", "accuracy_gain_low", "accuracy_gain_high")
    (axes,) = image.plot.draw(5).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [1, 1, 1]


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def num_pixels_of(png, colour):
    """Count pixels close to a colour, given as #rrggbb."""
    distance = np.abs(pixels(png) - np.array(list(bytes.fromhex(colour[1:])))).max(axis=-1)
    return int((distance < 40).sum())


def test_outlines_have_the_colours_of_their_labels(pictures):
    one, two = (case_image("east", pictures(labels=labels), LABELS, "dice").png for labels in ((1,), (1, 2)))
    assert num_pixels_of(one, LABEL_COLOURS[0]) > 500
    # the legend names both labels; outlines add much more
    assert num_pixels_of(two, LABEL_COLOURS[1]) > num_pixels_of(one, LABEL_COLOURS[1]) + 500
    assert label_colours({2: "b", 1: "a"}) == {1: LABEL_COLOURS[0], 2: LABEL_COLOURS[1]}


@pytest.mark.parametrize(
    ("cases", "ranks"),
    [
        (("a", "b", "c"), {0: "worst", 1: "median", 2: "best"}),
        (("a", "b", "b"), {0: "worst", 1: "best"}),
        (("a", "a", "a"), {0: "only case"}),
    ],
)
def test_ranks_follow_the_number_of_different_cases(pictures, cases, ranks):
    assert case_ranks(pictures(cases)) == ranks
    # One that all models show has no rank.
    shared = replace(pictures((*cases, "d")), is_ranked=np.array([True, True, True, False]))
    assert case_ranks(shared) == ranks


def test_normalised_images_share_one_grey_scale(finished, pictures):
    assert normalization_image(read_run(finished("none"))) is None
    shown = pictures(cases=("a",))
    shown.images[:] = 0.25
    shown.normalized[:] = 0.75
    image = normalization_image(read_run(finished("some", shown)))
    greys = pixels(image.png)[:, :, 0]
    # black and white
    assert all((np.abs(greys - grey) <= 1).sum() > 10_000 for grey in (0, 255))
    assert "east 0.25 before and 0.75 after" in image.alt


def test_the_window_of_grey_follows_the_values(pictures):
    grey = np.linspace(0, 0.1, 1000, dtype=np.float64).reshape(1, 1, 10, 100)
    assert grey_window([pictures(channels=3).images]) == (0.0, 1.0)
    assert grey_window([np.repeat(grey, 3, axis=1)]) == pytest.approx((0.0005, 0.0995))
    assert grey_window([pictures(channels=3).images - 5])[0] < -4
    # That of a flat image is not empty.
    assert grey_window([np.full((1, 1, 4, 4), 3.0)]) == (3.0, 4.0)


@pytest.mark.usefixtures("undrawn")
def test_each_site_has_a_picture_with_its_values_in_words(finished):
    east, west = case_images(read_run(finished()))
    assert (east.caption, west.caption) == ("east", "west")
    assert "dice of the cases: worst 0.200, best 0.800" in east.alt
    assert short_metric("dice_with_background") == "dice"


@pytest.mark.usefixtures("undrawn")
def test_a_sites_own_model_is_in_picture_and_table(finished, pictures):
    shown = pictures(("a", "b"))
    beside = replace(shown, own=shown.truths, local_values=np.array([1.0, np.nan]))
    east, _ = case_images(read_run(finished("own", beside)))
    assert east.alt.endswith("Of the site's local model: worst 1.000, best -.")
    # A row more makes the picture higher.
    plots = [case_image("east", one, LABELS, "dice").plot for one in (shown, beside)]
    without, height = (plot.draw(PAGE).get_size_inches()[1] for plot in plots)
    assert height > without * 1.2
    assert (plots[1].name, plots[1].columns) == ("cases_east", ("case", "rank", "dice", "local_dice"))
    assert plots[1].rows == [("a", "worst", 0.2, 1.0), ("b", "best", 0.8, None)]


def test_a_picture_prints_the_value_of_each_label(pictures):
    of_labels = np.array([[0.3, 0.1], [0.8, np.nan]])
    shown = replace(pictures(("a", "b")), scored=np.array(["1", "tumour"]), label_values=of_labels)
    figure = case_image("east", shown, {1: "organ"}, "dice").plot.draw(PAGE)
    titles = " ".join(" ".join(axes.get_title() for axes in figure.axes).split())
    assert "organ 0.300 tumour 0.100" in titles and "organ 0.800 tumour -" in titles
