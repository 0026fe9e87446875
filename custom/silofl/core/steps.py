"""The plain step on one batch, which an algorithm's own step wraps or replaces, and how far a step has gone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from silofl.core.mixing import Arrays

Loss = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]
Step = Callable[[nn.Module, torch.optim.Optimizer, Loss, Batch], Tensor]


class StatefulStep:
    """A step that remembers something from one batch to the next.

    Attributes:
        memory: All of it: plain values, tensors and lists of them, which the step changes in this very dictionary.
    """

    def __init__(self, step: Step, memory: dict[str, Any]) -> None:
        self._step = step
        self.memory = memory

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        """Take the step."""
        return self._step(model, optimizer, loss, batch)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
    """Take one step of the optimiser down the loss of one batch.

    Args:
        optimizer: Holds the model's parameters.
        loss: Takes the model's output and the targets, returns a scalar.
        batch: Inputs (B, C, *spatial) and targets.

    Returns:
        The loss at the parameters before the step, detached.
    """
    inputs, targets = batch
    optimizer.zero_grad(set_to_none=True)
    value = loss(model(inputs), targets)
    torch.autograd.backward(value)
    optimizer.step()
    return value.detach()


def with_change(step: Step, change: Callable[[nn.Module], None]) -> Step:
    """Return a step in which the gradients are changed just before the optimiser moves.

    Args:
        step: The step that computes the gradients and calls the optimiser once.
        change: Changes the gradients of the model's parameters in place.
    """

    def changed(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        # A hook, and not a change between backward and step: the given step calls both, may go backward twice before it
        # moves (HarmoFL), and does to the raw gradient what it has to first.
        handle = optimizer.register_step_pre_hook(lambda *_: change(model))
        try:
            return step(model, optimizer, loss, batch)
        finally:
            handle.remove()

    return changed


def corrected_step(step: Step, correction: Mapping[str, Tensor]) -> Step:
    """Return a step whose gradient is corrected before the optimiser moves: ``g + correction``.

    Args:
        step: The step that computes the gradient and calls the optimiser once.
        correction: {parameter name: tensor}; other parameters keep their gradient.
    """

    def correct(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name in correction and parameter.grad is not None:
                parameter.grad.add_(correction[name])

    return with_change(step, correct)


def pulled_step(step: Step, anchor: Mapping[str, Tensor], strength: float) -> Step:
    """Return a step along ``g + strength (v - x)``, the gradient of ``loss + strength / 2 ||v - x||^2``.

    The loss that it returns is the plain one.

    Args:
        step: The step that computes the gradient and calls the optimiser once.
        anchor: x, {parameter name: tensor}, read at every step; other parameters are not pulled.
        strength: The papers' lambda or alpha, at least 0.
    """

    def pull(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name in anchor and parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor[name], alpha=strength)

    return with_change(step, pull)


def squared_distance(parameters: Sequence[Tensor], start: Sequence[Tensor]) -> Tensor:
    """Return ``||theta - theta^t||^2`` of one site after one step, a term of the drift (HarmoFL, Eq. 9)."""
    with torch.no_grad():
        # One call for all parameters: this runs after every step, where a call each would cost more than the sums.
        norms = torch._foreach_norm(torch._foreach_sub(list(parameters), list(start)))
        return torch.stack(norms).square().sum()


def norm(steps: int, momentum: float = 0.0, proximal: float = 0.0, nesterov: bool = False) -> float:
    """Return ||a||_1: how far so many steps of SGD reach along a gradient of 1, in units of the learning rate.

    ``g = 1 - eta mu s``; ``u = rho u + g``; ``s = s + u``, or with Nesterov ``s = s + g + rho u``; the result is s.

    The norm of FedNova (Section 3), which is SCAFFOLD's divisor with momentum.

    Args:
        steps: The paper's tau, at least 1.
        momentum: The optimiser's rho, whose buffer is 0 before the first step.
        proximal: ``eta mu``: the learning rate times the weight of the proximal term.
        nesterov: Whether the momentum is Nesterov's.
    """
    buffer = reach = 0.0
    for _ in range(steps):
        gradient = 1 - proximal * reach
        buffer = momentum * buffer + gradient
        if nesterov:
            reach += gradient + momentum * buffer
        else:
            reach += buffer
    return reach


class GradientStep:
    """A step that leaves the parameters as they are and adds up the gradients of all batches.

    Attributes:
        num_examples: Examples gathered so far.
    """

    def __init__(self) -> None:
        self.num_examples = 0

    def __call__(self, model: nn.Module, optimizer: object, loss: Loss, batch: Batch) -> Tensor:
        """Add a batch's gradient; returns its mean loss, detached."""
        inputs, targets = batch
        # Later batches add to the gradient of the first, so that there is no optimiser to empty it.
        if self.num_examples == 0:
            model.zero_grad(set_to_none=True)
        value = loss(model(inputs), targets)
        # The loss is a mean over the batch: weighted by its size, batches add up to the gradient over all examples.
        torch.autograd.backward(value * len(inputs))
        self.num_examples += len(inputs)
        return value.detach()

    def mean(self, model: nn.Module) -> Arrays:
        """Return the mean gradient over all gathered examples: {parameter name: array}."""
        means = {}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                means[name] = (parameter.grad / self.num_examples).cpu().numpy()
        return means


