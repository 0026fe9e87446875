"""FedOpt's moments: they stay at the server, which takes its step with them; nothing travels for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from silofl.algorithms.fedopt import Moments, server_update
from silofl.core.mixing import Arrays
from silofl.methods.part import Part, to_arrays, to_tensors
from silofl.methods.task import Replies
from silofl.methods.work import SitePart
from silofl.study import Study

ROLE = "server_optimizer"


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
        self, role: str, previous: Arrays, mixed: Arrays, replies: Replies
    ) -> tuple[Arrays, ServerOptimizerPart]:
        """Step from the previous parameters along the sites' mean difference."""
        constants = self.study.recipe.answer(ROLE).model_dump()
        difference = {
            name: np.asarray(array, np.float64) - np.asarray(previous[name], np.float64)
            for name, array in mixed.items()
        }
        new, moments = server_update(constants.pop("rule"), previous, difference, self.moments, **constants)
        return new, replace(self, moments=moments)

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return to_tensors(self.moments._asdict()) if self.moments else {}

    def restored(self, state: Mapping[str, Any]) -> ServerOptimizerPart:
        """Return what `state` described."""
        return replace(self, moments=Moments(**to_arrays(state))) if state else self


PART, SITE = ServerOptimizerPart, SitePart
