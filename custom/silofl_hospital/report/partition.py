"""The examples of each class at each site of imported data: a table, and a plot of dots.

The plot is Fig. 5 of AdaFed (Chen et al., arXiv:2112.00734): the area of a dot is the number of examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from silofl.base.files import write_atomically, write_text
from silofl.data.manifest import PARTS
from silofl_hospital.report.canvas import (
    GRID,
    INK,
    LINE_COLOURS,
    PageImage,
    encode_png,
    escape_math,
    make_legend_handle,
    make_panels,
)
from silofl_hospital.report.tables import TextTable, markdown_table, print_lines, print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Counts = Mapping[str, Mapping[str, Mapping[str, int]]]
Examples = Mapping[str, Mapping[str, int]]
NOTE = "A class's column counts training examples; the last three columns count all examples of each part."
CELL_INCH = 0.42
LARGEST_DOT = 0.92
TRAINING, TEST = LINE_COLOURS[5], LINE_COLOURS[1]


def partition_table(counts: Counts, examples: Examples) -> TextTable:
    """Return one row a site with its training examples by class, then all examples of each part.

    Args:
        counts: Site -> part -> class -> number of examples; what is missing is 0.
        examples: Site -> part -> number of examples, of which one may have several findings, or none.
    """
    classes = _all_classes(counts)
    rows = [
        [_tally(counts, site, "training", name) for name in classes] + [examples[site].get(part, 0) for part in PARTS]
        for site in counts
    ]
    rows.append([sum(column) for column in zip(*rows, strict=True)])
    cells = tuple((name, *map(str, row)) for name, row in zip((*counts, "all sites"), rows, strict=True))
    return TextTable(("site", *classes, *PARTS), cells, num_summary=1)


def partition_image(counts: Counts) -> PageImage:
    """Return the dot plot: a dot for the training examples of a class at a site, a ring for the test examples.

    Args:
        counts: Site -> part -> class -> number of examples; what is missing is 0.
    """
    classes = _all_classes(counts)
    largest = max((n for parts in counts.values() for part in parts.values() for n in part.values()), default=0)
    width, height = CELL_INCH * len(counts) + 3.4, CELL_INCH * max(len(classes), 4) + 0.9
    figure, ((axes,),) = make_panels(1, 1, (width, height), "compressed")
    for part, style in (("training", {"c": TRAINING}), ("test", {"c": "none", "edgecolors": TEST, "linewidths": 0.9})):
        _draw_dots(axes, counts, part, classes, largest, style)
    _style_dots(axes, list(counts), classes)
    _draw_dot_legend(figure, _round_sizes(largest), largest)
    alt = f"Dot plot of the examples of {len(classes)} classes at {len(counts)} sites; the largest dot is {largest}."
    caption = "The area of a dot is the number of a class's training examples at a site, that of a ring of test ones."
    return PageImage(encode_png(figure, is_trimmed=True), alt, caption)


def write_partition(folder: Path, counts: Counts, examples: Examples) -> tuple[Path, ...]:
    """Write the plot and the table as ``partition.png`` and ``partition.md`` and return their paths.

    Args:
        counts: As for `partition_table`.
        examples: The same.
    """
    image, picture, table = partition_image(counts), folder / "partition.png", folder / "partition.md"
    write_atomically(picture, lambda stream: stream.write(image.png))
    shown = f"\n![{image.alt}]({picture.name})\n\n{image.caption}\n"
    write_text(table, markdown_table(partition_table(counts, examples), [NOTE]) + shown)
    return picture, table


def print_partition(counts: Counts, examples: Examples, console: Console) -> None:
    """Print the table and how to read it."""
    print_table(partition_table(counts, examples), console)
    print_lines([NOTE], console)


def _all_classes(counts: Counts) -> list[str]:
    """Return all classes, in the order in which the sites name them."""
    return list(dict.fromkeys(name for parts in counts.values() for part in parts.values() for name in part))


def _tally(counts: Counts, site: str, part: str, name: str) -> int:
    return counts[site].get(part, {}).get(name, 0)


def _area(count: int, largest: int) -> float:
    """Return a dot's area in square points; the largest count nearly fills its cell."""
    return (72 * CELL_INCH * LARGEST_DOT) ** 2 * count / largest


def _draw_dots(
    axes: Axes, counts: Counts, part: str, classes: Sequence[str], largest: int, style: Mapping[str, Any]
) -> None:
    places = [
        (x, y, _tally(counts, site, part, name)) for x, site in enumerate(counts) for y, name in enumerate(classes)
    ]
    shown = [(x, y, _area(count, largest)) for x, y, count in places if count]
    if shown:
        x, y, areas = zip(*shown, strict=True)
        axes.scatter(x, y, areas, zorder=3, **style)


def _style_dots(axes: Axes, sites: Sequence[str], classes: Sequence[str]) -> None:
    turn = 90 if max(map(len, sites), default=0) > 3 else 0
    axes.set_xticks(range(len(sites)), [escape_math(site) for site in sites], rotation=turn)
    axes.set_yticks(range(len(classes)), [escape_math(name) for name in classes])
    axes.set(xlim=(-0.6, len(sites) - 0.4), ylim=(len(classes) - 0.4, -0.6), aspect="equal")
    axes.tick_params(labelsize=9, colors=INK, length=0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_color(GRID)


def _round_sizes(largest: int) -> list[int]:
    """Return up to three round numbers for the legend: the largest that fits, a quarter and a twentieth of it."""
    step = 10 ** (len(str(largest)) - 1)
    top = largest // step * step
    return [size for size in dict.fromkeys((top // 20, top // 4, top)) if size]


def _draw_dot_legend(figure: Figure, sizes: Sequence[int], largest: int) -> None:
    """Draw the legend of the dots' sizes, with more room between its lines than usual."""
    diameters = [_area(size, largest) ** 0.5 for size in sizes]
    dots = [make_legend_handle(linestyle="", marker="o", markersize=d, color=TRAINING, mew=0) for d in diameters]
    ring = make_legend_handle(linestyle="", marker="o", markersize=10, color="none", markeredgecolor=TEST)
    names = [*(f"{size:,} training" for size in sizes), "test, same scale"]
    spacing = {"labelspacing": 1.3, "handletextpad": 1.4, "borderpad": 1.2}
    figure.legend([*dots, ring], names, loc="outside right upper", frameon=False, fontsize=9, labelcolor=INK, **spacing)
