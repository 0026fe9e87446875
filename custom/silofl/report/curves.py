"""Lines over rounds in panels: the values that are drawn, their figure, and the table of the same values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from silofl.report.canvas import (
    LEAST_PANEL,
    MUTED,
    PlotData,
    draw_legend,
    draw_line,
    lay_out_panels,
    style_rounds,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLUMNS = ("panel", "line", "round", "value")
Values = Sequence[float | None]
# Of a line that must not hide the mean.
FAINT = {"alpha": 0.35, "linewidth": 1.0}


@dataclass(frozen=True)
class Panel:
    """One panel of a figure.

    Attributes:
        title: Stands above it.
        lines: Name of a line -> its value in each of its rounds; None is a gap.
        marked_round: A round with a vertical line; None without.
        faint: Names of lines that are drawn faint.
        limits: Ends of the vertical axis; None where the values decide.
    """

    title: str
    lines: Mapping[str, Values]
    marked_round: int | None = None
    faint: Collection[str] = ()
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Curves:
    """Lines over rounds.

    Attributes:
        name: Of the figure's files.
        rounds: Name of a line -> its rounds, the same in all panels.
        styles: Name of a line -> how it is drawn, in the order of the legend.
        panels: At least one.
        height: Of a panel, in inches.
        least_width: Of a panel, in inches.
        shares_y: Whether all panels have one vertical scale.
    """

    name: str
    rounds: Mapping[str, Sequence[int]]
    styles: Mapping[str, Mapping[str, object]]
    panels: tuple[Panel, ...]
    height: float = 3.2
    least_width: float = LEAST_PANEL
    shares_y: bool = False

    def data(self) -> PlotData:
        """Return one row per panel, line and round."""
        rows = (
            (panel.title, line, number, value)
            for panel in self.panels
            for line, values in panel.lines.items()
            for number, value in zip(self.rounds[line], values, strict=True)
        )
        return PlotData(self.name, COLUMNS, tuple(rows))

    def draw(self, width: float) -> Figure:
        """Draw the lines, with one legend for all panels."""
        figure, grid = lay_out_panels(len(self.panels), width, self.height, self.least_width, self.shares_y)
        handles: dict[str, Line2D] = {}
        for axes, panel in zip(grid, self.panels, strict=True):
            for name, values in panel.lines.items():
                faint = FAINT if name in panel.faint else {}
                line = draw_line(axes, self.rounds[name], values, **self.styles[name] | faint)
                # Of the first panel: a faint line would be no key to the others.
                handles.setdefault(name, line)
            style_rounds(axes, panel.title, [number for rounds in self.rounds.values() for number in rounds])
            if panel.marked_round is not None:
                _mark_round(axes, panel.marked_round)
            if panel.limits != (None, None):
                axes.set_ylim(*panel.limits)
        named = [name for name in self.styles if name in handles]
        draw_legend(figure, [handles[name] for name in named], named)
        return figure


def _mark_round(axes: Axes, number: int) -> None:
    """Draw a vertical line at a round with its number on the side that has more room."""
    # Room above the curves for the number.
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
