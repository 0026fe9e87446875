"""The rows of a sweep: their table and their figure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from silofl.federation.results import Results
from silofl.report.canvas import (
    PageImage,
    Plot,
    draw_legend,
    escape_math,
    is_wide,
    lay_out_panels,
    line_style,
    make_image,
    style_axes,
)
from silofl.report.tables import TextTable
from silofl.training.site_score import SiteScore
from silofl_desk.report.result_tables import mean_and_deviation, summarise_seeds

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
Read = Callable[[Results], Mapping[str, SiteScore]]
PARTS: dict[str, Read] = {
    "validation": lambda run: run.validation,
    "test": lambda run: run.tests,
}


@dataclass(frozen=True)
class SweptRows:
    """The rows of a comparison with a sweep, over its last setting.

    Attributes:
        settings: Names of the swept settings.
        rows: Name of the job, method or variant, and the value of each setting -> the results, one a seed.
        metric: Of their values.
    """

    settings: Sequence[str]
    rows: Mapping[tuple[str, ...], Sequence[Results]]
    metric: str

    @property
    def places(self) -> list[str]:
        """The values of the last setting."""
        return list(dict.fromkeys(place for *_, place in self.rows))

    @cached_property
    def values(self) -> dict[str, dict[tuple[str, ...], dict[str, list[float]]]]:
        """Part -> row with all settings but the last -> value of the last -> the mean over sites of each seed."""
        found: dict[str, dict[tuple[str, ...], dict[str, list[float]]]] = {part: {} for part in PARTS}
        for part, read in PARTS.items():
            scores = [item for runs in self.rows.values() for run in runs for item in read(run).items()]
            # The others have no data of this part.
            sites = {site for site, one in scores if one.value is not None}
            for (*line, place), runs in self.rows.items():
                found[part].setdefault(tuple(line), {})[place] = _average_sites(runs, read, sites)
        return found

    def table(self) -> TextTable:
        """Return one row for each line and part; one column a value of the last setting."""
        *others, last = self.settings
        rows = tuple(
            (*line, part, *(mean_and_deviation(self.values[part][line].get(place, ())) for place in self.places))
            for line in self.values["test"]
            for part in PARTS
        )
        columns = ("row", *others, "part", *(f"{last}={place}" for place in self.places))
        return TextTable(columns, rows, num_text=2 + len(others))


def _average_sites(runs: Sequence[Results], read: Read, sites: Collection[str]) -> list[float]:
    """Return the mean over a run's own of the sites, of each run that lacks none of them."""
    found = [[(one := read(run).get(site)) and one.value for site in run.sites if site in sites] for run in runs]
    return [float(np.mean(values)) for values in found if values and None not in values]


def sweep_image(sweep: SweptRows) -> PageImage:
    """Draw each row over the last setting, one panel per part, and name the best point in the alternative text."""
    *others, last = sweep.settings
    rows = [
        (*line, place, part, *summarise_seeds(values), len(values))
        for *line, place in sweep.rows
        for part in PARTS
        for values in (sweep.values[part][tuple(line)][place],)
    ]

    def draw(width: float) -> Figure:
        figure, panels = lay_out_panels(len(PARTS), width, 3.7, LEAST_SWEEP, shares_y=True)
        positions = _positions(sweep.places)
        handles: list[Line2D] = []
        for panel, (part, lines) in zip(panels, sweep.values.items(), strict=True):
            handles = [_draw_row(panel, values, positions, number) for number, values in enumerate(lines.values())]
            style_axes(panel, f"{part}: {sweep.metric}", last)
            _mark_places(panel, positions)
        names = (dict(zip(("", *others), line, strict=True)) for line in sweep.values["test"])
        draw_legend(figure, handles, [" ".join(f"{k}={v}" if k else v for k, v in name.items()) for name in names])
        return figure

    known = [row for row in rows if row[-3] is not None]
    best = {
        part: max((row for row in known if row[-4] == part), key=lambda row: row[-3], default=None) for part in PARTS
    }
    described = "; ".join(
        f"highest in {part} {row[-3]:.3f} at {', '.join(map(str, row[:-4]))}" for part, row in best.items() if row
    )
    lines = f"of {len(sweep.values['test'])} rows"
    alt = f"{sweep.metric} over {last} = {', '.join(sweep.places)}, {lines}: {described or 'no value'}."
    columns = ("row", *others, last, "part", "mean", "deviation", "seeds")
    return make_image(Plot("sweep", columns, rows, draw), alt, f"{NOTE} Bars are that deviation.")


def _positions(places: Sequence[str]) -> dict[str, float]:
    """Return place -> where it lies: its number, or its rank where one is no number."""
    try:
        return {place: float(place) for place in places}
    except ValueError:
        return {place: float(rank) for rank, place in enumerate(places)}


def _draw_row(
    panel: Axes, values: Mapping[str, Sequence[float]], positions: Mapping[str, float], number: int
) -> Line2D:
    known = sorted((positions[place], *summarise_seeds(of_place)) for place, of_place in values.items() if of_place)
    # Each row's bars are thinner than those of the row before, and do not cover them.
    width = max(0.8, 3.2 - 0.8 * number)
    places, means, spreads = ([one[i] or 0.0 for one in known] for i in range(3))
    drawn = panel.errorbar(places, means, yerr=spreads, capsize=3, elinewidth=width, markersize=5, **line_style(number))
    return drawn.lines[0]


def _mark_places(panel: Axes, positions: Mapping[str, float]) -> None:
    """Put a tick at each place, on a logarithmic axis where the values are wide apart."""
    if is_wide(min(positions.values()), max(positions.values())):
        panel.set_xscale("log")
    panel.set_xticks(list(positions.values()), [escape_math(place) for place in positions])
    panel.set_xticks([], minor=True)
    panel.tick_params(axis="x", labelrotation=30 if len("".join(positions)) > MOST_LETTERS else 0)
