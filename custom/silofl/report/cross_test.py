"""Each site's model on every site's test data: a table and a picture of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps

from silofl.report.canvas import INK, MUTED, Image, as_values, literal, panels, png
from silofl.report.tables import TextTable, mean_of_known, number

NOTE = (
    "A row is a site's model, a column the test data that it is tested on; mean: over the columns of single sites; all "
    "sites: over all their cases together. The diagonal is each site's model at home."
)
Values = Mapping[str, Mapping[str, float | None]]
COLOURS = "Blues"
# Above it a cell is dark, and its number is written in white.
DARK = 0.6


def cross_table(values: Values) -> TextTable:
    """Return one row a model, with the mean over sites before the value on all data together.

    Args:
        values: Site of the model -> site of the data, that of all together last -> value.
    """
    *sites, together = next(iter(values.values()))
    rows = tuple((owner, *map(number, _row(found, sites, together))) for owner, found in values.items())
    return TextTable(("model of", *sites, "mean", together), rows)


def cross_image(values: Values, metric: str) -> Image:
    """Draw the values as a map, one row a model."""
    *sites, together = next(iter(values.values()))
    columns = [*sites, "mean", together]
    cells = np.stack([as_values(_row(found, sites, together)) for found in values.values()])
    figure, ((axes,),) = panels(1, 1, (2.2 + 0.8 * len(columns), 1.4 + 0.5 * len(values)))
    # Of a metric from 0 to 1.
    axes.imshow(cells, cmap=colormaps[COLOURS], vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), map(literal, columns), rotation=30, ha="right")
    axes.set_yticks(range(len(values)), map(literal, values))
    axes.set_ylabel("model of", fontsize=9, color=MUTED)
    axes.set_title(f"{metric} at", loc="left", fontsize=10.5, color=INK, fontweight="bold")
    axes.tick_params(labelsize=8.5, colors=MUTED, length=0)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(cells):
        colour = "white" if value > DARK else INK
        axes.text(column, row, number(None if np.isnan(value) else value), ha="center", va="center", color=colour)
    alt = f"{metric} of {len(values)} sites' models at {len(sites)} sites, as in the table."
    return Image(png(figure), alt, NOTE)


def _row(found: Mapping[str, float | None], sites: list[str], together: str) -> list[float | None]:
    return [*map(found.get, sites), mean_of_known(map(found.get, sites)), found[together]]
