"""FedOpt: the server treats the sites' mean difference as a gradient; FedAdam, FedYogi, FedAdagrad and FedAvgM.

    server  sends the model x
    site i  trains y_i from x and sends y_i - x, as in FedAvg
    server  d = sum_i p_i (y_i - x)
            m = beta1 m + (1 - beta1) d, with beta1 = 0 for Adagrad
            Adam: v = beta2 v + (1 - beta2) d^2; Yogi: v = v - (1 - beta2) d^2 sign(v - d^2); Adagrad: v = v + d^2
            x = x + eta_s m / (sqrt(v) + tau)
            FedAvgM instead: u = beta u + d; x = x + eta_s u, or x + eta_s (d + beta u) with Nesterov
            keeps m and v, or u; buffers such as BatchNorm's statistics take the plain mean

Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv:2003.00295, Algorithm 2; FedAvgM: Hsu, Qi and Brown,
Measuring the Effects of Non-Identical Data Distribution, arXiv:1909.06335.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from silofl.base.settings import BelowOne, Positive
from silofl.core.algorithm_option import AlgorithmOption, SecondModel, Traits
from silofl.core.mixing import Arrays
from silofl.core.recipe import Recipe
from silofl.parts.part import Part
from silofl.parts.task import SiteResults
from silofl.parts.tensors import to_arrays, to_tensors
from silofl.parts.work import SitePart
from silofl.study import Study

ROLE = "server_optimizer"

Rule = Literal["adam", "yogi", "adagrad", "momentum"]
NAMES = {"adam": "FedAdam", "yogi": "FedYogi", "adagrad": "FedAdagrad", "momentum": "FedAvgM"}


class ServerOptimizer(AlgorithmOption):
    """The server's optimiser, whose gradient is the sites' mean difference.

    Attributes:
        rule: The optimiser; ``momentum`` is FedAvgM.
        learning_rate: The papers' eta_s; for ``momentum`` usually 1, for the others 0.01 to 0.1.
        beta1: Decay of the first moment; ``momentum`` has none.
        beta2: Decay of the second moment of ``adam`` and ``yogi``.
        tau: Added to the root: a smaller one makes steps more adaptive.
        momentum: FedAvgM's beta.
        nesterov: Whether FedAvgM looks ahead.
        is_corrected: Whether ``adam`` corrects the bias of its moments, as torch's Adam does.
    """

    section: ClassVar[str] = "fedopt"
    implementation: ClassVar[str] = __name__
    traits: ClassVar[Traits] = Traits(is_of_steps=True)
    only_with: ClassVar = {
        "momentum": ("rule", ("momentum",)),
        "nesterov": ("rule", ("momentum",)),
        "beta1": ("rule", ("adam", "yogi", "adagrad")),
        "tau": ("rule", ("adam", "yogi", "adagrad")),
        "beta2": ("rule", ("adam", "yogi")),
        "is_corrected": ("rule", ("adam",)),
    }
    rule: Rule = "adam"
    learning_rate: Positive = 0.01
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Annotated[Positive, Field(le=1)] = 1e-3
    momentum: BelowOne = 0.9
    nesterov: bool = False
    is_corrected: bool = False

    def conflict(self, recipe: Recipe) -> str | None:
        """It steps from one model of all sites, at its own learning rate."""
        if recipe.mixing is not None or len(recipe.traveling_roles) > 1 or recipe.stays == "everything":
            return "a server optimiser needs one model of all sites; choose mixing: shared"
        if recipe.server_lr != 1:
            return f"server_lr must be 1 with fedopt.learning_rate, not {recipe.server_lr:g}; leave it out"
        if recipe.extra_rounds and recipe.second_model != SecondModel.FINE_TUNED:
            return (
                "extra_rounds must be 0 with a server optimiser, which would step from each site's own model, not "
                f"{recipe.extra_rounds}; leave it out"
            )
        return None

    def sentence(self) -> str:
        """Return what a report says of it."""
        return f"Nothing for it: the server's own step is {NAMES[self.rule]}'s, learning rate {self.learning_rate:g}."


class Moments(NamedTuple):
    """The server's moments by parameter name, and how many steps made them; ``square`` is empty for FedAvgM."""

    mean: Arrays
    square: Arrays
    steps: int


