"""FedNova: the server averages the sites' directions, not their distances, so that more steps count for no more.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
arXiv:2007.07481, Sections 3 and 4.
"""

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silofl.core.recipe import PRESET_NAMES, Answer, Recipe
from silofl.core.steps import norm
from silofl.errors import AggregationError, ConfigError

__all__ = ["PRESETS", "NormalizedSteps", "factors", "norm"]


class NormalizedSteps(Answer):
    """The sites' differences, each divided by how far its steps reach, and one length for all of them.

    Attributes:
        tau_eff: The length: ``norms``, the sites' mean ||a||_1, so that equal steps give FedAvg; or ``steps``, their
            mean number of steps.
    """

    section: ClassVar[str] = "normalized_steps"
    method: ClassVar[str] = "normalized_steps"
    counts_steps: ClassVar[bool] = True
    tau_eff: Literal["norms", "steps"] = "norms"

    @property
    def needs_fresh_optimizer(self) -> bool:
        """Always: a buffer of the round before would be a gradient of that round's in this one's sum."""
        return True

    def conflict(self, recipe: Recipe) -> str | None:
        """It takes the place of the one mean of all sites."""
        if recipe.mixing is not None or len(recipe.roles) > 1 or recipe.stays_home == "everything":
            return "parts must go with one model of all sites where steps are normalised; choose mixing: shared"
        if recipe.extra_rounds:
            return (
                f"extra_rounds must be 0 where steps are normalised, for all sites at once, not {recipe.extra_rounds}"
            )
        if recipe.parts[0].section != self.section:
            first = recipe.parts[0].section
            return (
                f"parts must begin with normalised steps, which take the mean's place, not with {first}; name it first"
            )
        return None

    def check_training(self, training: Any) -> None:  # noqa: ANN401 - `silofl.study_sections.TrainingSettings`
        """Refuse an optimiser whose steps are no fixed sum of gradients (Section 3).

        Raises:
            ConfigError: Another optimiser than SGD.
        """
        if training.optimizer != "sgd":
            raise ConfigError(f"training.optimizer must be sgd with normalised steps, not {training.optimizer!r}")

    def sentence(self) -> str:
        """Return what a report says of it."""
        length = {"norms": "norm", "steps": "number of steps"}[self.tau_eff]
        return (
            "Nothing for it: each site's difference is divided by the norm of its steps and multiplied by the mean "
            f"{length} of all (FedNova)."
        )


PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(NormalizedSteps(),)))


def factors(shares: ArrayLike, norms: ArrayLike, tau_eff: float | None = None) -> NDArray[np.float64]:
    """Return the weights of the sites' differences: ``w_i = p_i tau_eff / ||a_i||_1``, whose sum need not be 1.

    Args:
        shares: p_i, shape (K,), of sum 1.
        norms: ||a_i||_1, shape (K,).
        tau_eff: The length of the common step; ``sum p_i ||a_i||_1`` where None.

    Raises:
        AggregationError: A norm is not above 0, as after a proximal term and a momentum so large that steps turn back.
    """
    shares, norms = np.asarray(shares, np.float64), np.asarray(norms, np.float64)
    if not np.all(norms > 0):
        raise AggregationError(
            f"every site's steps must have a norm above 0, not {norms.min():.3g}; lower training.learning_rate, "
            "training.momentum or algorithm.proximal.mu"
        )
    return shares * (shares @ norms if tau_eff is None else tau_eff) / norms
