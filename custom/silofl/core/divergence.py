"""How far apart the sites of a round train, by what the server is sent anyway.

The gradients' dissimilarity is that of Jiang et al., HarmoFL (Eq. 8, Assumption B.2), the models' distance that of
Theorem 1 of Xu et al., FedSM.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silofl.core.array_file import store
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
    lengths, joint, shares = 0.0, 0.0, np.asarray(weights)
    for stacked in _stack_by_name(list(updates.values()), buffers):
        lengths += np.square(stacked).sum() / len(updates)
        joint += np.square(shares @ stacked).sum()
    return float(lengths / joint) if joint > 0 else None


def measure_distance(
    starts: Mapping[str, Arrays], updates: Mapping[str, Arrays], buffers: Collection[str] = ()
) -> float | None:
    """Return the mean over sites of ``||w_k - mean w||^2`` of the trained models.

    Args:
        starts: Site -> the model that it began the round with, for each site of the updates.
        updates: Site -> {name: array}, what training changed; an array that a site keeps back counts as unchanged.
        buffers: Names of arrays that are no parameters, and do not count.

    Returns:
        None where no parameter travels.
    """
    first = next(iter(starts.values()))
    # Beside the first site's start: sums of the weights themselves would lose the digits in which they differ.
    moved = [
        store({name: starts[site][name] - first[name] + changes.get(name, 0) for name in first})
        for site, changes in updates.items()
    ]
    squares = [np.square(one - one.mean(axis=0)).sum() / len(one) for one in _stack_by_name(moved, buffers)]
    return float(sum(squares)) if squares else None


def _stack_by_name(models: Sequence[Arrays], buffers: Collection[str]) -> Iterator[NDArray[np.float64]]:
    """Yield for each parameter that any model has its numbers in all of them, shape (K, n); 0 where one lacks it."""
    shapes = {name: array.shape for arrays in models for name, array in arrays.items() if name not in buffers}
    for name, shape in shapes.items():
        yield np.stack([np.asarray(one.get(name, np.zeros(shape)), np.float64).reshape(-1) for one in models])
