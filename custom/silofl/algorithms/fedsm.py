"""FedSM: personalised models by SoftPull, and the rule by which a super model picks one for a new patient.

Xu et al., Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation, CVPR 2022,
arXiv:2203.10144.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silofl.errors import AggregationError, ConfigError


def softpull_weights(num_sites: int, self_weight: float) -> NDArray[np.float64]:
    """Return SoftPull's matrix (Eq. 11): lambda of a site's own model, the rest split evenly over the others.

    Args:
        num_sites: Sites K that answered this round, at least 1; one site alone keeps its model, whatever lambda.
        self_weight: The paper's lambda, in [1/K, 1]: 1/K is the uniform mean, 1 is local training.

    Returns:
        Weights of shape (K, K); rows sum to 1.

    Raises:
        AggregationError: ``num_sites`` or ``self_weight`` is out of range.
    """
    if num_sites < 1:
        raise AggregationError(f"SoftPull must mix at least 1 site, not {num_sites}")
    if num_sites == 1:
        return np.ones((1, 1))
    if not 1 / num_sites - 1e-12 <= self_weight <= 1:
        raise AggregationError(f"self_weight must lie in [1/{num_sites}, 1] for {num_sites} sites, not {self_weight}")
    weights = np.full((num_sites, num_sites), (1 - self_weight) / (num_sites - 1))
    np.fill_diagonal(weights, self_weight)
    return weights


def choose_model(scores: ArrayLike, threshold: float) -> NDArray[np.int64]:
    """Return which model answers (Algorithm 2): the most probable site's, or the global one where none is sure enough.

    Args:
        scores: The selector's probabilities, shape (N, K): of N cases for K sites.
        threshold: The paper's gamma, in [0, 1]: a site's model answers where its score is above it.

    Returns:
        Shape (N,): 0 for the global model, k from 1 for site k.

    Raises:
        ConfigError: ``scores`` is no matrix of probabilities, or ``threshold`` lies outside [0, 1].
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] < 1 or not np.all((scores >= 0) & (scores <= 1)):
        raise ConfigError(
            f"scores must be probabilities in [0, 1] of shape (N, K), not numbers of shape {scores.shape}"
        )
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold must lie in [0, 1], not {threshold}")
    return np.where(scores.max(axis=1) > threshold, scores.argmax(axis=1) + 1, 0)
