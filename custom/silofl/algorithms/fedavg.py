"""FedAvg: every site gets the same mean, weighted by the sites' numbers of training examples.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
arXiv:1602.05629; the server's learning rate follows Reddi et al., Adaptive Federated Optimization, ICLR 2021,
arXiv:2003.00295.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from silofl.algorithms.mixing import is_float
from silofl.algorithms.recipe import PRESET_NAMES, Recipe
from silofl.errors import AggregationError

PRESETS = dict.fromkeys(PRESET_NAMES, Recipe())


def example_weights(num_examples: Sequence[int]) -> NDArray[np.float64]:
    """Return FedAvg's matrix: every row is n_j / sum n.

    Args:
        num_examples: Training examples of each site, at least 1.

    Returns:
        Weights of shape (K, K) whose rows are equal and sum to 1.

    Raises:
        AggregationError: A site has no examples, or their number is not finite.
    """
    counts = np.asarray(num_examples, dtype=np.float64)
    if counts.ndim != 1 or not np.all(np.isfinite(counts)) or np.any(counts <= 0):
        raise AggregationError(f"every site must have at least 1 training example, not {list(num_examples)}")
    return np.tile(counts / counts.sum(), (len(counts), 1))


def uniform_weights(num_sites: int) -> NDArray[np.float64]:
    """Return the matrix of shape (K, K) in which every site listens to every site equally."""
    return example_weights([1] * num_sites)


def server_step(
    previous: Mapping[str, NDArray], mixed: Mapping[str, NDArray], server_lr: float, buffers: Collection[str] = ()
) -> dict[str, NDArray]:
    """Move the model a fraction of the way to the mixed one: ``theta + eta_g * (mixed - theta)``.

    Args:
        previous: The model that the sites started from, {name: array}.
        mixed: Their mixed models, the same names.
        server_lr: The server's learning rate eta_g; 1 returns ``mixed`` itself.
        buffers: Names that are no parameters (running variances): taken from ``mixed`` as they are.

    Returns:
        The new model; every array keeps its dtype.
    """
    # Not through the formula: theta + 1 * (mixed - theta) rounds.
    if server_lr == 1:
        return dict(mixed)
    return {
        # Beyond a learning rate of 1 the step overshoots, and a running variance could fall below 0.
        name: array if name in buffers or not is_float(array) else _interpolate(previous[name], array, server_lr)
        for name, array in mixed.items()
    }


def _interpolate(start: NDArray, end: NDArray, fraction: float) -> NDArray:
    # In float64 and rounded once, as in `mix`.
    start64, end64 = np.asarray(start, np.float64), np.asarray(end, np.float64)
    return (start64 + fraction * (end64 - start64)).astype(np.asarray(end).dtype)
