"""Products of the sites' updates with one another, from which lengths, angles and distances follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.core.mixing import Arrays, limit_threads

# Numbers of two updates that are multiplied at once, which a processor's cache holds. Numbers of up to 1e15 are
# admitted, and the squares of so many of them have a sum that float32 can hold.
PIECE = 1 << 16


@dataclass(frozen=True)
class Products:
    """Products of the sites' updates of one model, from which their lengths and angles follow.

    Attributes:
        sites: The sites, in the order of rows and columns.
        parameters: Sum over all parameters of the product of two updates, shape (K, K).
        buffers: The same over BatchNorm's running buffers.
    """

    sites: tuple[str, ...]
    parameters: NDArray[np.float64]
    buffers: NDArray[np.float64]

    def lengths(self, of_these: NDArray[np.float64] | None = None) -> dict[str, float]:
        """Return site -> the Euclidean length of its update: of the whole, or of parameters or buffers alone."""
        products = self.parameters + self.buffers if of_these is None else of_these
        return dict(zip(self.sites, np.sqrt(products.diagonal()).tolist(), strict=True))

    def distances(self, of_these: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the squared Euclidean distances of all pairs of updates, (K, K): of parameters or buffers alone."""
        squares = of_these.diagonal()
        # Sums of squares rounded apart may leave a little less than 0 of two equal updates.
        return np.maximum(squares[:, None] + squares[None, :] - 2 * of_these, 0)

    def select(self, sites: Collection[str]) -> Products:
        """Return the products of some of the sites."""
        rows = [row for row, site in enumerate(self.sites) if site in sites]
        names, places = tuple(self.sites[row] for row in rows), np.ix_(rows, rows)
        return Products(names, self.parameters[places], self.buffers[places])


def multiply_updates(updates: Mapping[str, Arrays], buffers: Collection[str] = ()) -> Products:
    """Multiply all pairs of updates; an array that a site keeps back counts as one of zeros.

    Args:
        updates: Site -> {name: array}.
        buffers: Names of arrays that are no parameters.
    """
    sites = tuple(updates)
    sums = {is_buffer: np.zeros((len(sites), len(sites))) for is_buffer in (False, True)}
    with limit_threads():
        for name in dict.fromkeys(name for arrays in updates.values() for name in arrays):
            flat = {row: updates[site][name].reshape(-1) for row, site in enumerate(sites) if name in updates[site]}
            _add_products(sums[name in buffers], flat)
    whole = {is_buffer: lower + np.tril(lower, -1).T for is_buffer, lower in sums.items()}
    return Products(sites, whole[False], whole[True])


def _add_products(sums: NDArray[np.float64], flat: Mapping[int, NDArray]) -> None:
    """Add the products of all pairs of arrays to the lower half of the sums, piece by piece."""
    size = next(iter(flat.values())).size
    for start in range(0, size, PIECE):
        pieces = {row: array[start : start + PIECE] for row, array in flat.items()}
        for i, first in pieces.items():
            for j in (j for j in pieces if j <= i):
                sums[i, j] += np.dot(first, pieces[j])
