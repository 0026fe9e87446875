"""One round's answers to the next models: differences added, names mixed over their senders, the server's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from silofl.algorithms.fedavg import server_step
from silofl.algorithms.mixing import Arrays, mix
from silofl.federation.message import Message
from silofl.models.members import role_of

Models = dict[str, Arrays]


def trained_models(models: Models, answers: Mapping[str, Message]) -> Models:
    """Return the model that each site trained: what the server holds of it plus the difference it answered."""
    return {
        site: {name: models[site][name] + diff for name, diff in answer.arrays.items() if name in models[site]}
        for site, answer in answers.items()
    }


def mixed_models(models: Models, trained: Models, weights_of: Callable[[str], NDArray]) -> Models:
    """Mix the trained models, each name over its senders by its role's weights.

    Args:
        models: Site -> the model it started from.
        trained: Site -> what it sent of its trained model, in the order of the weights' rows.
        weights_of: Role -> aggregation weights of the sites that trained.

    Returns:
        Site that trained -> its next model; equal models share their arrays.
    """
    mixed: Models = {site: {} for site in trained}
    for (role, senders), names in _by_senders(trained, models).items():
        params = {s: {name: trained[s].get(name, models[s][name]) for name in names} for s in trained}
        weights = _listening_to(weights_of(role), [s in senders for s in trained])
        for site, arrays in mix(params, weights).items():
            mixed[site].update(arrays)
    return mixed


def stepped_models(models: Models, mixed: Models, server_lr: float, buffers: frozenset[str]) -> Models:
    """Take the server's step at every site; sites that share all their arrays go on sharing them."""
    done: dict[tuple[int, ...], Arrays] = {}
    new: Models = {}
    for site, arrays in mixed.items():
        key = tuple(id(array) for array in (*arrays.values(), *models[site].values()))
        if key not in done:
            done[key] = server_step(models[site], arrays, server_lr, buffers)
        new[site] = done[key]
    return new


def _by_senders(trained: Models, models: Models) -> dict[tuple[str, tuple[str, ...]], list[str]]:
    """Group the models' names by role and by the sites that sent them: one group a role unless a site withholds."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name in next(iter(models.values())):
        senders = tuple(site for site in trained if name in trained[site])
        groups.setdefault((role_of(name), senders), []).append(name)
    return groups


def _listening_to(weights: NDArray, is_sender: list[bool]) -> NDArray:
    """Renormalise every row over the senders; a row without any listens to its own site's last model."""
    rows = weights * np.array(is_sender, dtype=np.float64)
    sums = rows.sum(axis=1, keepdims=True)
    return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), np.eye(len(rows)))
