"""The rows of a sweep: their table and their figure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silofl.federation.results import Results
from silofl.report.canvas import (
    PageImage,
    PlotData,
    draw_legend,
    escape_math,
    is_wide,
    lay_out_panels,
    line_style,
    make_image,
    style_axes,
)
from silofl.report.tables import MISSING, TextTable
from silofl.training.site_score import SiteScore
from silofl_desk.report.result_tables import mean_and_deviation
from silofl_desk.studies.method_rows import Method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

NOTE = (
    "Of the sweep: mean over each run's own sites, ± the deviation over seeds; a run that lacks a site's value does "
    "not count. Choose a value by validation; the test says what the choice came to."
)
# More of them on one axis would overlap.
MOST_LETTERS = 40
# Inches that a panel wants.
LEAST_SWEEP = 3.0
# What a site has of a part.
PARTS: dict[str, Callable[[Results], Mapping[str, SiteScore]]] = {
    "validation": lambda run: run.validation,
    "test": lambda run: run.tests,
}


@dataclass(frozen=True)
class SweptRow:
    """A row of a comparison at one point of a sweep.

    Attributes:
        row: Name of the job, method or variant.
        values: Name of each swept setting -> its value there, as text.
        method: The runs.
    """

    row: str
    values: Mapping[str, str]
    method: Method

    @property
    def line(self) -> tuple[str, ...]:
        """What it shares with the rows from which only the last setting tells it apart."""
        return (self.row, *list(self.values.values())[:-1])

    @property
    def place(self) -> str:
        """Its value of the last setting."""
        return list(self.values.values())[-1]

    def measured(self, part: str, sites: Collection[str]) -> list[float]:
        """Return the mean over a run's own of the sites, of each seed that lacks none of them.

        Args:
            part: Of the sites' data.
            sites: Those that some run of the sweep has a value of; the others have no data of this part.
        """
        runs = self.method.results.values()
        found = [[_find_value(run, part, site) for site in run.sites if site in sites] for run in runs]
        return [float(np.mean(values)) for values in found if values and None not in values]


def sweep_table(rows: Sequence[SweptRow]) -> TextTable:
    """Return one row for each row, the values of all settings but the last, and part; one column a value of the last.

    Args:
        rows: All with the same settings.
    """
    *others, last = rows[0].values
    places = list(dict.fromkeys(row.place for row in rows))
    sites = {part: _measured_sites(rows, part) for part in PARTS}
    cells = {(*row.line, p, row.place): mean_and_deviation(row.measured(p, sites[p])) for row in rows for p in PARTS}
    lines = [(*line, part) for line in _distinct_lines(rows) for part in PARTS]
    columns = ("row", *others, "part", *(f"{last}={place}" for place in places))
    return TextTable(
        columns,
        tuple((*line, *(cells.get((*line, place), MISSING) for place in places)) for line in lines),
        num_text=2 + len(others),
    )


@dataclass(frozen=True)
class Sweep:
    """The rows over the last setting.

    Attributes:
        rows: All with the same settings.
        metric: Of their values.
    """

    rows: Sequence[SweptRow]
    metric: str

    def data(self) -> PlotData:
        """Return one row per row, point and part, with the mean of its seeds."""
        rows = (
            (*row.line, row.place, part, *_summarise(row.measured(part, _measured_sites(self.rows, part))))
            for row in self.rows
            for part in PARTS
        )
        columns = ("row", *self.rows[0].values, "part", "mean", "deviation", "seeds")
        return PlotData("sweep", columns, tuple(rows))

    def draw(self, width: float) -> Figure:
        """Draw each row over the last setting, one panel for validation and one for the test."""
        *others, last = self.rows[0].values
        figure, panels = lay_out_panels(len(PARTS), width, 3.7, LEAST_SWEEP, shares_y=True)
        positions = _positions(list(dict.fromkeys(row.place for row in self.rows)))
        lines = _distinct_lines(self.rows)
        handles: list[Line2D] = []
        for panel, part in zip(panels, PARTS, strict=True):
            handles = [_draw_row(panel, self.rows, line, part, positions, i) for i, line in enumerate(lines)]
            style_axes(panel, f"{part}: {self.metric}", last)
            _mark_places(panel, positions)
        names = (dict(zip(("", *others), line, strict=True)) for line in lines)
        draw_legend(figure, handles, [" ".join(f"{k}={v}" if k else v for k, v in name.items()) for name in names])
        return figure


def sweep_image(rows: Sequence[SweptRow], metric: str) -> PageImage:
    """Draw each row over the last setting, and name the best point by validation in the alternative text."""
    sweep, last = Sweep(rows, metric), list(rows[0].values)[-1]
    known = [row for row in sweep.data().rows if row[-3] is not None]
    best = {
        part: max((row for row in known if row[-4] == part), key=lambda row: row[-3], default=None) for part in PARTS
    }
    described = "; ".join(
        f"highest in {part} {row[-3]:.3f} at {', '.join(map(str, row[:-4]))}" for part, row in best.items() if row
    )
    places = ", ".join(dict.fromkeys(row.place for row in rows))
    alt = f"{metric} over {last} = {places}, of {len(_distinct_lines(rows))} rows: {described or 'no value'}."
    return make_image(sweep, alt, f"{NOTE} Bars are that deviation.")


def _summarise(values: Sequence[float]) -> tuple[float | None, float | None, int]:
    """Return mean, deviation and number of seeds."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return float(np.mean(values)) if values else None, deviation, len(values)


def _distinct_lines(rows: Sequence[SweptRow]) -> list[tuple[str, ...]]:
    return list(dict.fromkeys(row.line for row in rows))


def _measured_sites(rows: Sequence[SweptRow], part: str) -> set[str]:
    """Return the sites that some run has a value of."""
    runs = [run for row in rows for run in row.method.results.values()]
    return {site for run in runs for site in run.sites if _find_value(run, part, site) is not None}


def _find_value(run: Results, part: str, site: str) -> float | None:
    one = PARTS[part](run).get(site)
    return one and one.value


def _positions(places: Sequence[str]) -> dict[str, float]:
    """Return place -> where it lies: its number, or its rank where one is no number."""
    try:
        return {place: float(place) for place in places}
    except ValueError:
        return {place: float(rank) for rank, place in enumerate(places)}


def _draw_row(
    panel: Axes, rows: Sequence[SweptRow], line: tuple[str, ...], part: str, positions: Mapping[str, float], number: int
) -> Line2D:
    sites = _measured_sites(rows, part)
    found = {positions[row.place]: row.measured(part, sites) for row in rows if row.line == line}
    known = {place: values for place, values in sorted(found.items()) if values}
    means = [float(np.mean(values)) for values in known.values()]
    spreads = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in known.values()]
    # Each row's bars are thinner than those of the row before, and do not cover them.
    width = max(0.8, 3.2 - 0.8 * number)
    drawn = panel.errorbar(
        list(known), means, yerr=spreads, capsize=3, elinewidth=width, markersize=5, **line_style(number)
    )
    return drawn.lines[0]


def _mark_places(panel: Axes, positions: Mapping[str, float]) -> None:
    """Put a tick at each place, on a logarithmic axis where the values are wide apart."""
    if is_wide(min(positions.values()), max(positions.values())):
        panel.set_xscale("log")
    panel.set_xticks(list(positions.values()), [escape_math(place) for place in positions])
    panel.set_xticks([], minor=True)
    panel.tick_params(axis="x", labelrotation=30 if len("".join(positions)) > MOST_LETTERS else 0)
