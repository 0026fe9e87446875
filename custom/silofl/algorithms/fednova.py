"""FedNova: the server averages the sites' directions, not their distances, so that more steps count for no more.

    server  sends the model x
    site i  y_i by tau_i plain steps from x, with momentum or a proximal term if the study has them
            sends y_i - x and tau_i, as in FedAvg; keeps nothing for it
    server  ||a_i||_1 = how far tau_i steps of length 1 reach: tau_i, or more with momentum, less with a proximal term
            tau_eff = sum_i p_i ||a_i||_1, or sum_i p_i tau_i
            x = x + sum_i (p_i tau_eff / ||a_i||_1) (y_i - x)

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
arXiv:2007.07481, Sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silofl.base.errors import AggregationError
from silofl.core.algorithm_option import AlgorithmOption, Traits, require_sgd
from silofl.core.mixing import Arrays, example_weights
from silofl.core.recipe import PRESET_NAMES, Recipe, find_other_models
from silofl.core.steps import norm
from silofl.parts.answer import SiteAnswer
from silofl.parts.part import Part
from silofl.parts.task import SiteResults
from silofl.parts.work import SitePart
from silofl.study import Study

ROLE = "normalized_steps"

__all__ = ["PRESETS", "NormalizedSteps", "factors", "norm"]


class NormalizedSteps(AlgorithmOption):
    """Each site's difference, divided by the length of its steps, times one length for all sites.

    Attributes:
        tau_eff: The one length: ``norms``, the sites' mean ||a||_1; or ``steps``, their mean number of steps.
    """

    section: ClassVar[str] = "fednova"
    implementation: ClassVar[str] = __name__
    # A momentum buffer of the round before would put that round's gradients into this one's sum.
    traits: ClassVar[Traits] = Traits(counts_steps=True, needs=("fresh_optimizer",))
    tau_eff: Literal["norms", "steps"] = "norms"

    def conflict(self, recipe: Recipe) -> str | None:
        """It takes the place of the one mean of all sites."""
        if recipe.robust:
            return (
                f"robust must be none with {self.section}, in which every update is also divided by the steps that its "
                f"site says, not {recipe.robust.rule}; choose another algorithm"
            )
        leading = recipe.parts[0].section
        if leading != self.section:
            return (
                f"parts must begin with normalised steps, which take the mean's place, not with {leading}; "
                "name it first"
            )
        return find_other_models(self, recipe)

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse an optimiser whose steps are no fixed sum of gradients (Section 3)."""
        require_sgd(self, study.training, has_momentum=True)

    def sentence(self) -> str:
        """Return what a report says of it."""
        length = {"norms": "norm", "steps": "number of steps"}[self.tau_eff]
        return (
            "Nothing for it: each site's difference is divided by the norm of its steps and multiplied by the mean "
            f"{length} of all (FedNova)."
        )


def factors(shares: ArrayLike, norms: ArrayLike, tau_eff: float | None = None) -> NDArray[np.float64]:
    """Return the weights of the sites' differences: ``w_i = p_i tau_eff / ||a_i||_1``, whose sum need not be 1.

    Args:
        shares: p_i, shape (K,), of sum 1.
        norms: ||a_i||_1, shape (K,).
        tau_eff: The length of the common step; ``sum p_i ||a_i||_1`` where None.

    Raises:
        AggregationError: A norm is not above 0, as after a proximal term and a momentum so large that steps turn back.
    """
    shares = np.asarray(shares, np.float64)
    norms = np.asarray(norms, np.float64)
    if not np.all(norms > 0):
        raise AggregationError(
            f"a site's steps have the norm {norms.min():.3g}, and only one above 0 can divide them; lower "
            "training.learning_rate, training.momentum or algorithm.fedprox.mu"
        )
    if tau_eff is None:
        tau_eff = float(shares @ norms)
    return np.asarray(shares * tau_eff / norms, np.float64)


@dataclass(frozen=True)
class NormalizedStepsPart(Part):
    """The server's step.

    Attributes:
        study: How its sites train decides how far their steps reach.
    """

    study: Study
    role: str = ROLE

    def server_step(
        self, role: str, previous: Arrays, mixed: Arrays, site_results: SiteResults, number: int, learning_rate: float
    ) -> tuple[Arrays, NormalizedStepsPart]:
        """Step along the sites' normalised differences: ``x + sum w_i (y_i - x)``, in the mean's place."""
        differences = {site: answer.of(role) for site, answer in site_results.accepted.items()}
        # The factors are computed once for all arrays with the same senders.
        known: dict[tuple[str, ...], NDArray[np.float64]] = {}
        new = dict(mixed)
        for name, array in previous.items():
            # A site may keep an array back, and is then none of those whose steps are compared.
            senders = tuple(site for site, arrays in differences.items() if name in arrays)
            if not senders:
                continue
            if senders not in known:
                known[senders] = self._factors({site: site_results.accepted[site] for site in senders}, learning_rate)
            # The sites are summed before x is added: another order would round otherwise.
            total: NDArray[np.float64] | int = 0
            for site, weight in zip(senders, known[senders], strict=True):
                total = total + weight * differences[site][name]
            new[name] = (np.asarray(array, np.float64) + total).astype(array.dtype)
        return new, self

    def _factors(self, answers: dict[str, SiteAnswer], rate: float) -> NDArray[np.float64]:
        recipe = self.study.recipe
        training = self.study.training
        site_results = SiteResults(answers)
        steps = list(site_results.steps.values())
        counts = [1] * len(steps) if recipe.weights == "uniform" else list(site_results.examples.values())
        shares = example_weights(counts)[0]
        length = shares @ np.array(steps) if recipe.option("fednova").tau_eff == "steps" else None
        # FedProx's term takes eta mu times the distance so far from every step.
        fedprox = recipe.option("fedprox")
        proximal = rate * fedprox.mu if fedprox else 0.0
        norms = [norm(taken, training.momentum, proximal, training.nesterov) for taken in steps]
        return factors(shares, norms, length)


PART, SITE = NormalizedStepsPart, SitePart
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(NormalizedSteps(),)))
