"""How models' outputs become probabilities, and several models' probabilities one answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def case_scores(slice_scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a case's probability of each output, shape (outputs,): the mean over its slices, (n, outputs)."""
    # A mean of ones may round to a hair above 1.
    scores: NDArray[np.float64] = slice_scores.mean(axis=0).clip(0, 1)
    return scores


def add_share(total: NDArray[Any] | None, probabilities: NDArray[Any], weight: float) -> NDArray[Any]:
    """Return a total of several models' probabilities with one more, times its weight; None is one of no model yet.

    Both are changed in their place: a volume's probabilities may be most of the memory.
    """
    probabilities *= np.float32(weight)
    return probabilities if total is None else np.add(total, probabilities, out=total)


def to_probabilities(logits: Tensor, is_multilabel: bool = False) -> Tensor:
    """Return the sigmoid of a single output, or of each finding, else the softmax over the second axis."""
    return logits.sigmoid() if is_multilabel or logits.shape[1] == 1 else logits.softmax(dim=1)


def shift_foreground(probabilities: Tensor, bias: float) -> Tensor:
    """Return a segmentation's probabilities (n, out_channels, ...) with a bias on the foreground's log-odds.

    Of one output p that is ``p e^b / (1 - p + p e^b)``; of several each label's share of the foreground stays.
    """
    if bias == 0.0:
        return probabilities
    factor = math.exp(bias)
    if probabilities.shape[1] == 1:
        return probabilities * factor / (1 + probabilities * (factor - 1))
    background = probabilities[:, :1]
    shifted = torch.cat([background, probabilities[:, 1:] * factor], dim=1)
    return shifted / (factor + background * (1 - factor))
