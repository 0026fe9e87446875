"""A matrix of sites by sites as coloured cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silofl_hospital.report.canvas import GRID, INK, MUTED, escape_math

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SITES_WITH_NUMBERS = 10


def draw_heat_map(axes: Axes, values: NDArray, sites: Sequence[str], title: str, form: str, colours: str) -> None:
    """Draw a matrix as coloured cells, with a white diagonal, whose values would hide how the others differ."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    others = np.where(np.eye(len(sites), dtype=bool), np.nan, values)
    top = float(np.nanmax(others)) if np.isfinite(others).any() else 0.0
    scale = ScalarMappable(Normalize(0, top or 1), colormaps[colours])
    axes.imshow(others, cmap=scale.cmap, norm=scale.norm)
    for i, j in np.ndindex(values.shape):
        if np.isnan(values[i, j]):
            axes.add_patch(
                Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=GRID, edgecolor=MUTED, hatch="///", linewidth=0)
            )
        elif i == j:
            axes.add_patch(Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, facecolor="white", edgecolor=INK, linewidth=1.2))
        if len(sites) <= MOST_SITES_WITH_NUMBERS and np.isfinite(values[i, j]):
            _write_number(axes, i, j, form.format(values[i, j]), "white" if i == j else scale.to_rgba(others[i, j]))
    bar = axes.figure.colorbar(scale, ax=axes, shrink=0.9, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=MUTED, length=0)
    _name_axes(axes, sites, title)


def _write_number(axes: Axes, row: int, column: int, text: str, background: object) -> None:
    """Write a number in black on light and in white on dark cells."""
    size = 8 if axes.get_xlim()[1] < 8 else 7
    # The luminance of the cell, by ITU-R BT.601.
    is_dark = not isinstance(background, str) and float(np.dot(background[:3], (0.299, 0.587, 0.114))) < 0.5
    axes.text(column, row, text, ha="center", va="center", fontsize=size, color="white" if is_dark else INK)


def _name_axes(axes: Axes, sites: Sequence[str], title: str) -> None:
    names, size = [escape_math(site) for site in sites], 8.5 if len(sites) <= MOST_SITES_WITH_NUMBERS else 7
    is_wide = sum(map(len, names)) > 40
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, fontweight="bold")
    axes.set_xticks(range(len(sites)), names, rotation=90 if is_wide else 0)
    axes.set_yticks(range(len(sites)), names)
    axes.tick_params(labelsize=size, colors=INK, length=0)
    axes.spines[:].set_visible(False)
