"""How far apart the sites of a round train, by what the server is sent anyway.

The gradients' dissimilarity is that of Jiang et al., HarmoFL (Eq. 8, Assumption B.2).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silofl.core.mixing import Arrays


def measure_dissimilarity(
    updates: Mapping[str, Arrays], weights: ArrayLike, buffers: Collection[str] = ()
) -> float | None:
    """Return how unlike the sites' updates of one model are: 1 where all are equal, larger the less they agree.

    ``(1/K sum_k ||Delta_k||^2) / ||sum_k p_k Delta_k||^2``: the ``B^2`` of bounded gradient dissimilarity where
    ``G = 0``, with updates for gradients; after one step of SGD they are these times the rate.

    Args:
        updates: Site -> {name: array}, all from the same start.
        weights: The sites' aggregation weights, shape (K,), in the order of the updates.
        buffers: Names of arrays that are no parameters, and do not count.

    Returns:
        None where the updates cancel out, or there are none.
    """
    lengths = joint = 0.0
    shares = np.asarray(weights)
    # One parameter at a time: stacked whole, the models of all sites would be in memory once more.
    for stacked in _stack_by_name(list(updates.values()), buffers):
        lengths += np.square(stacked).sum() / len(updates)
        joint += np.square(shares @ stacked).sum()
    return float(lengths / joint) if joint > 0 else None


def _stack_by_name(models: Sequence[Arrays], buffers: Collection[str]) -> Iterator[NDArray[np.float64]]:
    """Yield for each parameter that any model has its numbers in all of them, shape (K, n); 0 where one lacks it."""
    shapes: dict[str, tuple[int, ...]] = {}
    for arrays in models:
        for name, array in arrays.items():
            if name not in buffers:
                shapes[name] = array.shape
    for name, shape in shapes.items():
        rows = [np.asarray(arrays.get(name, np.zeros(shape)), np.float64).reshape(-1) for arrays in models]
        yield np.stack(rows)
