import json

import landscape_figures
import numpy as np
import pytest
from landscape_figures import SiteLandscape, landscape_table, lines_image, plane_image
from loss_surface import Landscape, line_points, plane_points
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm

DRAW = {"plane": plane_image, "lines": lines_image}


def bowl(kind, scale=1.0, height=1.0, depth=0.25):
    """Return a landscape of ``depth + height |p|^2``, of two directions."""
    points = plane_points(scale, 2) if kind == "plane" else line_points(scale, 2, 2)
    return Landscape(points, depth + height * np.square(points).sum(axis=1))


def rows_of(kind, runs=("1: fedavg", "2: harmofl"), sites=("east", "west"), **options):
    scales = (1.0, 8.0)
    return [
        SiteLandscape(run, site, scale, 5, bowl(kind, scale, **options))
        for scale in scales
        for run in runs
        for site in sites
    ]


def test_the_table_has_centre_lowest_place_and_rise():
    table = landscape_table([SiteLandscape("1: fedavg", "east", 1.0, 5, bowl("lines"))])
    assert table.columns == (
        "run", "site", "scale", "images", "loss at centre", "lowest loss", "at distance", "mean rise",
    )  # fmt: skip
    # all four ends are 1 away
    assert table.rows == (("1: fedavg", "east", "1", "5", "0.25", "0.25", "0", "1"),)


def test_a_lowest_loss_on_the_border_is_marked():
    ((*_, distance, _),) = landscape_table([SiteLandscape("a", "b", 1.0, 5, bowl("lines", height=-0.125))]).rows
    assert distance == "1 (border)"


def test_numbers_are_plain_and_a_loss_that_is_no_number_is_none():
    found = bowl("plane")
    found.losses[0] = np.inf
    row = SiteLandscape("a", "b", 1.0, 5, found)
    values = json.loads(json.dumps(row.as_dict(), allow_nan=False))
    assert values["losses"][0][0] is None and values["mean_rise"] is None
    assert values["losses"][2] == [1.25, 0.5, 0.25, 0.5, 1.25] and values["axis"] == [-1, -0.5, 0, 0.5, 1]
    assert values["lowest"] == {"loss": 0.25, "point": [0, 0], "distance": 0, "is_on_border": False}
    assert landscape_table([row]).rows[0][-1] == "-"


@pytest.fixture
def drawn(monkeypatch):
    """Return the figure that a function draws, and its image, which is not encoded."""

    def draw(kind, rows):
        figures = []
        monkeypatch.setattr(landscape_figures, "encode_png", lambda figure, dpi: figures.append(figure) or b"")
        image = DRAW[kind](rows, "dice of $test$ images")
        return figures[0], image

    return draw


@pytest.mark.parametrize("kind", DRAW)
@pytest.mark.parametrize("runs", [("1: fedavg",), ("1: fedavg", "2: harmofl")])
def test_a_figure_has_a_column_a_site(drawn, kind, runs):
    sizes = []
    for sites in (("a", "b"), ("a", "b", "c")):
        figure, image = drawn(kind, rows_of(kind, runs, sites))
        sizes.append(figure.get_size_inches())
        assert ", ".join(runs) in image.alt and ", ".join(sites) in image.alt
    np.testing.assert_allclose(sizes[1] - sizes[0], [landscape_figures.PANEL_INCH, 0])


def test_a_plane_has_a_row_a_run_and_lines_have_one_style_each(drawn):
    heights = {}
    for kind in DRAW:
        one, two = (drawn(kind, rows_of(kind, runs))[0].get_size_inches()[1] for runs in (("a",), ("a", "b")))
        heights[kind] = two - one
    # two scales
    assert heights == {"plane": pytest.approx(2 * landscape_figures.PANEL_INCH), "lines": 0}


def maps_of(figure):
    """Return the colour mesh of each panel, without the colour bars."""
    return [axes.collections[0] for axes in figure.axes if axes.get_title()]


def test_all_maps_of_a_scale_have_one_range_of_colours(drawn):
    rows = [
        SiteLandscape(run, "east", 1.0, 5, bowl("plane", height=height))
        for run, height in (("1: fedavg", 2.0), ("2: harmofl", 0.5))
    ]
    # the corners are at 0.25 + 2 (1 + 1)
    assert [mesh.get_clim() for mesh in maps_of(drawn("plane", rows)[0])] == [(0.25, 4.25), (0.25, 4.25)]


def test_a_map_shows_the_first_direction_to_the_right_and_marks_centre_and_lowest_loss(drawn):
    points = plane_points(1, 1)
    # falls along the first direction alone
    row = SiteLandscape("a", "east", 1.0, 5, Landscape(points, 2.0 - points[:, 0]))
    figure, _ = drawn("plane", [row])
    (mesh,) = maps_of(figure)
    np.testing.assert_array_equal(mesh.get_array().reshape(3, 3), [[3, 2, 1]] * 3)
    marks = {line.get_marker(): tuple(line.get_xydata()[0]) for line in figure.axes[0].lines}
    assert marks == {"+": (0, 0), "o": (1, 0)}


def test_a_wide_range_is_logarithmic(drawn):
    norms = [
        maps_of(drawn("plane", [SiteLandscape("a", "b", 1.0, 5, bowl("plane", height=height))])[0])[0].norm
        for height in (1.0, 100.0)
    ]
    assert [isinstance(norm, LogNorm) for norm in norms] == [False, True]
    scales = [
        drawn("lines", [SiteLandscape("a", "b", 1.0, 5, bowl("lines", height=height))])[0].axes[0].get_yscale()
        for height in (1.0, 100.0)
    ]
    assert scales == ["linear", "log"]


def test_the_thick_line_is_the_mean_of_the_thin_ones(drawn):
    points = line_points(1, 1, 2)
    found = Landscape(points, np.array([3.0, 1.0, 2.0, 5.0, 1.0, 4.0]))
    (axes,) = drawn("lines", [SiteLandscape("a", "b", 1.0, 5, found)])[0].axes
    thick = max(axes.lines, key=lambda line: line.get_linewidth())
    assert len(axes.lines) == 3 and thick.get_ydata().tolist() == [4.0, 1.0, 3.0]


@pytest.mark.parametrize("kind", DRAW)
@pytest.mark.parametrize("losses", [0.5, 0.0, np.nan])
def test_a_level_or_unknown_landscape_is_drawn_without_a_warning(kind, losses, recwarn):
    found = bowl(kind)
    found.losses[:] = losses
    assert DRAW[kind]([SiteLandscape("a", "b", 1.0, 5, found)], "x").png.startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []


def test_a_long_name_of_a_run_stays_beside_its_row(drawn):
    figure, _ = drawn("plane", rows_of("plane", runs=(f"1: harmofl {'learning_rate=0.003 ' * 5}", "2: fedavg")))
    FigureCanvasAgg(figure).draw()
    named = [axes for axes in figure.axes if "direction" in axes.get_ylabel()]
    assert len(named) == 4
    for axes in named:
        label, panel = axes.yaxis.label.get_window_extent(), axes.get_window_extent()
        assert panel.y0 <= label.y0 and label.y1 <= panel.y1
