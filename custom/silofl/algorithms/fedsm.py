"""FedSM: personalised models by SoftPull, a selector, and the rule by which a super model picks one for a new patient.

Xu et al., Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation, CVPR 2022,
arXiv:2203.10144.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from silofl.algorithms.mixing import Arrays
from silofl.algorithms.recipe import Recipe
from silofl.algorithms.steps import Batch, Loss
from silofl.errors import AggregationError, ConfigError

# Candidates for the paper's gamma: 0 always takes a site's model, 1 always the global one.
THRESHOLDS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)

PRESETS = {
    # Algorithm 1: the selector learns by local steps and is averaged.
    "paper": Recipe(mixing="softpull", selector="local_steps", selector_network="vgg11"),
    # The authors' released code: one full-batch Adam step a round at each site, its moments averaged as well.
    "reference": Recipe(mixing="softpull", selector="moments", selector_network="vgg11"),
    "recommended": Recipe(mixing="softpull", selector="gradients"),
}


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
    others = (1 - self_weight) / (num_sites - 1)
    # At lambda = 1/K rounding must not tell a site's own model from the others'.
    weights = np.full((num_sites, num_sites), self_weight if np.isclose(others, self_weight, 1e-12, 0) else others)
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


def tune_threshold(sums: Sequence[Sequence[Sequence[float]]], thresholds: Sequence[float] = THRESHOLDS) -> float:
    """Return the threshold under which the sites' validation cases are answered best.

    Among equals the largest: it costs nothing on the sites' own images, and leaves a doubtful new one to the global
    model, which has seen all sites.

    Args:
        sums: For each site, and each threshold in it, the sum of the cases' values and the number of cases.
        thresholds: Candidates, ascending.

    Raises:
        AggregationError: A site does not send a sum and a count for every threshold.
    """
    table = np.asarray(sums, dtype=np.float64)
    if table.ndim != 3 or table.shape[1:] != (len(thresholds), 2) or not np.all(np.isfinite(table)):
        raise AggregationError(f"each site must send a sum and a count for {len(thresholds)} thresholds; one does not")
    has_cases = (table[:, :, 1] > 0).all(axis=1)
    if not has_cases.any():
        return float(thresholds[-1])
    means = (table[has_cases, :, 0] / table[has_cases, :, 1]).mean(axis=0)
    return float(thresholds[int(np.flatnonzero(means >= means.max() - 1e-12)[-1])])


def site_loss(label: int) -> Loss:
    """Return the selector's loss at a site (Eq. 2): cross entropy of the logits (B, K) with the site's own index.

    Args:
        label: The site's index among the selector's outputs, from 0; the targets of a batch play no part.
    """

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, logits.new_full((len(logits),), label, dtype=torch.long))

    return loss


class GradientStep:
    """A step that changes nothing and gathers the gradient of all batches at the same parameters.

    Attributes:
        num_examples: Examples gathered so far.
    """

    def __init__(self) -> None:
        self.num_examples = 0

    def __call__(self, model: nn.Module, optimizer: object, loss: Loss, batch: Batch) -> Tensor:
        """Add a batch's gradient; returns its mean loss, detached."""
        inputs, targets = batch
        if self.num_examples == 0:
            model.zero_grad(set_to_none=True)
        value = loss(model(inputs), targets)
        (value * len(inputs)).backward()
        self.num_examples += len(inputs)
        return value.detach()

    def mean(self, model: nn.Module) -> Arrays:
        """Return the mean gradient over all gathered examples: {parameter name: array}."""
        parameters = model.named_parameters()
        return {name: (p.grad / self.num_examples).cpu().numpy() for name, p in parameters if p.grad is not None}


class AdamState(NamedTuple):
    """Adam's running moments by parameter name, and how many steps made them."""

    mean: Arrays
    square: Arrays
    steps: int

    @classmethod
    def zero(cls, parameters: Arrays) -> AdamState:
        """Return the state before the first step."""
        nothing = {name: np.zeros_like(array) for name, array in parameters.items()}
        return cls(nothing, dict(nothing), 0)


def adam_step(
    parameters: Arrays, gradient: Mapping[str, NDArray], state: AdamState, learning_rate: float
) -> tuple[Arrays, AdamState]:
    """Take one step of torch's Adam, betas (0.9, 0.999), without changing what is given.

    Args:
        parameters: {name: array}.
        gradient: The same names and shapes.
        state: The moments before the step.
        learning_rate: The paper's eta_s.

    Returns:
        The new parameters and moments, in the arrays' own dtype.
    """
    tensors = {name: nn.Parameter(torch.from_numpy(np.array(array))) for name, array in parameters.items()}
    optimizer = torch.optim.Adam(tensors.values(), lr=learning_rate)
    for name, tensor in tensors.items():
        tensor.grad = torch.from_numpy(np.array(gradient[name], dtype=parameters[name].dtype))
        moments = {"exp_avg": state.mean[name], "exp_avg_sq": state.square[name]}
        optimizer.state[tensor] = {key: torch.from_numpy(np.array(array)) for key, array in moments.items()}
        optimizer.state[tensor]["step"] = torch.tensor(float(state.steps))
    optimizer.step()
    new = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    mean, square = (
        {name: optimizer.state[tensor][key].numpy() for name, tensor in tensors.items()}
        for key in ("exp_avg", "exp_avg_sq")
    )
    return new, AdamState(mean, square, state.steps + 1)
