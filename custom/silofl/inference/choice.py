"""Whose model answers a case: a site's, the global one, or a mean of several."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silofl.inference.contents import Contents
from silofl.models.roles import GLOBAL

MEAN = "mean of all sites"
ENSEMBLE = "ensemble"


def choose_model(scores: ArrayLike, threshold: float) -> NDArray[np.int64]:
    """Return which model answers (FedSM, Algorithm 2): the most probable site's, or the global one if none is sure.

    Args:
        scores: The selector's probabilities, shape (N, K): of N cases for K sites.
        threshold: The paper's gamma, in [0, 1]: a site's model answers where its score is above it.

    Returns:
        Shape (N,): 0 for the global model, k from 1 for site k.
    """
    scores = np.asarray(scores, dtype=np.float64)
    return np.where(scores.max(axis=1) > threshold, scores.argmax(axis=1) + 1, 0)


def choose_answer(contents: Contents, scores: NDArray[Any], threshold: float | None = None) -> str:
    """Return whose model answers: the highest score's if it is above the threshold, else the global one.

    Args:
        scores: The selector's probabilities of a case, shape (outputs,).
        threshold: Instead of the super model's own gamma; where neither is set, the highest score always answers.
    """
    if contents.rule == "only":
        return next(iter(contents.models))
    if contents.rule == "mean":
        return MEAN
    if threshold is None:
        threshold = contents.threshold
    if threshold is None:
        return contents.outputs[int(np.argmax(scores))]
    # The global model comes first: `choose_model` counts the outputs from 1.
    return (GLOBAL, *contents.outputs)[int(choose_model(scores[None], threshold)[0])]


def weigh_models(
    contents: Contents, scores: NDArray[np.float64], threshold: float | None, site: str | None
) -> tuple[str, dict[str, float]]:
    """Return the answer's name, and each model's weight in it.

    Args:
        site: Whose model answers, instead of a choice.
    """
    if site is not None:
        return site, {site: 1.0}
    if contents.is_ensemble:
        return ENSEMBLE, contents.shares(scores)
    name = choose_answer(contents, scores, threshold)
    if contents.is_choice:
        return name, {name: 1.0}
    # Of one model, or of the mean of all sites', the shares say which.
    return name, contents.shares(scores)
