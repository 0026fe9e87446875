"""The loss around each site's model: maps of a plane (HarmoFL, Fig. 6), curves along lines (FedSM, Fig. 4), a table.

Jiang et al., AAAI 2022, arXiv:2112.10775; Xu et al., CVPR 2022, arXiv:2203.10144.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from loss_surface import Landscape
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from silofl.base.errors import one_line
from silofl_hospital.report.canvas import (
    INK,
    MUTED,
    PageImage,
    draw_legend,
    encode_png,
    escape_math,
    line_style,
    make_panels,
    style_axes,
)
from silofl_hospital.report.tables import MISSING, TextTable

NOTE = (
    "Distances are in lengths of the filters: at 1 along a direction each filter has moved by its own length. The mean "
    "rise is that of the outermost points over the centre. The lowest loss is that of the measured points; beyond the "
    "border it may fall further."
)
COLOURS, CONTOURS = "viridis", 8
PANEL_INCH, DPI = 2.4, 110
# Of a run's name, which begins with its number, beside a panel.
NAME_LETTERS = 26
RIM = {"linestyle": "", "path_effects": [withStroke(linewidth=3, foreground="black")]}
MARKS = {
    "the model": {"marker": "+", "markersize": 10, "color": "white", "markeredgewidth": 1.6, **RIM},
    "the site's lowest loss": {"marker": "o", "markersize": 8, "color": "none", "markeredgecolor": "#ff5c33", **RIM},
}
# The largest of positive values by the smallest, from which only a logarithmic scale shows them all.
WIDE = 20


@dataclass(frozen=True)
class SiteLandscape:
    """The loss around one site's model.

    Attributes:
        run: Name of the run.
        site: Name of the site.
        scale: How far its outermost points are moved along a direction.
        num_images: Images on which the loss is measured.
        found: The losses.
    """

    run: str
    site: str
    scale: float
    num_images: int
    found: Landscape

    def as_dict(self) -> dict[str, Any]:
        """Return its numbers as plain values; None where a loss is not finite."""
        found = self.found
        lowest = {"loss": finite_or_none(found.losses[found.lowest]), "point": found.points[found.lowest].tolist()}
        lowest |= {"distance": found.distance, "is_on_border": bool(found.is_outermost[found.lowest])}
        return {
            "run": self.run,
            "site": self.site,
            "scale": self.scale,
            "num_images": self.num_images,
            "loss_at_centre": finite_or_none(found.centre),
            "lowest": lowest,
            "mean_rise": finite_or_none(found.mean_rise),
            "axis": found.axis.tolist(),
            "losses": [[finite_or_none(loss) for loss in row] for row in found.grid],
        }


def finite_or_none(value: float) -> float | None:
    """Return a number for JSON; None where it is not finite."""
    return float(value) if np.isfinite(value) else None


def landscape_table(rows: Sequence[SiteLandscape]) -> TextTable:
    """Return one row for each run, site and scale."""
    columns = ("run", "site", "scale", "images", "loss at centre", "lowest loss", "at distance", "mean rise")
    return TextTable(columns, tuple(_format_row(row) for row in rows), num_text=2)


def plane_image(rows: Sequence[SiteLandscape], title: str) -> PageImage:
    """Draw maps of planes: one column a site, one row a scale and run, and one range of colours a scale."""
    runs, sites, scales = _runs_sites_scales(rows)
    figure, grid = _make_figure(len(scales) * len(runs), len(sites), title)
    for place, scale in enumerate(scales):
        block = grid[place * len(runs) : (place + 1) * len(runs)]
        shown = [row for row in rows if row.scale == scale]
        norm = _loss_range(shown)
        for row in shown:
            _draw_plane(block[runs.index(row.run), sites.index(row.site)], row, norm)
        for run, axes in zip(runs, block[:, 0], strict=True):
            name = one_line(run, NAME_LETTERS)
            axes.set_ylabel(escape_math(f"{name}\nscale {scale:g}\n2nd direction"), fontsize=8.5, color=INK)
        bar = figure.colorbar(ScalarMappable(norm, COLOURS), ax=block.ravel().tolist(), fraction=0.05)
        bar.set_label(f"loss, scale {scale:g}", fontsize=8.5, color=INK)
        bar.ax.tick_params(labelsize=7.5, colors=MUTED)
    for axes in grid[-1]:
        axes.set_xlabel("1st direction", fontsize=8.5, color=INK)
    draw_legend(figure, [Line2D([], [], **style) for style in MARKS.values()], list(MARKS))
    alt = f"Maps of the loss around the models of {', '.join(runs)} at the sites {', '.join(sites)}."
    return PageImage(encode_png(figure, DPI), alt, NOTE)


def lines_image(rows: Sequence[SiteLandscape], title: str) -> PageImage:
    """Draw curves along lines: one column a site, one row a scale, a style a run; thick is the mean of its lines."""
    runs, sites, scales = _runs_sites_scales(rows)
    figure, grid = _make_figure(len(scales), len(sites), title, shares_y=True)
    for row in rows:
        axes, style = grid[scales.index(row.scale), sites.index(row.site)], line_style(runs.index(row.run))
        _draw_lines(axes, row.found, {key: style[key] for key in ("color", "linestyle")})
    for scale, line in zip(scales, grid, strict=True):
        norm = _loss_range([row for row in rows if row.scale == scale])
        for site, axes in zip(sites, line, strict=True):
            style_axes(axes, f"{site}, scale {scale:g}", "distance along a direction")
            axes.set_yscale("log" if isinstance(norm, LogNorm) else "linear")
        line[0].set_ylabel("loss", fontsize=9, color=INK)
    handles = [Line2D([], [], linewidth=2.2, **(line_style(i) | {"marker": None})) for i in range(len(runs))]
    draw_legend(figure, handles, runs)
    alt = f"Curves of the loss around the models of {', '.join(runs)} at the sites {', '.join(sites)}."
    return PageImage(encode_png(figure, DPI), alt, NOTE)


def _runs_sites_scales(rows: Sequence[SiteLandscape]) -> tuple[list[str], list[str], list[float]]:
    """Return all runs, sites and scales, in their order."""
    return tuple(list(dict.fromkeys(getattr(row, key) for row in rows)) for key in ("run", "site", "scale"))


def _format_row(row: SiteLandscape) -> tuple[str, ...]:
    values = row.as_dict()
    lowest = values["lowest"]
    distance = f"{lowest['distance']:.3g}{' (border)' if lowest['is_on_border'] else ''}"
    losses = map(_format_number, (values["loss_at_centre"], lowest["loss"]))
    return (
        row.run,
        row.site,
        f"{row.scale:g}",
        str(row.num_images),
        *losses,
        distance,
        _format_number(values["mean_rise"]),
    )


def _format_number(value: float | None, digits: int = 4) -> str:
    return MISSING if value is None else f"{value:.{digits}g}"


def _make_figure(rows: int, columns: int, title: str, shares_y: bool = False) -> tuple[Figure, NDArray]:
    # Room at the right for colours, at the left for names, and for the title.
    size = (max(PANEL_INCH * columns + 1.8, 6.4), PANEL_INCH * rows + 1.3)
    figure, grid = make_panels(rows, columns, size, shares_y="row" if shares_y else False)
    figure.suptitle(escape_math(title), fontsize=10, color=INK, wrap=True)
    return figure, grid


def _loss_range(rows: Sequence[SiteLandscape]) -> Normalize:
    """Return the range of all finite losses, logarithmic where it is wide."""
    losses = np.concatenate([row.found.losses for row in rows])
    known = losses[np.isfinite(losses)]
    if not len(known):
        return Normalize(0, 1)
    low, high = float(known.min()), float(known.max())
    # So far apart that only a logarithmic scale shows them all.
    is_wide = low > 0 and high / low >= WIDE
    return LogNorm(low, high) if is_wide else Normalize(low, high)


def _draw_plane(axes: Axes, row: SiteLandscape, norm: Normalize) -> None:
    found, axis = row.found, row.found.axis
    # Transposed: the first direction points to the right.
    losses = np.ma.masked_invalid(found.grid.T)
    axes.pcolormesh(axis, axis, losses, norm=norm, cmap=COLOURS, shading="nearest")
    levels = norm.inverse(np.linspace(0, 1, CONTOURS + 2))
    inside = [level for level in levels if losses.min() < level < losses.max()]
    if inside:
        axes.contour(axis, axis, losses, levels=inside, colors="white", linewidths=0.6, alpha=0.7)
    for point, style in zip(([0.0, 0.0], found.points[found.lowest]), MARKS.values(), strict=True):
        axes.plot(*point, **style)
    axes.set_aspect("equal")
    axes.set_facecolor(MUTED)
    loss, rise = (_format_number(finite_or_none(value), 3) for value in (row.found.centre, row.found.mean_rise))
    axes.set_title(escape_math(f"{row.site}\ncentre {loss}, rise {rise}"), fontsize=8.5, color=INK)
    axes.tick_params(labelsize=7.5, colors=MUTED, length=2)
    axes.spines[:].set_visible(False)


def _draw_lines(axes: Axes, found: Landscape, style: Mapping[str, str]) -> None:
    for losses in found.grid:
        axes.plot(found.axis, losses, linewidth=0.6, alpha=0.35, **style)
    axes.plot(found.axis, found.grid.mean(axis=0), linewidth=2.2, **style)