def server_update(
    kind: Rule,
    parameters: Mapping[str, NDArray[Any]],
    difference: Mapping[str, NDArray[Any]],
    state: Moments | None,
    *,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    momentum: float = 0.9,
    nesterov: bool = False,
    is_corrected: bool = False,
) -> tuple[Arrays, Moments]:
    """Take one step along the sites' mean difference d (Algorithm 2, or FedAvgM); m begins at 0 and v at tau^2.

    Args:
        kind: ``adam``, ``yogi``, ``adagrad`` or ``momentum``.
        parameters: The server's parameters x, {name: array}; never buffers, whose variance a step could turn negative.
        difference: ``sum p_i (y_i - x)``, the same names and shapes.
        state: The moments before the step; None at the start.
        learning_rate: eta_s.
        beta1: Decay of the first moment; Adagrad takes the difference itself.
        beta2: Decay of the second moment.
        tau: Added to the root.
        momentum: FedAvgM's beta.
        nesterov: Whether FedAvgM looks ahead.
        is_corrected: Whether Adam's moments begin at 0 and are divided by what of them has not decayed, as in torch.

    Returns:
        The new parameters and moments, computed in float64, in the arrays' own dtype.
    """
    # The paper begins with v = tau^2 and corrects nothing; torch begins with 0 and corrects for it.
    state = state or _start_moments(kind, parameters, 0.0 if is_corrected else tau**2)
    steps = state.steps + 1
    new = {}
    means = {}
    squares = {}
    for name, array in parameters.items():
        d = np.asarray(difference[name], np.float64)
        mean = np.asarray(state.mean[name], np.float64)
        if kind == "momentum":
            mean = momentum * mean + d
            step = d + momentum * mean if nesterov else mean
        else:
            decay = 0.0 if kind == "adagrad" else beta1
            mean = decay * mean + (1 - decay) * d
            square = SQUARES[kind](np.asarray(state.square[name], np.float64), d**2, beta2)
            squares[name] = square.astype(array.dtype)
            unbiased = mean
            if is_corrected:
                unbiased = mean / (1 - decay**steps)
                square = square / (1 - beta2**steps)
            step = unbiased / (np.sqrt(square) + tau)
        # All is computed in float64 and rounded once, so that small steps on large weights are not lost in between.
        new[name] = (np.asarray(array, np.float64) + learning_rate * step).astype(array.dtype)
        means[name] = mean.astype(array.dtype)
    return new, Moments(means, squares, steps)


# A large v falls towards a small d^2 by the factor beta2 with Adam, but only by (1 - beta2) d^2 a step with Yogi, whose
# learning rate therefore does not jump up after rare large differences.
SQUARES: dict[str, Callable[[NDArray[Any], NDArray[Any], float], NDArray[Any]]] = {
    "adam": lambda v, squared, beta2: beta2 * v + (1 - beta2) * squared,
    "yogi": lambda v, squared, beta2: v - (1 - beta2) * squared * np.sign(v - squared),
    "adagrad": lambda v, squared, beta2: v + squared,
}


def _start_moments(kind: Rule, parameters: Mapping[str, NDArray[Any]], square: float) -> Moments:
    zero = {name: np.zeros_like(array) for name, array in parameters.items()}
    filled = {name: np.full_like(array, square) for name, array in parameters.items()}
    return Moments(zero, {} if kind == "momentum" else filled, 0)


@dataclass(frozen=True)
class ServerOptimizerPart(Part):
    """The server's moments after a step.

    Attributes:
        study: Its recipe names the rule and its constants.
        moments: None before the first step.
    """

    study: Study
    moments: Moments | None = None
    role: str = ROLE

    def server_step(
        self, role: str, previous: Arrays, mixed: Arrays, site_results: SiteResults, number: int, learning_rate: float
    ) -> tuple[Arrays, ServerOptimizerPart]:
        """Step from the previous parameters along the sites' mean difference."""
        constants = self.study.recipe.option("fedopt").model_dump()
        difference = {}
        for name, array in mixed.items():
            difference[name] = np.asarray(array, np.float64) - np.asarray(previous[name], np.float64)
        new, moments = server_update(constants.pop("rule"), previous, difference, self.moments, **constants)
        return new, replace(self, moments=moments)

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return to_tensors(self.moments._asdict()) if self.moments else {}

    def restored(self, state: Mapping[str, Any]) -> ServerOptimizerPart:
        """Return what `state` described."""
        return replace(self, moments=Moments(**to_arrays(state))) if state else self


PART, SITE = ServerOptimizerPart, SitePart
PRESETS = {
    # Algorithm 2, FedAdam without bias correction.
    "paper": Recipe(parts=(ServerOptimizer(),)),
    # The authors' released code corrects the bias, as Keras' Adam does.
    "reference": Recipe(parts=(ServerOptimizer(is_corrected=True),)),
    "recommended": Recipe(parts=(ServerOptimizer(),)),
}
