import base64
import io

import matplotlib
from matplotlib.lines import Line2D
from PIL import Image

from silofl_hospital.report.canvas import (
    PageImage,
    draw_legend,
    encode_png,
    escape_math,
    line_style,
    make_panels,
)


def test_a_figure_leaves_the_global_state_of_matplotlib_alone():
    before = dict(matplotlib.rcParams)
    figure, axes = make_panels(1, 2, (4, 2))
    assert axes.shape == (1, 2)
    png = encode_png(figure, dpi=50)
    assert Image.open(io.BytesIO(png)).size == (200, 100) and dict(matplotlib.rcParams) == before
    scheme, data = PageImage(png, "alt", "caption").uri.split(",")
    assert scheme == "data:image/png;base64" and base64.b64decode(data) == png


def test_lines_differ_without_their_colour():
    styles = [line_style(i) for i in range(28)]
    assert len({(style["linestyle"], style["marker"]) for style in styles}) == 28
    # neighbours in the legend differ in each of the three
    for key in ("color", "linestyle", "marker"):
        assert all(a[key] != b[key] for a, b in zip(styles, styles[1:], strict=False))


def test_signs_in_names_are_drawn_and_not_read():
    figure, ((axes,),) = make_panels(1, 1, (2, 2))
    axes.set_title(escape_math("$broken_{ $"))
    draw_legend(figure, [Line2D([], [])], ["_hidden $x^$"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [r"_hidden \$x^\$"]
    assert encode_png(figure).startswith(b"\x89PNG")
