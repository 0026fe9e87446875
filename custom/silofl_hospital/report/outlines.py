"""Images of cases with the outlines of their labels, and the titles over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silofl_hospital.report.canvas import (
    INK,
    LINE_STYLES,
    MUTED,
    PageImage,
    Plot,
    draw_legend,
    escape_math,
    make_image,
    make_legend_handle,
    make_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Bright on grey tissue and on stained slides alike; each outline has a black rim.
LABEL_COLOURS = ("#22d3ee", "#ffb000", "#f472b6", "#a3e635", "#ff5c33", "#c4b5fd", "#ffffff", "#2dd4bf")
PANEL_INCH = 2.1
MARGIN = 0.4
# So many letters of a title, and of the name below it, fit into an inch.
TITLE_LETTERS = 11
NAME_LETTERS = 12
PICTURE_DPI = 110
Window = tuple[float, float]


def grey_window(images: Sequence[NDArray[Any]]) -> Window:
    """Return the values shown as black and white: 0 and 1 for colour within them, else the 0.5 and 99.5 percentile.

    Args:
        images: Arrays of shape (..., C, H, W).
    """
    values = np.concatenate([array.ravel() for array in images])
    is_grey = all(np.array_equal(array, np.broadcast_to(array[..., :1, :, :], array.shape)) for array in images)
    if not is_grey and values.min() >= 0 and values.max() <= 1:
        return 0.0, 1.0
    # Percentiles, because a few very bright pixels would leave the others black.
    low, high = np.percentile(values, (0.5, 99.5))
    return float(low), float(high) if high > low else float(low) + 1


def label_colours(labels: Mapping[int, str]) -> dict[int, str]:
    """Return number -> colour of all labels."""
    return {number: LABEL_COLOURS[i % len(LABEL_COLOURS)] for i, number in enumerate(sorted(labels))}


def short_metric(metric: str) -> str:
    """Return the first word of a metric's name, for titles."""
    return metric.partition("_")[0]


def make_trimmed_image(plot: Plot, alt: str, caption: str) -> PageImage:
    """Draw pictures of cases for a page, without empty margins."""
    return make_image(plot, alt, caption, PICTURE_DPI, is_trimmed=True)


def panel_inches(rows: int, columns: int, panel: float = PANEL_INCH) -> tuple[float, float]:
    """Return the size of a figure with square panels of so many inches."""
    return panel * columns + MARGIN, (panel + 0.1) * rows + 2 * MARGIN


def show_image(axes: Axes, image: NDArray[Any], window: Window) -> None:
    """Show a grey or colour image of shape (C, H, W)."""
    scaled = np.clip((image - window[0]) / (window[1] - window[0]), 0, 1)
    pixels = scaled.transpose(1, 2, 0) if len(image) == 3 else scaled[0]
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def draw_outlines(axes: Axes, mask: NDArray[Any], labels: Mapping[int, str]) -> None:
    """Draw the outline of each label."""
    from matplotlib.patheffects import withStroke

    # The margin closes outlines at the edge of the image.
    padded = np.pad(mask, 1)
    y, x = (np.arange(-1, size + 1) for size in mask.shape)
    for (label, colour), dash in zip(label_colours(labels).items(), cycle(LINE_STYLES)):
        if (mask == label).any():
            lines = axes.contour(x, y, padded == label, levels=[0.5], colors=[colour], linewidths=1.3)
            lines.set_linestyle(dash)
            lines.set_path_effects([withStroke(linewidth=2.6, foreground="black", alpha=0.6)])
    axes.set(xlim=(-0.5, mask.shape[1] - 0.5), ylim=(mask.shape[0] - 0.5, -0.5))


def write_title(axes: Axes, title: str, name: str, panel: float = PANEL_INCH) -> None:
    """Write a title, of any number of lines, and a name above a panel of so many inches, each line cut to its width."""
    of_title = int(panel * TITLE_LETTERS)
    of_name = int(panel * NAME_LETTERS)
    short = name if len(name) <= of_name else "..." + name[3 - of_name :]
    lines = []
    for line in title.split("\n"):
        # It is cut within, because a score may stand at the end.
        lines.append(line if len(line) <= of_title else f"{line[: of_title - 8]}...{line[-5:]}")
    axes.set_title(escape_math("\n".join(lines)), fontsize=10.5, color=INK, fontweight="bold", pad=17)
    axes.annotate(
        escape_math(short),
        (0.5, 1),
        xycoords="axes fraction",
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        color=MUTED,
    )


def name_rows(column: Iterable[Axes], names: Sequence[str]) -> None:
    """Write a name at the left of each row of panels."""
    for axes, name in zip(column, names, strict=True):
        axes.set_ylabel(escape_math(name), fontsize=11, color=INK)


@dataclass(frozen=True, eq=False)
class CaseColumn:
    """A case as a column of panels: its image, and below it once more with each outline.

    Attributes:
        title: Above it, of any number of lines.
        case: Its name.
        image: (C, H, W).
        masks: Name of a row -> label map (H, W); the same rows for all cases, none of a class.
    """

    title: str
    case: str
    image: NDArray[Any]
    masks: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def draw_cases(cases: Sequence[CaseColumn], labels: Mapping[int, str], window: Window | None = None) -> Figure:
    """Draw cases side by side, small enough for any width; without a window each has its own grey scale."""
    names = ("image", *cases[0].masks)
    figure, grid = make_panels(len(names), len(cases), panel_inches(len(names), len(cases)), "compressed")
    for column, case in zip(grid.T, cases, strict=True):
        case_window = window or grey_window([case.image])
        for axes in column:
            show_image(axes, case.image, case_window)
        for axes, mask in zip(column[1:], case.masks.values(), strict=True):
            draw_outlines(axes, mask, labels)
        write_title(column[0], case.title, case.case)
    name_rows(grid[:, 0], names)
    return add_label_legend(figure, labels) if labels else figure


def add_label_legend(figure: Figure, labels: Mapping[int, str]) -> Figure:
    """Name the labels' colours below a figure, and return it."""
    colours = label_colours(labels)
    dashes = zip(colours.values(), cycle(LINE_STYLES))
    handles = [make_legend_handle(color=colour, linewidth=3, linestyle=dash) for colour, dash in dashes]
    draw_legend(figure, handles, [labels[number] for number in colours], size=11)
    return figure
