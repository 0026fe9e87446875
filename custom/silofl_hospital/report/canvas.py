"""Figures for the pages, drawn without matplotlib's global state: colours and styles, lines over rounds, heat maps."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

# matplotlib is imported where something is drawn: it takes a second, and most commands draw late or nothing.
if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito's colours, which differ for every kind of colour vision.
LINE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
LINE_STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#1f2933"
MUTED = "#66727f"
GRID = "#e3e8ee"
DPI = 144
MOST_MARKERS = 30
# A figure on a page is so many inches wide.
PAGE = 10.4
LEAST_PANEL = 2.0
LEGEND_ROW = 0.22
Values = Sequence[float | None]
Layout = Literal["constrained", "compressed"]


@dataclass(frozen=True)
class Plot:
    """Values that can be drawn.

    Attributes:
        name: The name of the figure's files, without an ending.
        columns: Names of the columns.
        rows: One tuple a row; None where a value is missing.
        draw: Draws them in at most so many inches.
    """

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    draw: Callable[[float], Figure]


@dataclass(frozen=True)
class PageImage:
    """A picture on a page.

    Attributes:
        png: The file's bytes.
        alt: A description for readers who do not see it, with its main numbers.
        caption: How to read it.
        plot: What it shows; None of a picture that has no files of its own.
        svg: The first as SVG; empty without a plot.
    """

    png: bytes
    alt: str
    caption: str
    plot: Plot | Curves | None = None
    svg: bytes = b""

    @property
    def uri(self) -> str:
        """The picture as a data URI."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


def make_image(plot: Plot | Curves, alt: str, caption: str, dpi: int = DPI, is_trimmed: bool = False) -> PageImage:
    """Draw a figure for a page, and as SVG.

    Args:
        alt: A description for readers who do not see it.
        caption: How to read it.
        is_trimmed: Whether empty margins are cut.
    """
    figure = plot.draw(PAGE)
    png = encode_png(figure, dpi, is_trimmed)
    # It is laid out by now, which takes as long as drawing it.
    figure.set_layout_engine("none")
    return PageImage(png, alt, caption, plot, encode_svg(figure, is_trimmed))


def lay_out_panels(
    number: int, width: float, height: float, least: float = LEAST_PANEL, shares_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a new figure with panels in as few rows as leave each of them its least width.

    Args:
        width: Of the figure, in inches.
        height: Of a panel, in inches.
        least: Width of a panel, in inches.
        shares_y: Whether all have one vertical scale.
    """
    fitting = max(1, min(number, int(width / least)))
    rows = ceil(number / fitting)
    figure, grid = make_panels(rows, ceil(number / rows), (width, height * rows + 2 * LEGEND_ROW), shares_y=shares_y)
    # The last row may have room for more panels than there are.
    for axes in grid.flat[number:]:
        axes.remove()
    return figure, list(grid.flat[:number])


def make_panels(
    rows: int, columns: int, size: tuple[float, float], layout: Layout = "constrained", shares_y: bool = False
) -> tuple[Figure, NDArray[Any]]:
    """Return a new figure of ``size`` inches and its axes, shape (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout=layout, facecolor="white")
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=shares_y)


def encode_png(figure: Figure, dpi: int = DPI, is_trimmed: bool = False) -> bytes:
    """Return a figure as the bytes of a PNG file, without its empty margin where it is trimmed."""
    stream = io.BytesIO()
    # Without matplotlib's version in the file, the same figure gives the same bytes.
    figure.savefig(
        stream, format="png", dpi=dpi, metadata={"Software": None}, bbox_inches="tight" if is_trimmed else None
    )
    return stream.getvalue()


def encode_svg(figure: Figure, is_trimmed: bool = False) -> bytes:
    """Return a figure as the bytes of an SVG file, whose letters are outlines, so that it needs no font."""
    from matplotlib import rc_context

    stream = io.BytesIO()
    # With a salt and without a date, the same figure gives the same bytes.
    with rc_context({"svg.hashsalt": "silofl"}):
        figure.savefig(
            stream, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight" if is_trimmed else None
        )
    return stream.getvalue()


