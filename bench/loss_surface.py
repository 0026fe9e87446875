"""The loss around a trained model, along random directions as long as the model's own filters.

Li et al., Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018, arXiv:1712.09913; so drawn in a plane by HarmoFL
(Jiang et al., AAAI 2022, Fig. 6) and along lines by FedSM (Xu et al., CVPR 2022, Fig. 4), whose directions are unit
vectors instead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from silofl.core.steps import Batch, Loss, full_precision
from silofl.training.device import derive_seed

Direction = Mapping[str, Tensor]


@dataclass(frozen=True)
class Landscape:
    """The loss at points around a model.

    Attributes:
        points: Shape (n, D), of `plane_points` or `line_points`: how far each is moved along each of D directions.
        losses: Shape (n,); not finite where the network's answers are not.
    """

    points: NDArray[np.float64]
    losses: NDArray[np.float64]

    @property
    def axis(self) -> NDArray[np.float64]:
        """The places along each direction, shape (m,)."""
        return np.unique(self.points[:, -1])

    @property
    def grid(self) -> NDArray[np.float64]:
        """The losses as a table: of a plane (m, m), the first direction down; of lines (D, m)."""
        return self.losses.reshape(-1, len(self.axis))

    @property
    def centre(self) -> float:
        """The loss of the model itself."""
        return float(self.losses[~self.points.any(axis=1)][0])

    @property
    def lowest(self) -> int:
        """The row of the point with the lowest loss; of equal ones that nearest to the model."""
        known = np.where(np.isfinite(self.losses), self.losses, np.inf)
        return int(np.lexsort((np.linalg.norm(self.points, axis=1), known))[0])

    @property
    def distance(self) -> float:
        """How far the point with the lowest loss is from the model."""
        return float(np.linalg.norm(self.points[self.lowest]))

    @property
    def is_outermost(self) -> NDArray[np.bool_]:
        """Whether a point lies on the border of the plane, or at an end of a line, shape (n,)."""
        reach = np.abs(self.points).max(axis=1)
        return reach == reach.max()

    @property
    def mean_rise(self) -> float:
        """The mean loss of the outermost points above that of the model: small where the model lies flat."""
        return float(self.losses[self.is_outermost].mean()) - self.centre


def spread_evenly(scale: float, steps: int) -> NDArray[np.float64]:
    """Return ``2 steps + 1`` evenly spread numbers from ``-scale`` to ``scale``, of which the middle one is 0."""
    return scale * (np.arange(-steps, steps + 1) / steps)


def plane_points(scale: float, steps: int) -> NDArray[np.float64]:
    """Return the square grid of all pairs of `spread_evenly`, shape (m * m, 2), the second coordinate fastest."""
    axis = spread_evenly(scale, steps)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)


def line_points(scale: float, steps: int, count: int) -> NDArray[np.float64]:
    """Return `spread_evenly` along each of ``count`` directions in turn, shape (count * m, count)."""
    # The sum makes 0 of -0, which would be written as it is.
    return np.kron(np.eye(count), spread_evenly(scale, steps)[:, None]) + 0.0


def draw_filter_directions(model: nn.Module, count: int, seed: int) -> list[Direction]:
    """Draw random directions in which every filter is as long as the model's own.

    For a filter w of a weight and a normal draw g of its shape, the direction is ``g ||w|| / ||g||``. A filter is all
    that makes one output: a row of a linear layer, a kernel of a convolution with all its input channels. What has one
    axis, biases and the parameters of normalisation layers, is not moved. The draw depends on the seed, the direction's
    number, and a parameter's name and shape alone, so that models of one network get the same draws.

    Args:
        model: The model.
        count: Number of directions.
        seed: Not negative.

    Returns:
        Directions of parameter name -> tensor of the parameter's shape, without parameters that are not moved.
    """
    modules = model.named_modules()
    # The outputs of a transposed convolution are its second axis.
    is_transposed = {f"{name}.weight" for name, module in modules if isinstance(module, _ConvTransposeNd)}
    weights = {name: weight.detach() for name, weight in model.named_parameters() if weight.ndim > 1}
    return [
        {
            name: _draw_direction(weight, derive_seed(seed, number, name), axis=int(name in is_transposed))
            for name, weight in weights.items()
        }
        for number in range(count)
    ]


def measure_losses(
    model: nn.Module, directions: Sequence[Direction], points: Iterable[NDArray], measure: Callable[[], float]
) -> NDArray[np.float64]:
    """Return the loss of a model moved to each point p, ``w + sum_d p_d direction_d``; the model ends as it was.

    Args:
        model: The model.
        directions: D of them.
        points: n of them, shape (D,) each.
        measure: Returns the loss of the model as it is at the time.

    Returns:
        Losses, shape (n,).
    """
    parameters = dict(model.named_parameters())
    # Every point is reached from here: steps forth and back would round.
    start = {name: parameters[name].detach().clone() for name in directions[0]}

    def move(point: Sequence[float]) -> None:
        with torch.no_grad():
            for name, before in start.items():
                steps = (float(p) * d[name] for p, d in zip(point, directions, strict=True) if p)
                parameters[name].copy_(sum(steps, start=before))

    found = []
    try:
        for point in points:
            move(point)
            found.append(measure())
    finally:
        move([0.0] * len(directions))
    return np.array(found, np.float64)


def mean_loss(model: nn.Module, batches: Sequence[Batch], loss: Loss) -> float:
    """Return a model's mean loss over examples, in evaluation mode, without gradients and in float32.

    Args:
        model: Its running statistics are used as they are.
        batches: Inputs and targets on the model's device; each counts by its number of examples.
        loss: Takes the model's output and the targets, returns a scalar.
    """
    model.eval()
    # bfloat16 would round away how little the loss rises near the model.
    with torch.inference_mode(), full_precision(model):
        total = sum(float(loss(model(inputs), targets)) * len(inputs) for inputs, targets in batches)
    return total / sum(len(inputs) for inputs, _ in batches)


def _draw_direction(weight: Tensor, seed: int, axis: int) -> Tensor:
    """Return a normal draw whose filters, along an axis, are as long as those of a weight."""
    # On the CPU: a GPU's generator draws other numbers.
    drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).to(weight)
    others = [other for other in range(weight.ndim) if other != axis]
    own, random = (torch.linalg.vector_norm(one, dim=others, keepdim=True) for one in (weight, drawn))
    return drawn * (own / random)
