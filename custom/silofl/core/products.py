"""Products of the sites' updates with one another, from which lengths, angles and distances follow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
        pairs = np.ix_(rows, rows)
        return Products(tuple(self.sites[row] for row in rows), self.parameters[pairs], self.buffers[pairs])


def multiply_updates(updates: Mapping[str, Arrays], buffers: Collection[str] = ()) -> Products:
    """Multiply all pairs of updates; an array that a site keeps back counts as one of zeros.

    Args:
        updates: Site -> {name: array}.
        buffers: Names of arrays that are no parameters.
    """
    count = len(updates)
    of_parameters = np.zeros((count, count))
    of_buffers = np.zeros((count, count))
    with limit_threads():
        for name in list_names(updates.values()):
            flat = {row: arrays[name].reshape(-1) for row, arrays in enumerate(updates.values()) if name in arrays}
            _add_products(of_buffers if name in buffers else of_parameters, flat)
    # Only the lower half was computed; the product of two updates is the same either way round.
    for lower in (of_parameters, of_buffers):
        lower += np.tril(lower, -1).T
    return Products(tuple(updates), of_parameters, of_buffers)


def list_names(updates: Iterable[Arrays]) -> list[str]:
    """Return the names of all arrays that any site sent, each once, in the order in which they are met."""
    names: dict[str, None] = {}
    for arrays in updates:
        names |= dict.fromkeys(arrays)
    return list(names)


def _add_products(sums: NDArray[np.float64], flat: Mapping[int, NDArray[np.floating]]) -> None:
    """Add the products of all pairs of arrays to the lower half of the sums, piece by piece."""
    size = next(iter(flat.values())).size
    for start in range(0, size, PIECE):
        pieces = {row: array[start : start + PIECE] for row, array in flat.items()}
        for i, left in pieces.items():
            for j, right in pieces.items():
                if j <= i:
                    sums[i, j] += np.dot(left, right)
