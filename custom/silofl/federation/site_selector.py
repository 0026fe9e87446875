"""A site's part of the selector: it learns from the site's own images, and what it learnt is all that leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from silofl.algorithms.fedsm import AdamState, GradientStep, adam_step, site_loss
from silofl.algorithms.mixing import Arrays
from silofl.algorithms.steps import Loss, plain_step
from silofl.errors import AggregationError
from silofl.federation.message import Message
from silofl.federation.selector import MEAN, SQUARE, is_selectors
from silofl.models.members import SELECTOR, of_role, with_role
from silofl.models.parts import read_arrays, write_arrays
from silofl.models.selector import build_selector
from silofl.study import Study
from silofl.training.loop import Learner


class SiteSelector:
    """The selector in one task of a site.

    Args:
        study: Its recipe says how the selector learns.
        message: The task: the selector's arrays, and in its meta data ``outputs`` and ``selector_step``.
        device: Where to compute.
        optimizer: The state of the site's own optimiser after its last round, for ``local_steps``.
    """

    def __init__(
        self, study: Study, message: Message, device: torch.device, optimizer: dict[str, Any] | None = None
    ) -> None:
        self._recipe, self._sent = study.recipe, {n: a for n, a in message.arrays.items() if is_selectors(n)}
        self._steps = int(message.meta.get("selector_step", 0))
        self.outputs: list[str] = list(message.meta["outputs"])
        self.model = build_selector(study, len(self.outputs), study.seed).to(device)
        write_arrays(self.model.state_dict(), of_role(SELECTOR, message.arrays))
        self._gradient = GradientStep()
        self.optimizer: torch.optim.Optimizer | None = None
        if self._recipe.selector == "local_steps":
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self._recipe.selector_learning_rate)
            if optimizer is not None:
                self.optimizer.load_state_dict(optimizer)

    def learner(self, site: str | None) -> Learner:
        """Return how it learns: that every image is this site's, or where None the class that stands with each image.

        Raises:
            AggregationError: The server's outputs do not name this site.
        """
        if site is not None and site not in self.outputs:
            raise AggregationError(f"the selector's outputs must name site {site!r}, not only {self.outputs}")
        loss: Loss = nn.functional.cross_entropy if site is None else site_loss(self.outputs.index(site))
        step = plain_step if self.optimizer is not None else self._gradient
        return Learner(self.model, self.optimizer, loss, step)

    def update(self) -> Arrays:
        """Return what leaves after the pass over the data: a mean gradient, or differences to what was sent."""
        if self._recipe.selector == "gradients":
            return with_role(SELECTOR, self._gradient.mean(self.model))
        trained = self._trained()
        return {name: trained[name] - array for name, array in self._sent.items()}

    def _trained(self) -> Mapping[str, NDArray]:
        if self._recipe.selector == "local_steps":
            state = self.model.state_dict()
            return with_role(SELECTOR, read_arrays(state, of_role(SELECTOR, self._sent)))
        sent = [of_role(role, self._sent) for role in (SELECTOR, MEAN, SQUARE)]
        state = AdamState(sent[1], sent[2], self._steps)
        rate = self._recipe.selector_learning_rate
        parameters, adam = adam_step(sent[0], self._gradient.mean(self.model), state, rate)
        return with_role(SELECTOR, parameters) | with_role(MEAN, adam.mean) | with_role(SQUARE, adam.square)
