"""AdaFed's matrix in a picture: who listens to whom, beside the distances that it comes from (arXiv:2112.00734)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from silofl.report.canvas import GRID, INK, MUTED, Image, literal, panels, png
from silofl.report.folder import SiteWeights

MOST_SITES_WITH_NUMBERS = 10
COLOURS = "Blues"


def weights_image(shown: SiteWeights) -> Image:
    """Return the picture of one computation, with what it means."""
    alt = f"Heat map of the weights with which {len(shown.sites)} sites listen to one another, and of their distances."
    caption = (
        "Left: a row is a site that listens, a column a site that it listens to; a row sums to 1, and the framed "
        f"diagonal is a site's own model, lambda = {shown.self_weight:g}. Right: the distance between the sites' "
        f"{statistics_words(shown)}; the darker, the closer, and the more weight."
    )
    if shown.without:
        caption += " Hatched: a site that shares no statistics has no distance, and listens to all sites equally."
    return Image(draw_weights(shown), alt, caption)


def statistics_words(shown: SiteWeights) -> str:
    """Return which statistics the sites are compared by."""
    if shown.source == "running":
        return "running statistics of the BatchNorm layers"
    layers = "last layer" if shown.layers == "last" else "BatchNorm layers"
    return f"mean and variance of the inputs of the {layers} in a pretrained model"


def history_sentence(history: Sequence[SiteWeights]) -> str:
    """Return when the weights were computed and, of several times, how far they moved in between."""
    when = "before the first round" if history[-1].round == 0 else f"after round {history[-1].round}"
    if len(history) == 1:
        return f"The weights were computed once, {when}."
    steps = [moved(*pair) for pair in zip(history, history[1:], strict=False)]
    shares = ", ".join("-" if step is None else f"{100 * step:.1f} %" for step in steps)
    return (
        f"The weights were computed {len(history)} times, after rounds {', '.join(str(one.round) for one in history)}; "
        f"the last is shown. From one to the next a site moved, on average, {shares} of its weight to other sites."
    )


def moved(before: SiteWeights, after: SiteWeights) -> float | None:
    """Return the mean over sites of the share of a row's weight that moved: ``sum_j |after_ij - before_ij| / 2``.

    Only sites in both count; None where there is none.
    """
    rows = [site for site in after.sites if site in before.sites]
    columns = list(dict.fromkeys([*before.sites, *after.sites]))
    steps = [sum(abs(after.weight(i, j) - before.weight(i, j)) for j in columns) / 2 for i in rows]
    return float(np.mean(steps)) if steps else None


def draw_weights(shown: SiteWeights) -> bytes:
    """Draw the weights and the distances side by side, each with its colours from 0 to its largest off the diagonal."""
    size = 3.9 if len(shown.sites) <= MOST_SITES_WITH_NUMBERS else 4.6
    figure, ((left, right),) = panels(1, 2, (10.4, size))
    _heat(left, shown.weights, shown.sites, "Weights", "{:.2f}", COLOURS)
    _heat(right, shown.distances, shown.sites, "Distances", "{:.3g}", f"{COLOURS}_r")
    left.set_ylabel("listens", fontsize=9, color=MUTED)
    left.set_xlabel("to", fontsize=9, color=MUTED)
    return png(figure)


def _heat(axes: Axes, values: NDArray, sites: Sequence[str], title: str, form: str, colours: str) -> None:
    """Draw a matrix; the diagonal has no colour of its own, because it would hide how the others differ."""
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
            _write(axes, i, j, form.format(values[i, j]), "white" if i == j else scale.to_rgba(others[i, j]))
    bar = axes.figure.colorbar(scale, ax=axes, shrink=0.9, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=MUTED, length=0)
    _name(axes, sites, title)


def _write(axes: Axes, row: int, column: int, text: str, background: object) -> None:
    """Write a number in black on light and in white on dark cells."""
    size = 8 if axes.get_xlim()[1] < 8 else 7
    is_dark = not isinstance(background, str) and float(np.dot(background[:3], (0.299, 0.587, 0.114))) < 0.5
    axes.text(column, row, text, ha="center", va="center", fontsize=size, color="white" if is_dark else INK)


def _name(axes: Axes, sites: Sequence[str], title: str) -> None:
    names, size = [literal(site) for site in sites], 8.5 if len(sites) <= MOST_SITES_WITH_NUMBERS else 7
    is_wide = sum(map(len, names)) > 40
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, fontweight="bold")
    axes.set_xticks(range(len(sites)), names, rotation=90 if is_wide else 0)
    axes.set_yticks(range(len(sites)), names)
    axes.tick_params(labelsize=size, colors=INK, length=0)
    axes.spines[:].set_visible(False)
