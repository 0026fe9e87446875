"""Running statistics of BatchNorm layers beside those of their inputs: a table of correlations and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from silofl.report.canvas import Image, legend, panels, png, point_style, style_axes
from silofl.report.tables import TextTable, number

NOTE = (
    "Correlation (Pearson) over channels between a BatchNorm layer's running statistics and those of its inputs over "
    "the site's training data; median: over the layers."
)
# Running, and of the inputs, each of shape (channels,).
Pair = tuple[NDArray, NDArray]
Pairs = Mapping[str, Mapping[str, Sequence[Pair]]]


def correlations(pairs: Pairs) -> dict[str, dict[str, list[float | None]]]:
    """Return site -> ``mean`` and ``variance`` -> the correlation in each layer; None of a layer of one value."""
    return {
        site: {kind: [_correlation(*pair) for pair in layers] for kind, layers in kinds.items()}
        for site, kinds in pairs.items()
    }


def statistics_table(pairs: Pairs) -> TextTable:
    """Return one row a site: the layers, and of means and variances the median and the lowest correlation."""
    rows = []
    for site, kinds in correlations(pairs).items():
        known = {kind: [value for value in values if value is not None] for kind, values in kinds.items()}
        cells = [cell for values in known.values() for cell in (_median(values), min(values, default=None))]
        rows.append((site, str(len(kinds["mean"])), *map(number, cells)))
    columns = ("site", "layers", "means: median", "lowest", "variances: median", "lowest")
    return TextTable(columns, tuple(rows))


def statistics_image(pairs: Pairs) -> Image:
    """Draw each channel of each layer as a point, means on the left and variances on the right, one colour a site."""
    figure, (axes,) = panels(1, 2, (10.4, 4.6))
    handles = []
    for panel, kind in zip(axes, ("mean", "variance"), strict=True):
        for place, kinds in enumerate(pairs.values()):
            running, of_inputs = (np.concatenate([pair[i] for pair in kinds[kind]]) for i in (0, 1))
            style = point_style(place)
            drawn = panel.plot(
                of_inputs, running, linestyle="", markersize=3, alpha=0.5, color=style["color"], marker=style["marker"]
            )
            handles += drawn if panel is axes[0] else []
        style_axes(panel, f"Running {kind}", f"{kind} of the layer's inputs over the site's training data")
        panel.axline((0, 0), slope=1, color="black", linewidth=0.8, linestyle=":")
        if kind == "variance":
            # Layers' variances differ by orders of magnitude.
            panel.set_xscale("log")
            panel.set_yscale("log")
    legend(figure, handles, list(pairs))
    alt = f"Running statistics against those of the inputs, each channel a point, of {len(pairs)} sites."
    return Image(png(figure), alt, f"{NOTE} On the dotted line both are equal.")


def _correlation(one: NDArray, other: NDArray) -> float | None:
    """Return Pearson's correlation; None where one of both has one value only."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
