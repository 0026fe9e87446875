"""A super model as one TorchScript module: every member traced, the choice among them scripted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from silofl.inference.contents import Contents
from silofl.inference.super_model import BATCH_SIZE, SuperModel, to_probabilities
from silofl.models.roles import GLOBAL

WHOLE_CASE = 0
# Below every score: the most probable output always answers.
NO_THRESHOLD = -1.0


class ScriptAnswers(nn.Module):
    """One model with probabilities instead of logits as its output."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return probabilities of images (B, C, H, W)."""
        return to_probabilities(self.network(images))


class InBatches(nn.Module):
    """A traced network that takes a case of any length some slices at a time.

    Args:
        network: The network.
        batch_size: Slices at a time; `WHOLE_CASE` for all at once.
    """

    def __init__(self, network: nn.Module, batch_size: int) -> None:
        super().__init__()
        self.network, self.batch_size = network, batch_size

    def forward(self, images: Tensor) -> Tensor:
        """Return the network's output for images (n, C, H, W)."""
        # A literal: TorchScript cannot see WHOLE_CASE, or any other global.
        if self.batch_size == 0 or images.size(0) <= self.batch_size:
            return self.network(images)
        parts: list[Tensor] = []
        for start in range(0, images.size(0), self.batch_size):
            parts.append(self.network(images[start : start + self.batch_size]))
        return torch.cat(parts)


class Fixed(nn.Module):
    """The same weights for every case.

    Args:
        weights: Of each member; they sum to 1.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        """Return the weight of each member."""
        return self.weights


class Choice(nn.Module):
    """All weight on the member of the highest score, or on the global one where the score is not above the threshold.

    Args:
        selector: Images to logits of its outputs.
        members: The member that each output stands for.
        threshold: The paper's gamma; `NO_THRESHOLD` for none.
        fallback: The global member.
    """

    def __init__(self, selector: nn.Module, members: list[int], threshold: float, fallback: int) -> None:
        super().__init__()
        self.selector, self.members, self.threshold, self.fallback = selector, members, threshold, fallback
        self.num_members = max([*members, fallback]) + 1

    def forward(self, images: Tensor) -> Tensor:
        """Return the weight of each member."""
        scores = torch.softmax(self.selector(images).double(), dim=1).mean(dim=0)
        best = int(scores.argmax())
        chosen = self.members[best] if float(scores[best]) > self.threshold else self.fallback
        weights = torch.zeros(self.num_members, dtype=torch.float64, device=images.device)
        weights[chosen] = 1.0
        return weights


class Ensemble(nn.Module):
    """The selector's scores as weights.

    Args:
        selector: Images to logits of its outputs.
        members: The member that each output stands for.
        num_members: How many members there are.
    """

    def __init__(self, selector: nn.Module, members: list[int], num_members: int) -> None:
        super().__init__()
        self.selector, self.members, self.num_members = selector, members, num_members

    def forward(self, images: Tensor) -> Tensor:
        """Return the weight of each member."""
        scores = torch.softmax(self.selector(images).double(), dim=1).mean(dim=0)
        weights = torch.zeros(self.num_members, dtype=torch.float64, device=images.device)
        for output, member in enumerate(self.members):
            weights[member] = scores[output] / scores.sum()
        return weights


class Script(nn.Module):
    """The super model: from the slices of one case to their probabilities.

    Args:
        weigher: Images to the weight of each member.
        members: Images to probabilities, in the order of the weights.
        image_shape: (C, H, W) of the training images: the traces hold for no other.
    """

    def __init__(self, weigher: nn.Module, members: Sequence[nn.Module], image_shape: Sequence[int]) -> None:
        super().__init__()
        self.image_shape = list(image_shape)
        self.weigher, self.members = weigher, nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Return probabilities (n, out_channels, H, W) or (n, classes) of one case's slices (n, C, H, W)."""
        if images.dim() != 4 or list(images.shape[1:]) != self.image_shape:
            raise ValueError(f"images must have shape (n, C, H, W) as in training, {self.image_shape}, resize them")
        weights = self.weigher(images)
        total = torch.zeros(0, device=images.device)
        for number, member in enumerate(self.members):
            weight = float(weights[number])
            if weight > 0:
                share = weight * member(images)
                total = share if total.numel() == 0 else total + share
        return total

    @torch.jit.export
    def member_weights(self, images: Tensor) -> Tensor:
        """Return the weight of each member for one case, in the order of their names."""
        return self.weigher(images)


def to_torchscript(super_model: SuperModel) -> torch.jit.ScriptModule:
    """Return a super model as TorchScript, on the device it is on; the members stand in the order of their names."""
    contents = super_model.contents
    example = torch.zeros((2, *contents.image_shape), device=super_model.device)
    size = WHOLE_CASE if contents.study.model.normalization == "batch_stateless" else BATCH_SIZE
    with warnings.catch_warnings():
        # Warnings of the tracer, and of TorchScript's deprecation, tell a user nothing.
        warnings.simplefilter("ignore")
        members = [
            InBatches(_traced(ScriptAnswers(super_model.network(name)), example), size) for name in names(contents)
        ]
        selector = super_model.selector
        traced = None if selector is None else InBatches(_traced(selector, example), BATCH_SIZE)
        return torch.jit.script(Script(_weigher(contents, traced), members, contents.image_shape).eval())


def names(contents: Contents) -> list[str]:
    """Return the members' names in the order of their weights."""
    return sorted(contents.models)


def _traced(network: nn.Module, example: Tensor) -> torch.jit.ScriptModule:
    # The trace keeps only the branches that the example takes. A blank one takes amplitude normalisation's branch for
    # bins without phase, which is right for all other bins too.
    with torch.no_grad():
        return torch.jit.trace(network.eval(), example, check_trace=False)


def _weigher(contents: Contents, selector: nn.Module | None) -> nn.Module:
    order = names(contents)
    if selector is None:
        shares = contents.shares(np.zeros(0))
        return Fixed([shares.get(name, 0.0) for name in order])
    members = [order.index(output) for output in contents.outputs]
    if contents.is_ensemble:
        return Ensemble(selector, members, len(order))
    threshold = NO_THRESHOLD if contents.threshold is None else float(contents.threshold)
    return Choice(selector, members, threshold, order.index(GLOBAL))
