"""Mean and variance of what layers of a network see, merged exactly over batches."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn


class Moments:
    """Mean and population variance of a stream of values, merged exactly, in float64.

    Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, The American Statistician 37, 1983.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(())
        # The sum of squared deviations from the mean.
        self.squares = torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Add values of shape (channels, n)."""
        # In float32 the sums over a whole site's pixels lose the digits that variances are made of.
        values = values.double()
        count = values.shape[1]
        mean = values.mean(dim=1)
        squares = (values - mean[:, None]).square().sum(dim=1)
        total = self.count + count
        step = mean - self.mean
        self.squares = self.squares + squares + step.square() * (self.count * count / total)
        self.mean = self.mean + step * (count / total)
        self.count = total


def measure_inputs(model: nn.Module, layers: Sequence[nn.Module], batches: Iterable[Tensor]) -> list[Moments]:
    """Return the moments per channel of each layer's inputs while a model answers batches, in the mode that it is in.

    Args:
        layers: Of the model; one that it never calls counts nothing.
        batches: Input tensors (B, C, ...).
    """
    moments = [Moments() for _ in layers]
    # Hooks need nothing of the network but its module types, so that any network can be measured.
    hooks = [layer.register_forward_pre_hook(_recorder(seen)) for layer, seen in zip(layers, moments, strict=True)]
    try:
        with torch.inference_mode():
            for batch in batches:
                model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return moments


# A function for each layer: a closure made in the caller's loop would see only the last layer's moments.
def _recorder(moments: Moments) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        # (B, C, ...) to (C, B * ...)
        moments.add(inputs[0].transpose(0, 1).flatten(1))

    return record