def random_state(device: torch.device) -> Tensor:
    """Return the state of the generator from which dropout draws on a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Set the state of the generator from which dropout draws on a device."""
    torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)


class OwnDraws:
    """The random numbers of one learner, as if no other drew any between its steps.

    Attributes:
        state: Of the generator, before its next step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.begin()

    def begin(self) -> None:
        """Go on from the random numbers that everybody draws next."""
        self.state = random_state(self._device)

    def step(self, step: Step) -> Step:
        """Return a step with these random numbers, which leaves all others as they were."""

        def own_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
            shared = random_state(self._device)
            set_random_state(self._device, self.state)
            value = step(model, optimizer, loss, batch)
            self.state = random_state(self._device)
            set_random_state(self._device, shared)
            return value

        return own_step


@contextmanager
def move_parameters(parameters: Sequence[Tensor], direction: Sequence[Tensor], length: float = 1.0) -> Iterator[None]:
    """Move parameters along a direction for a while, and put the very same numbers back afterwards."""
    with torch.no_grad():
        before = [parameter.clone() for parameter in parameters]
        torch._foreach_add_(list(parameters), list(direction), alpha=length)
    try:
        yield
    finally:
        with torch.no_grad():
            # Not minus the way: (w + d) - d rounds.
            torch._foreach_copy_(list(parameters), before)


@contextmanager
def full_precision(model: nn.Module) -> Iterator[None]:
    """Run modules that have an ``is_autocast`` without autocast for a while."""
    switched: list[Any] = [module for module in model.modules() if getattr(module, "is_autocast", False)]
    for module in switched:
        module.is_autocast = False
    try:
        yield
    finally:
        for module in switched:
            module.is_autocast = True


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Keep running statistics, those of all modules that have a momentum, where they are for a while."""
    moving: list[Any] = [module for module in model.modules() if hasattr(module, "momentum")]
    momenta = [module.momentum for module in moving]
    # BatchNorm counts batches whatever its momentum.
    counters = [getattr(module, "num_batches_tracked", None) for module in moving]
    counts = [None if counter is None else counter.clone() for counter in counters]
    for module in moving:
        # Not eval mode, which would normalise by the running statistics instead of by the batch.
        # With momentum 0 they take nothing of the second pass, whose weights are not the model's.
        module.momentum = 0.0
    try:
        yield
    finally:
        for module, momentum, counter, count in zip(moving, momenta, counters, counts, strict=True):
            module.momentum = momentum
            if counter is not None:
                counter.copy_(count)
