"""The one server formula: every aggregation is ``new_i = sum_j W[i, j] * theta_j`` over the sites that answered.

Beside it the weights and the server's step of FedAvg, which other algorithms share.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from silofl.base.errors import AggregationError

Arrays = dict[str, NDArray[Any]]

# Numbers of all sites in one product: half a MiB in float64, which a processor's cache holds. Another number would
# give other bits, because the last few numbers of a product are summed otherwise.
CACHE = 1 << 16
# Products whose numbers are made float64 at once: for pieces as short as one product's, calls take most of the time.
PRODUCTS = 8


def mix(params: Mapping[str, Arrays], weights: NDArray[Any]) -> dict[str, Arrays]:
    """Mix the sites' parameters by the rows of a weight matrix: ``new_i = sum_j W[i, j] * theta_j``.

    Sums run in float64 in the order of ``params``; results keep each array's dtype. Integer arrays are never
    averaged: every site keeps its own. Rows that are equal are computed once, and their sites share the arrays.

    Args:
        params: Site name -> {name: array}, in the order of the rows of ``weights``; names and shapes are everywhere the
            same.
        weights: Aggregation weights, shape (K, K); rows sum to 1.

    Returns:
        Site name -> {name: array}, in the same order; arrays may be shared between sites and must not be changed.

    Raises:
        AggregationError: ``weights`` has another shape, a row does not sum to 1, or a site's numbers are not finite.
    """
    sites = list(params)
    weights = np.asarray(weights, dtype=np.float64)
    check_weights(weights, sites)
    # By the bytes of the row: sites with equal rows share one sum, so FedAvg costs one sum and not K.
    different_rows = {row.tobytes(): row for row in weights}
    row_numbers = {content: number for number, content in enumerate(different_rows)}
    row_of_site = [row_numbers[row.tobytes()] for row in weights]
    rows = np.array(list(different_rows.values()))
    mixed: dict[str, Arrays] = {site: {} for site in sites}
    # What is not finite is refused by the name of its site.
    with limit_threads(), np.errstate(invalid="ignore"):
        for name in next(iter(params.values()), {}):
            arrays = [params[site][name] for site in sites]
            # A mean of counters, such as BatchNorm's num_batches_tracked, would be no integer.
            sums = _weighted_sums(arrays, rows) if any(map(is_float, arrays)) else []
            # An input that is NaN or infinite leaves no sum finite, even with weight 0; sums are fewer to look at.
            if not all(np.isfinite(total).all() for total in sums):
                for site, array in zip(sites, arrays, strict=True):
                    _check_finite(site, name, array)
            for site, array, row in zip(sites, arrays, row_of_site, strict=True):
                mixed[site][name] = sums[row] if is_float(array) else array
    return mixed


def example_weights(num_examples: Sequence[float]) -> NDArray[np.float64]:
    """Return FedAvg's matrix: every row is n_j / sum n.

    Args:
        num_examples: Training examples of each site, or what counts of them; above 0.

    Returns:
        Weights of shape (K, K) whose rows are equal and sum to 1.
    """
    counts = np.asarray(num_examples, dtype=np.float64)
    return np.tile(counts / counts.sum(), (len(counts), 1))


def uniform_weights(num_sites: int) -> NDArray[np.float64]:
    """Return the matrix of shape (K, K) in which every site listens to every site equally."""
    return example_weights([1] * num_sites)


def server_step(
    previous: Mapping[str, NDArray[Any]],
    mixed: Mapping[str, NDArray[Any]],
    server_lr: float,
    buffers: Collection[str] = (),
) -> dict[str, NDArray[Any]]:
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
    stepped = {}
    for name, array in mixed.items():
        # Beyond a learning rate of 1 the step overshoots, and a running variance could fall below 0.
        if name in buffers or not is_float(array):
            stepped[name] = array
        else:
            # In float64 and rounded once, as in `mix`.
            start = np.asarray(previous[name], np.float64)
            end = np.asarray(array, np.float64)
            stepped[name] = (start + server_lr * (end - start)).astype(np.asarray(array).dtype)
    return stepped


def check_array(site: str, name: str, array: NDArray[Any], shape: tuple[int, ...], whose: str = "") -> None:
    """Refuse one array of a site that has another shape or holds numbers that are not finite.

    Args:
        name: What it is called.
        shape: The shape it must have.
        whose: Words that say where that shape comes from.

    Raises:
        AggregationError: Names the site and the key.
    """
    if np.shape(array) != shape:
        raise AggregationError(f"site {site!r} sent {name!r} with shape {np.shape(array)} in place of {shape}{whose}")
    _check_finite(site, name, array)


def _check_finite(site: str, name: str, array: NDArray[Any]) -> None:
    if not np.all(np.isfinite(array)):
        raise AggregationError(f"{name!r} of site {site!r} holds NaN or infinity")


def check_weights(weights: NDArray[Any], sites: Sequence[str], source: str = "the mixing") -> None:
    """Refuse aggregation weights of another shape than (K, K), or whose rows do not sum to 1; single ones may be 0.

    Args:
        source: What set them, for the error.

    Raises:
        AggregationError: Names the source.
    """
    count = len(sites)
    if weights.shape != (count, count):
        raise AggregationError(
            f"the aggregation weights of {source} have shape {weights.shape} in place of {(count, count)}, a row and a "
            "column for each site that answered; correct its code"
        )
    for site, total in zip(sites, weights.sum(axis=1), strict=True):
        # Rows that somebody computed in float32 sum to 1 within some 1e-7.
        if not np.isclose(total, 1.0, rtol=0, atol=1e-6):
            raise AggregationError(
                f"the row for site {site!r} in the aggregation weights of {source} sums to {total:.6g} in place of 1; "
                "correct its code"
            )


def is_float(array: NDArray[Any]) -> bool:
    """Return whether an array holds floating-point numbers, the only ones that are averaged."""
    return np.issubdtype(np.asarray(array).dtype, np.floating)


def _weighted_sums(arrays: list[NDArray[Any]], rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the sum of the arrays for each row of weights, (rows, arrays): piece by piece, in float64.

    In float32 every further site would round the sum again, and the mean of equal models would not be that model.
    """
    arrays = [np.asarray(array) for array in arrays]
    sums = [np.empty(arrays[0].shape, dtype=arrays[0].dtype) for _ in rows]
    flat_sums = [total.reshape(-1) for total in sums]
    flat_arrays = [array.reshape(-1) for array in arrays]
    count = flat_arrays[0].size
    # At least 1, which the step of a range must be, for arrays without numbers too.
    size = min(max(1, CACHE // len(arrays)), max(1, count))
    length = min(PRODUCTS * size, max(1, count))
    wide = np.empty((len(arrays), length))
    mixed = np.empty((len(rows), length))
    for start in range(0, count, length):
        piece = slice(start, min(start + length, count))
        # The last piece may be shorter than the buffers.
        filled = piece.stop - start
        for row, array in zip(wide, flat_arrays, strict=True):
            row[:filled] = array[piece]
        for begin in range(0, filled, size):
            product = slice(begin, min(begin + size, filled))
            np.matmul(rows, wide[:, product], out=mixed[:, product])
        for row, total in zip(mixed, flat_sums, strict=True):
            total[piece] = row[:filled]
    return sums


@contextmanager
def limit_threads() -> Iterator[None]:
    """Let NumPy's matrix products run in one thread: several may add up in another order, to other bits."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
