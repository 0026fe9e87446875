"""The rule of a super model: which model answers, and as a module from a case's images to the weight of each member.

No branch depends on a number in a tensor, since TorchScript's trace would keep one of them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from silofl.data.volumes import resize_central_slices
from silofl.inference.contents import Contents
from silofl.models.roles import GLOBAL

# This lies below every score: the most probable output always answers.
NO_THRESHOLD = -1.0


class Fixed(nn.Module):
    """The same weights for every case.

    Args:
        weights: Of each member; they sum to 1.
    """

    weights: Tensor

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        """Return the weight of each member."""
        return self.weights.clone()


class OfVolume(nn.Module):
    """A selector of slices that sees a whole volume: the slices in its middle.

    Args:
        selector: Slices (n, C, H, W) to logits (n, outputs).
    """

    def __init__(self, selector: nn.Module) -> None:
        super().__init__()
        self.selector = selector

    def forward(self, volume: Tensor) -> Tensor:
        """Return logits (slices, outputs) of a volume (1, C, X, Y, Z)."""
        logits: Tensor = self.selector(resize_central_slices(volume[0]))
        return logits


class ChoiceRule(nn.Module):
    """All weight on the member of the highest score, or on the global one where the score is not above the threshold.

    Args:
        selector: Images to logits of its outputs.
        members: Which member each output is, one row an output, 1 at the member: shape (outputs, members).
        threshold: The paper's gamma; `NO_THRESHOLD` for none.
        fallback: The number of the global member.
    """

    members: Tensor
    fallback: Tensor

    def __init__(self, selector: nn.Module, members: Tensor, threshold: float, fallback: int) -> None:
        super().__init__()
        self.selector = selector
        self.threshold = threshold
        self.register_buffer("members", members)
        # A clone: files hold whole tensors, and no rows of others.
        self.register_buffer("fallback", torch.eye(members.shape[1], dtype=torch.float64)[fallback].clone())

    def forward(self, images: Tensor) -> Tensor:
        """Return the weight of each member."""
        scores = torch.softmax(self.selector(images).double(), dim=1).mean(dim=0)
        best = scores.argmax(dim=0, keepdim=True)
        chosen = self.members.index_select(0, best).flatten()
        return torch.where(scores.index_select(0, best) > self.threshold, chosen, self.fallback)


class EnsembleRule(nn.Module):
    """The selector's scores as weights.

    Args:
        selector: Images to logits of its outputs.
        members: Which member each output is, as of `ChoiceRule`.
    """

    members: Tensor

    def __init__(self, selector: nn.Module, members: Tensor) -> None:
        super().__init__()
        self.selector = selector
        self.register_buffer("members", members)

    def forward(self, images: Tensor) -> Tensor:
        """Return the weight of each member."""
        scores = torch.softmax(self.selector(images).double(), dim=1).mean(dim=0)
        return (scores / scores.sum()) @ self.members


def member_names(contents: Contents) -> list[str]:
    """Return the members' names in the order of their weights."""
    return sorted(contents.models)


def build_weigher(contents: Contents, selector: nn.Module | None) -> nn.Module:
    """Return the rule of a super model.

    Args:
        selector: One case's images (n, C, *spatial) to logits (slices, outputs); None without a selector.
    """
    order = member_names(contents)
    if selector is None:
        shares = contents.shares(np.zeros(0))
        # The global model has no share in a mean of sites, and stays a member.
        return Fixed([shares.get(name, 0.0) for name in order])
    rows = [order.index(output) for output in contents.outputs]
    members = torch.eye(len(order), dtype=torch.float64)[rows]
    if contents.is_ensemble:
        return EnsembleRule(selector, members)
    threshold = NO_THRESHOLD if contents.threshold is None else float(contents.threshold)
    return ChoiceRule(selector, members, threshold, order.index(GLOBAL))
