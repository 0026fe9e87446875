"""Figure of a selector's features: the images of all sites as points of a plane.

The map is Fig. 3 of Xu et al., CVPR 2022, arXiv:2203.10144.
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
    PageImage,
    PlotData,
    draw_legend,
    make_image,
    make_legend_handle,
    make_panels,
    point_style,
)
from silofl.report.run_records import RunRecords, SelectorFeatures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
# t-SNE's perplexity: the least that its authors advise, and the usual one.
PERPLEXITIES = (5, 30)
MAX_IMAGES = 1000
RINGED = "ringed: taken for another site's"


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


def _wrong_choices(site: str, own: SelectorFeatures) -> NDArray:
    """Return which images the selector gives to another site; none where it learns best models instead of sites."""
    outputs = [str(name) for name in own.outputs]
    if site not in outputs or "global" in outputs:
        return np.zeros(len(own.features), dtype=bool)
    return own.scores.argmax(axis=1) != outputs.index(site)
