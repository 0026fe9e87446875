"""FedNova's step at the server: nothing travels for it, because a site's steps say how far they reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silofl.algorithms.fednova import factors, norm
from silofl.core.mixing import Arrays, example_weights
from silofl.methods.answer import SiteAnswer
from silofl.methods.part import Part
from silofl.methods.task import Replies
from silofl.methods.work import SitePart
from silofl.study import Study
from silofl.training.schedule import learning_rate

ROLE = "normalized_steps"


@dataclass(frozen=True)
class NormalizedStepsPart(Part):
    """The server's step.

    Attributes:
        study: How its sites train decides how far their steps reach.
    """

    study: Study
    role: str = ROLE

    def server_step(
        self, role: str, previous: Arrays, mixed: Arrays, replies: Replies
    ) -> tuple[Arrays, NormalizedStepsPart]:
        """Step along the sites' normalised differences: ``x + sum w_i (y_i - x)``, in the mean's place."""
        differences = {site: answer.of(role) for site, answer in replies.accepted.items()}
        found: dict[tuple[str, ...], NDArray[np.float64]] = {}
        new = dict(mixed)
        for name, array in previous.items():
            # A site may keep an array back, and is then none of those whose steps are compared.
            senders = tuple(site for site, arrays in differences.items() if name in arrays)
            if not senders:
                continue
            if senders not in found:
                found[senders] = self._factors([replies.accepted[site] for site in senders])
            terms = (weight * differences[site][name] for site, weight in zip(senders, found[senders], strict=True))
            new[name] = (np.asarray(array, np.float64) + sum(terms)).astype(array.dtype)
        return new, self

    def _factors(self, answers: Sequence[SiteAnswer]) -> NDArray[np.float64]:
        recipe, steps = self.study.recipe, np.array([answer.numbers.steps for answer in answers])
        is_uniform = recipe.weights == "uniform"
        shares = example_weights([1 if is_uniform else answer.numbers.num_examples for answer in answers])[0]
        length = shares @ steps if recipe.answer(ROLE).tau_eff == "steps" else None
        return factors(shares, [self._norm(answer) for answer in answers], length)

    def _norm(self, answer: SiteAnswer) -> float:
        study, training = self.study, self.study.training
        rate = learning_rate(training.schedule, training.learning_rate, answer.numbers.round, study.training_rounds)
        pull = study.recipe.answer("proximal")
        proximal = rate * pull.mu if pull else 0.0
        return norm(answer.numbers.steps, training.momentum, proximal, training.is_nesterov)


PART, SITE = NormalizedStepsPart, SitePart