def style_axes(axes: Axes, title: str, label: str) -> None:
    """Style axes: a title, a label below, few lines."""
    axes.set_title(escape_math(title), loc="left", fontsize=10.5, color=INK, fontweight="bold")
    axes.set_xlabel(escape_math(label), fontsize=9, color=MUTED)
    axes.tick_params(which="both", labelsize=8.5, colors=MUTED, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


def style_rounds(axes: Axes, title: str, rounds: Sequence[int]) -> None:
    """Style axes over rounds, with ticks at integers."""
    style_axes(axes, title, "round")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set_xlim(min(rounds, default=1) - 0.5, max(rounds, default=1) + 0.5)


def line_style(number: int) -> dict[str, str]:
    """Return colour, dash and marker of a line by its number; 28 lines differ without their colour."""
    return {
        "color": LINE_COLOURS[number % len(LINE_COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINE_STYLES[number % len(LINE_STYLES)],
    }


def draw_line(axes: Axes, rounds: Sequence[int], values: Sequence[float | None], **style: Any) -> Line2D:  # noqa: ANN401
    """Draw a line over rounds with a marker at each value, or at some of many unless gaps leave points alone."""
    numbers = as_values(values)
    gaps = np.isnan(np.pad(numbers, 1, constant_values=np.nan))
    is_sparse = len(rounds) <= MOST_MARKERS or bool((gaps[:-2] & ~gaps[1:-1] & gaps[2:]).any())
    every = 1 if is_sparse else len(rounds) // MOST_MARKERS + 1
    return axes.plot(rounds, numbers, **{"marker": "o", "markersize": 4.5, "markevery": every, **style})[0]


def make_legend_handle(**style: Any) -> Line2D:  # noqa: ANN401
    """Return a line of no points, which shows a style in a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **style)


def draw_legend(figure: Figure, handles: Sequence[Artist], names: Sequence[str], size: int = 9) -> None:
    """Put one legend below all panels of a figure, in as many columns as its width has room for."""
    if handles:
        # A letter is about 0.6 of its size wide; a handle with its gaps takes as much as 9 letters.
        letters = figure.get_figwidth() * 72 / (0.6 * size)
        columns = min(len(handles), max(1, int(letters / (max(map(len, names)) + 9))))
        # Further rows of names take nothing of the panels.
        figure.set_figheight(figure.get_figheight() + LEGEND_ROW * (ceil(len(handles) / columns) - 1))
        figure.legend(
            handles,
            [escape_math(name) for name in names],
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            # Long enough to show a dash with its marker.
            handlelength=3.2,
            fontsize=size,
            labelcolor=INK,
        )


def escape_math(text: str) -> str:
    """Escape the dollar signs that matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def as_values(values: Sequence[float | None]) -> NDArray[Any]:
    """Return values as an array, with NaN for None, which matplotlib draws as a gap."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


@dataclass(frozen=True)
class Panel:
    """One panel of a figure.

    Attributes:
        title: Stands above it.
        lines: Name of a line -> its value in each of its rounds; None is a gap.
        marked_round: A round with a vertical line; None without.
    """

    title: str
    lines: Mapping[str, Values]
    marked_round: int | None = None


@dataclass(frozen=True)
class Curves:
    """Lines over rounds.

    Attributes:
        name: The name of the figure's files.
        rounds: Name of a line -> its rounds, the same in all panels.
        styles: Name of a line -> how it is drawn, in the order of the legend.
        panels: At least one.
        height: Of a panel, in inches.
        least_width: Of a panel, in inches.
        shares_y: Whether all panels have one vertical scale.
    """

    name: str
    rounds: Mapping[str, Sequence[int]]
    styles: Mapping[str, Mapping[str, Any]]
    panels: tuple[Panel, ...]
    height: float = 3.2
    least_width: float = LEAST_PANEL
    shares_y: bool = False
    columns: ClassVar[tuple[str, ...]] = ("panel", "line", "round", "value")

    @property
    def rows(self) -> list[tuple[object, ...]]:
        """One row per panel, line and round."""
        rows: list[tuple[object, ...]] = []
        for panel in self.panels:
            for line, values in panel.lines.items():
                for number, value in zip(self.rounds[line], values, strict=True):
                    rows.append((panel.title, line, number, value))
        return rows

    def draw(self, width: float) -> Figure:
        """Draw the lines, with one legend for all panels."""
        figure, grid = lay_out_panels(len(self.panels), width, self.height, self.least_width, self.shares_y)
        handles: dict[str, Line2D] = {}
        all_rounds: set[int] = set().union(*self.rounds.values())
        for axes, panel in zip(grid, self.panels, strict=True):
            for name, values in panel.lines.items():
                handles[name] = draw_line(axes, self.rounds[name], values, **self.styles[name])
            style_rounds(axes, panel.title, sorted(all_rounds))
            if panel.marked_round is not None:
                _mark_round(axes, panel.marked_round)
        names = [name for name in self.styles if name in handles]
        draw_legend(figure, [handles[name] for name in names], names)
        return figure


def _mark_round(axes: Axes, number: int) -> None:
    """Draw a vertical line at a round with its number on the side that has more room."""
    # The number needs room above the curves.
    axes.margins(y=0.1)
    axes.axvline(number, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    is_left = 2 * number < sum(axes.get_xlim())
    axes.annotate(
        f"round {number}",
        (number, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3 if is_left else -3, -2),
        textcoords="offset points",
        ha="left" if is_left else "right",
        va="top",
        fontsize=8.5,
        color=MUTED,
    )
