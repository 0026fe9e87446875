"""Mix the sites' trained models, each array over the sites that sent it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from silofl.core.mixing import Arrays, mix
from silofl.models.names import is_variance

# Bytes of one site's arrays that are mixed at once; for single arrays, calls take most of the time.
PIECE = 1 << 24


def mix_models(started: Mapping[str, Arrays], changes: Mapping[str, Arrays], weights: NDArray) -> dict[str, Arrays]:
    """Mix trained models, each array over the sites that sent it.

    Args:
        started: Site -> the model that it began from; the order is that of the weights' rows.
        changes: Site -> what training changed in those of its arrays that it sent.
        weights: Aggregation weights, shape (K, K).

    Returns:
        Site -> its next model; what nobody sent stays as it was.
    """
    mixed = {site: dict(arrays) for site, arrays in started.items()}
    # A site's policy may keep arrays back, so each is mixed over its senders; arrays with the same senders together.
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in next(iter(started.values())):
        groups.setdefault(tuple(site for site in changes if name in changes[site]), []).append(name)
    for senders, names in groups.items():
        if not senders:
            continue
        rows = _renormalise_rows(weights, [site in senders for site in changes])
        for piece in _cut_pieces(names, next(iter(started.values()))):
            trained = {
                site: {name: _add_change(name, started[site][name], changes[site].get(name)) for name in piece}
                for site in changes
            }
            for site, arrays in mix(trained, rows).items():
                mixed[site].update(arrays)
    return mixed


def _cut_pieces(names: Sequence[str], arrays: Arrays) -> Iterator[list[str]]:
    """Yield names of some `PIECE` bytes at a time: all trained models at once would fill the server's memory."""
    piece: list[str] = []
    size = 0
    for name in names:
        piece.append(name)
        size += arrays[name].nbytes
        if size >= PIECE or name == names[-1]:
            yield piece
            piece, size = [], 0


def _add_change(name: str, started: NDArray, change: NDArray | None) -> NDArray:
    """Return a trained array; a variance that half precision rounds to a hair below 0 is 0."""
    if change is None:
        return started
    return np.maximum(started + change, 0) if is_variance(name) else started + change


def _renormalise_rows(weights: NDArray, is_sender: list[bool]) -> NDArray:
    """Renormalise every row over the senders; a row without any listens to its own site's last model."""
    rows = weights * np.array(is_sender, dtype=np.float64)
    sums = rows.sum(axis=1, keepdims=True)
    return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), np.eye(len(rows)))
