"""A sweep of settings: one table and one figure of each row's values over those of the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from silofl.federation.results import Results
from silofl.report.canvas import Image, is_wide, legend, line_style, literal, panels, png, style_axes
from silofl.report.comparison import Method
from silofl.report.methods import mean_and_deviation
from silofl.report.tables import MISSING, TextTable, mean_of_known

NOTE = (
    "Of the sweep: mean over each run's own sites, ± the deviation over seeds. Choose a value by validation; the test "
    "says what the choice came to."
)
# More of them on one axis would overlap.
MOST_LETTERS = 40
PARTS: dict[str, Callable[[Results], float | None]] = {
    "validation": lambda run: mean_of_known(score.value for score in run.tested.validation.values()),
    "test": lambda run: run.mean,
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

    def measured(self, part: str) -> list[float]:
        """Return the mean over sites of each seed that has one."""
        found = map(PARTS[part], self.method.results.values())
        return [value for value in found if value is not None]


def sweep_table(rows: Sequence[SweptRow]) -> TextTable:
    """Return one row for each row, the values of all settings but the last, and part; one column a value of the last.

    Args:
        rows: All with the same settings.
    """
    *others, last = rows[0].values
    places = list(dict.fromkeys(row.place for row in rows))
    cells = {(*row.line, part, row.place): mean_and_deviation(row.measured(part)) for row in rows for part in PARTS}
    lines = [(*line, part) for line in _lines(rows) for part in PARTS]
    columns = ("row", *others, "part", *(f"{last}={place}" for place in places))
    return TextTable(
        columns,
        tuple((*line, *(cells.get((*line, place), MISSING) for place in places)) for line in lines),
        num_text=2 + len(others),
    )


def sweep_image(rows: Sequence[SweptRow], metric: str) -> Image:
    """Draw each row over the last setting, one panel for validation and one for the test."""
    *others, last = rows[0].values
    figure, (axes,) = panels(1, len(PARTS), (10.4, 4.2), shares_y=True)
    places = list(dict.fromkeys(row.place for row in rows))
    positions = _positions(places)
    handles: list[Line2D] = []
    for panel, part in zip(axes, PARTS, strict=True):
        handles = [_draw(panel, rows, line, part, positions, i) for i, line in enumerate(_lines(rows))]
        style_axes(panel, f"{part}: {metric}", last)
        _mark(panel, positions)
    names = (dict(zip(("", *others), line, strict=True)) for line in _lines(rows))
    legend(figure, handles, [" ".join(f"{k}={v}" if k else v for k, v in name.items()) for name in names])
    caption = f"{NOTE} Bars are that deviation."
    return Image(png(figure), f"{metric} over {last} = {', '.join(places)}, of {len(_lines(rows))} rows.", caption)


def _lines(rows: Sequence[SweptRow]) -> list[tuple[str, ...]]:
    return list(dict.fromkeys(row.line for row in rows))


def _positions(places: Sequence[str]) -> dict[str, float]:
    """Return place -> where it lies: its number, or its rank where one is no number."""
    try:
        return {place: float(place) for place in places}
    except ValueError:
        return {place: float(rank) for rank, place in enumerate(places)}


def _draw(
    panel: Axes, rows: Sequence[SweptRow], line: tuple[str, ...], part: str, positions: Mapping[str, float], number: int
) -> Line2D:
    found = {positions[row.place]: row.measured(part) for row in rows if row.line == line}
    known = {place: values for place, values in sorted(found.items()) if values}
    means = [float(np.mean(values)) for values in known.values()]
    spreads = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in known.values()]
    drawn = panel.errorbar(list(known), means, yerr=spreads, capsize=3, markersize=5, **line_style(number))
    return drawn.lines[0]


def _mark(panel: Axes, positions: Mapping[str, float]) -> None:
    """Put a tick at each place, on a logarithmic axis where the values are wide apart."""
    if is_wide(min(positions.values()), max(positions.values())):
        panel.set_xscale("log")
    panel.set_xticks(list(positions.values()), [literal(place) for place in positions])
    panel.set_xticks([], minor=True)
    panel.tick_params(axis="x", labelrotation=30 if len("".join(positions)) > MOST_LETTERS else 0)
