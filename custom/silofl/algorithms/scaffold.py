"""SCAFFOLD: control variates take the sites' own direction out of their steps.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, arXiv:1910.06378.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.algorithms.mixing import Arrays
from silofl.algorithms.recipe import PRESET_NAMES, Answer, Recipe
from silofl.algorithms.steps import Step, with_change
from silofl.errors import ConfigError


class Control(Answer):
    """A control variate of each site, and their mean at the server.

    Attributes:
        option: A site's new variate: 2, from its own steps, as in the paper's experiments; 1, the gradient of all its
            data at the received model, one more pass.
        has_momentum: Whether ``training.momentum`` may be above 0, unlike in the paper: the correction then joins the
            gradient before the optimiser, and option 2 divides by FedNova's norm.
    """

    section: ClassVar[str] = "control"
    method: ClassVar[str] = "control"
    counts_steps: ClassVar[bool] = True
    option: Literal[1, 2] = 2
    has_momentum: bool = False

    @property
    def needs_fresh_optimizer(self) -> bool:
        """With momentum: a buffer of the round before would hold gradients that are not this round's."""
        return self.has_momentum

    def conflict(self, recipe: Recipe) -> str | None:
        """A site is corrected towards the one model of all sites."""
        if recipe.mixing is not None or len(recipe.roles) > 1 or recipe.stays_home == "everything":
            return (
                "parts must go with one model of all sites where they hold control variates; choose mixing: shared and "
                "no personal model"
            )
        if recipe.extra_rounds:
            return (
                "extra_rounds must be 0 with control variates, which would draw each site to the others in its "
                f"fine-tuning, not {recipe.extra_rounds}; leave it out"
            )
        return None

    def check_training(self, training: Any) -> None:  # noqa: ANN401 - `silofl.study_sections.TrainingSettings`
        """Refuse what is not plain SGD: the steps' sum would no longer be that of the gradients (Algorithm 1).

        Raises:
            ConfigError: Another optimiser, or momentum that `has_momentum` does not ask for.
        """
        if training.optimizer != "sgd":
            raise ConfigError(f"training.optimizer must be sgd with control variates, not {training.optimizer!r}")
        if training.momentum != 0 and not self.has_momentum:
            raise ConfigError(
                f"training.momentum must be 0 with control variates, not {training.momentum:g}: the paper has plain "
                "SGD; set algorithm.control.has_momentum: true to go beyond it"
            )

    def sentence(self) -> str:
        """Return what a report says of it."""
        beyond = ", with momentum, which the paper has not" if self.has_momentum else ""
        variates = f"Control variates (SCAFFOLD, option {'I' * self.option}{beyond})"
        return f"{variates}: each step is corrected by the server's and the site's, so that sites drift less."


# The paper averages sites uniformly; the authors released no other choice of constants.
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(Control(),), weights="uniform"))


def new_control(
    control: Mapping[str, NDArray],
    server_control: Mapping[str, NDArray],
    received: Mapping[str, NDArray],
    trained: Mapping[str, NDArray],
    divisor: float,
) -> Arrays:
    """Return a site's next control variate by option II: ``c_i' = c_i - c + (x - y) / (K eta)``.

    Args:
        control: The site's c_i, {name: array}.
        server_control: The server's c, the same names.
        received: The parameters x that the site started from.
        trained: Its parameters y after K steps.
        divisor: ``K eta``: the sum of the steps' learning rates; with momentum eta times FedNova's `norm`.
    """
    return {
        # In the array's dtype: a NumPy float64 divisor would make float32 arrays float64.
        name: control[name] - server_control[name] + (received[name] - trained[name]) / np.asarray(divisor, array.dtype)
        for name, array in control.items()
    }


def corrected_step(step: Step, correction: Mapping[str, Tensor]) -> Step:
    """Return a step whose gradient is corrected before the optimiser moves: ``g + c - c_i`` (Eq. 3).

    Args:
        step: The step that computes the gradient and calls the optimiser once.
        correction: ``c - c_i``, {parameter name: tensor}.
    """

    def correct(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name in correction and parameter.grad is not None:
                parameter.grad.add_(correction[name])

    return with_change(step, correct)
