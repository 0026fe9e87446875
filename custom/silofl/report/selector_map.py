"""A map of the selector's features in the plane, as Fig. 3 of FedSM (Xu et al., CVPR 2022, arXiv:2203.10144)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from silofl.report.canvas import GRID, INK, legend, panels, png, point_style
from silofl.report.folder import SelectorFeatures

SEED = 0
PERPLEXITIES = (5, 30)
MAX_IMAGES = 1000
RINGED = "ringed: taken for another site's"


@dataclass(frozen=True)
class FeatureMap:
    """The images of all sites as points of the plane.

    Attributes:
        points: Shape (n, 2).
        owners: The site of each point, shape (n,).
        is_wrong: Whether the selector takes the point for another site's, shape (n,).
        method: How the points were found.
        step: One image in so many is shown.
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
        is_wrong = np.concatenate([_is_wrong(site, own) for site, own in features.items()])
        points, method = plane(np.concatenate([own.features for own in features.values()])[::step])
        return cls(points, owners[::step], is_wrong[::step], method, step)


def plane(features: NDArray) -> tuple[NDArray, str]:
    """Return points of the plane (n, 2) in which similar features (n, F) are neighbours, and the method's name.

    t-SNE compares a point with about three times its perplexity of neighbours, so that it needs more points than that;
    with less than 16 points the two principal components are taken.
    """
    perplexity = min(PERPLEXITIES[1], (len(features) - 1) // 3)
    if perplexity < PERPLEXITIES[0] or not np.ptp(features, axis=0).any():
        return principal_components(features), "PCA"
    from sklearn.manifold import TSNE  # here, because it takes a second to import and most pages need no map

    tsne = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=SEED)
    return tsne.fit_transform(features.astype(np.float64)), f"t-SNE (perplexity {perplexity}, seed {SEED})"


def principal_components(features: NDArray) -> NDArray:
    """Return the first two principal components (n, 2) of features (n, F); 0 for those that do not exist."""
    centred = features.astype(np.float64) - features.mean(axis=0)
    left, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    points = (left * lengths)[:, :2]
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


def draw_map(shown: FeatureMap, sites: list[str]) -> bytes:
    """Draw the map with a colour and a shape for each site.

    Args:
        shown: The points.
        sites: All sites, in the order of the other figures' colours.
    """
    figure, ((axes,),) = panels(1, 1, (10.4, 5.6))
    handles = []
    for place, site in enumerate(sites):
        style = point_style(place)
        _scatter(axes, shown, shown.owners == site, style)
        handles.append(Line2D([], [], linestyle="", markersize=8, **style))
    if shown.is_wrong.any():
        handles.append(Line2D([], [], linestyle="", marker="o", markersize=8, color="none", markeredgecolor=INK))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(GRID)
    axes.margins(0.06)
    legend(figure, handles, [*sites, RINGED][: len(handles)], size=10)
    return png(figure)


def _scatter(axes: Axes, shown: FeatureMap, is_own: NDArray, style: Mapping[str, str]) -> None:
    for is_ringed, edge, width in ((False, "white", 0.5), (True, INK, 1.4)):
        points = shown.points[is_own & (shown.is_wrong == is_ringed)]
        axes.scatter(*points.T, s=60, marker=style["marker"], c=style["color"], edgecolors=edge, linewidths=width)


def _is_wrong(site: str, own: SelectorFeatures) -> NDArray:
    """Return for which images another site has the highest score; for none where the selector learns best models."""
    outputs = [str(name) for name in own.outputs]
    if site not in outputs or "global" in outputs:
        return np.zeros(len(own.features), dtype=bool)
    return own.scores.argmax(axis=1) != outputs.index(site)
