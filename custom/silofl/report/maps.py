"""Maps of the selector's features, and of the weights between sites.

The first is Fig. 3 of FedSM (Xu et al., CVPR 2022, arXiv:2203.10144), the second AdaFed's (Chen et al.,
arXiv:2112.00734).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silofl.report.canvas import (
    GRID,
    INK,
    MUTED,
    PageImage,
    PlotData,
    draw_legend,
    escape_math,
    lay_out_panels,
    make_image,
    make_legend_handle,
    make_panels,
    point_style,
)
from silofl.report.run_records import RunRecords, SelectorFeatures, SiteWeights
from silofl.training.metrics import mean_of_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEED = 0
# t-SNE's perplexity: the least that its authors advise, and the usual one.
PERPLEXITIES = (5, 30)
MAX_IMAGES = 1000
RINGED = "ringed: taken for another site's"
MOST_SITES_WITH_NUMBERS = 10
COLOURS = "Blues"
# Inches that a heat map of sites wants.
LEAST_MAP = 4.0


@dataclass(frozen=True)
class FeatureMap:
    """The images of all sites as points of a plane.

    Attributes:
        points: Shape (n, 2).
        owners: The site of each point, shape (n,).
        is_wrong: Whether the selector takes the point for another site's, shape (n,).
        method: The method that placed the points.
        step: Every so manieth image is shown.
    """

    points: NDArray
    owners: NDArray
    is_wrong: NDArray
    method: str
    step: int

    @classmethod
    def of(cls, features: Mapping[str, SelectorFeatures]) -> FeatureMap:
        """Put the sites' features on a map: t-SNE, or PCA where there are too few images for it."""
        step = -(-sum(len(own.features) for own in features.values()) // MAX_IMAGES)
        owners = np.concatenate([np.full(len(own.features), site) for site, own in features.items()])
        is_wrong = np.concatenate([_wrong_choices(site, own) for site, own in features.items()])
        points, method = project_to_plane(np.concatenate([own.features for own in features.values()])[::step])
        return cls(points, owners[::step], is_wrong[::step], method, step)


def feature_image(run: RunRecords) -> PageImage | None:
    """Return the map of the selector's features; None in a real federation, or without a selector."""
    if not run.features:
        return None
    shown = FeatureMap.of(run.features)
    many = f"one in {shown.step} of the validation and test images" if shown.step > 1 else "validation and test images"
    alt = f"Map of {len(shown.points)} images of the sites {', '.join(run.features)}, by {shown.method}."
    if shown.is_wrong.any():
        alt += f" {int(shown.is_wrong.sum())} of them are taken for another site's."
    caption = (
        f"What the selector sees, before its last layer, of {many}: one point an image, coloured by its true site; "
        f"neighbours look alike to the selector. Made by {shown.method}; the axes have no unit. Features do not leave "
        "the sites: only a simulation, which holds all of them, or a site for itself can draw this."
    )
    return make_image(FeaturePlot(shown, run.sites), alt, caption)


def project_to_plane(features: NDArray) -> tuple[NDArray, str]:
    """Return points of the plane (n, 2) in which similar features (n, F) are neighbours, and the method's name.

    t-SNE compares a point with about three times its perplexity of neighbours, so that it needs more points than that;
    with less than 16 points the two principal components are taken.
    """
    perplexity = min(PERPLEXITIES[1], (len(features) - 1) // 3)
    if perplexity < PERPLEXITIES[0] or not np.ptp(features, axis=0).any():
        return principal_components(features), "PCA"
    from sklearn.manifold import TSNE  # here, because it takes a second to import and most pages need no map

    # From PCA, and with a seed: the same features always give the same map.
    tsne = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=SEED)
    return tsne.fit_transform(features.astype(np.float64)), f"t-SNE (perplexity {perplexity}, seed {SEED})"


def principal_components(features: NDArray) -> NDArray:
    """Return the first two principal components (n, 2) of features (n, F); 0 for those that do not exist."""
    centred = features.astype(np.float64) - features.mean(axis=0)
    left, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    points = (left * lengths)[:, :2]
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


@dataclass(frozen=True)
class FeaturePlot:
    """The map with a colour and a shape for each site.

    Attributes:
        shown: The points.
        sites: All sites, in the order of the other figures' colours.
    """

    shown: FeatureMap
    sites: Sequence[str]

    def data(self) -> PlotData:
        """Return one row per image."""
        shown = self.shown
        rows = zip(shown.owners.tolist(), *shown.points.T.tolist(), shown.is_wrong.tolist(), strict=True)
        return PlotData("selector", ("site", "x", "y", "is_taken_for_another"), tuple(rows))

    def draw(self, width: float) -> Figure:
        """Draw the points; those that are taken for another site's have a ring."""
        shown = self.shown
        figure, ((axes,),) = make_panels(1, 1, (width, 5.6))
        handles = []
        for place, site in enumerate(self.sites):
            style = point_style(place)
            for is_ringed, edge, line in ((False, "white", 0.5), (True, INK, 1.4)):
                points = shown.points[(shown.owners == site) & (shown.is_wrong == is_ringed)]
                axes.scatter(
                    *points.T, s=60, marker=style["marker"], c=style["color"], edgecolors=edge, linewidths=line
                )
            handles.append(make_legend_handle(linestyle="", markersize=8, **style))
        if shown.is_wrong.any():
            ring = {"linestyle": "", "marker": "o", "markersize": 8, "color": "none", "markeredgecolor": INK}
            handles.append(make_legend_handle(**ring))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(GRID)
        axes.margins(0.06)
        draw_legend(figure, handles, [*self.sites, RINGED][: len(handles)], size=10)
        return figure


def weights_image(shown: SiteWeights) -> PageImage:
    """Return the picture of the weights and distances between sites, with its caption."""
    alt = (
        f"How much each of {len(shown.sites)} sites listens to itself and most to another: {_describe_weights(shown)}."
    )
    caption = (
        "Left: a row is a site that listens, a column a site that it listens to; a row sums to 1, and the framed "
        f"diagonal is a site's own model, lambda = {shown.self_weight:g}. Right: the distance between the sites' "
        f"{statistics_words(shown)}; the darker, the closer, and the more weight."
    )
    if shown.without:
        caption += " Hatched: a site that shares no statistics has no distance, and listens to all sites equally."
    return make_image(WeightsPlot(shown), alt, caption)


def _describe_weights(shown: SiteWeights) -> str:
    return "; ".join(_describe_row(shown, site) for site in shown.sites)


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
        _draw_heat_map(left, np.array(shown.weights), shown.sites, "Weights", "{:.2f}", COLOURS)
        distances = np.array(shown.distances, dtype=np.float64)
        _draw_heat_map(right, distances, shown.sites, "Distances", "{:.3g}", f"{COLOURS}_r")
        left.set_ylabel("listens", fontsize=9, color=MUTED)
        left.set_xlabel("to", fontsize=9, color=MUTED)
        return figure


def _wrong_choices(site: str, own: SelectorFeatures) -> NDArray:
    """Return which images the selector gives to another site; none where it learns best models instead of sites."""
    outputs = [str(name) for name in own.outputs]
    if site not in outputs or "global" in outputs:
        return np.zeros(len(own.features), dtype=bool)
    return own.scores.argmax(axis=1) != outputs.index(site)


def _draw_heat_map(axes: Axes, values: NDArray, sites: Sequence[str], title: str, form: str, colours: str) -> None:
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
