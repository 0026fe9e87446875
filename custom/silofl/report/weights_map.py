"""Figure of the weights and distances between sites, with the sentences about them.

The weights are those of Chen et al., arXiv:2112.00734.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from silofl.report.canvas import (
    MOST_SITES_WITH_NUMBERS,
    MUTED,
    PageImage,
    PlotData,
    draw_heat_map,
    lay_out_panels,
    make_image,
)
from silofl.report.run_records import SiteWeights
from silofl.training.metrics import mean_of_known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "Blues"
# Inches that a heat map of sites wants.
LEAST_MAP = 4.0


def weights_image(shown: SiteWeights) -> PageImage:
    """Return the picture of the weights and distances between sites, with its caption."""
    rows = "; ".join(_describe_row(shown, site) for site in shown.sites)
    alt = f"How much each of {len(shown.sites)} sites listens to itself and most to another: {rows}."
    caption = (
        "Left: a row is a site that listens, a column a site that it listens to; a row sums to 1, and the framed "
        f"diagonal is a site's own model, lambda = {shown.self_weight:g}. Right: the distance between the sites' "
        f"{statistics_words(shown)}; the darker, the closer, and the more weight."
    )
    if shown.without:
        caption += " Hatched: a site that shares no statistics has no distance, and listens to all sites equally."
    return make_image(WeightsPlot(shown), alt, caption)


def _describe_row(shown: SiteWeights, site: str) -> str:
    others = {other: shown.weight(site, other) for other in shown.sites if other != site}
    own = f"{site} itself {shown.weight(site, site):.2f}"
    if not others:
        return own
    best = max(others, key=others.__getitem__)
    return f"{own}, {best} {others[best]:.2f}"


def statistics_words(shown: SiteWeights) -> str:
    """Return the name of the statistics by which sites are compared."""
    if shown.source == "running":
        return "running statistics of the BatchNorm layers"
    layers = "last layer" if shown.layers == "last" else "BatchNorm layers"
    return f"mean and variance of the inputs of the {layers} in a pretrained model"


def history_sentence(history: Sequence[SiteWeights]) -> str:
    """Say when the weights were computed and, if more than once, how far they moved in between."""
    when = "before the first round" if history[-1].round == 0 else f"after round {history[-1].round}"
    if len(history) == 1:
        return f"The weights were computed once, {when}."
    steps = [mean_moved_share(*pair) for pair in zip(history, history[1:], strict=False)]
    shares = ", ".join("-" if step is None else f"{100 * step:.1f} %" for step in steps)
    return (
        f"The weights were computed {len(history)} times, after rounds {', '.join(str(one.round) for one in history)}; "
        f"the last is shown. From one to the next a site moved, on average, {shares} of its weight to other sites."
    )


def mean_moved_share(before: SiteWeights, after: SiteWeights) -> float | None:
    """Return the mean over sites of the share of a row's weight that moved: ``sum_j |after_ij - before_ij| / 2``.

    Only sites in both count; None where there is none.
    """
    rows = [site for site in after.sites if site in before.sites]
    columns = list(dict.fromkeys([*before.sites, *after.sites]))
    return mean_of_known(sum(abs(after.weight(i, j) - before.weight(i, j)) for j in columns) / 2 for i in rows)


@dataclass(frozen=True)
class WeightsPlot:
    """The weights and the distances between sites, each with its colours from 0 to its largest off the diagonal."""

    shown: SiteWeights

    def data(self) -> PlotData:
        """Return one row per pair of sites."""
        shown, places = self.shown, range(len(self.shown.sites))
        rows = (
            (shown.sites[i], shown.sites[j], shown.weights[i][j], shown.distances[i][j]) for i in places for j in places
        )
        return PlotData("weights", ("listener", "heard", "weight", "distance"), tuple(rows))

    def draw(self, width: float) -> Figure:
        """Draw both as heat maps."""
        shown = self.shown
        height = 3.6 if len(shown.sites) <= MOST_SITES_WITH_NUMBERS else 4.3
        figure, (left, right) = lay_out_panels(2, width, height, LEAST_MAP)
        draw_heat_map(left, np.array(shown.weights), shown.sites, "Weights", "{:.2f}", COLOURS)
        distances = np.array(shown.distances, dtype=np.float64)
        draw_heat_map(right, distances, shown.sites, "Distances", "{:.3g}", f"{COLOURS}_r")
        left.set_ylabel("listens", fontsize=9, color=MUTED)
        left.set_xlabel("to", fontsize=9, color=MUTED)
        return figure
