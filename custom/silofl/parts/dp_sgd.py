"""DP-SGD at every site: the site counts what its rounds spend, and refuses what would be more than it allows.

The count is of all runs of a study at a site, and lies beside them. Only its epsilon leaves.
"""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.base.errors import TrainingError
from silofl.base.files import make_folder, open_own, write_json
from silofl.core.spread import count_digits_apart
from silofl.core.steps import Step
from silofl.data.parts import Examples
from silofl.parts.checked_cast import checked_cast
from silofl.parts.part import ClientState, Outcome, Part, Run, WeightsOf
from silofl.parts.task import TRAIN, Exchange, Message, SiteResults
from silofl.parts.work import SitePart, Work
from silofl.study import Study
from silofl.study.sections import DpSgdSettings
from silofl.training.loop import TrainingResult
from silofl.training.privacy_budget import FILE, Privacy, PrivacyBudget, count_steps, read_count
from silofl.training.private import add_steps, compute_epsilon, draw_batches, measure_round, private_step
from silofl.training.site_score import SiteScore

ROLE = "dp_sgd"


@dataclass(frozen=True)
class DpSgdPart(Part):
    """What the sites have spent, by their last answers.

    Attributes:
        study: The study.
        spent: Site -> epsilon.
    """

    study: Study
    spent: dict[str, float] = field(default_factory=dict)
    role: str = ROLE
    saved = ("spent",)

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> DpSgdPart:
        """Collect the sites' epsilons."""
        if exchange.task != TRAIN:
            return self
        spent = {site: answer.numbers.metrics.epsilon for site, answer in site_results.accepted.items()}
        return replace(
            self, spent=self.spent | {site: epsilon for site, epsilon in spent.items() if epsilon is not None}
        )

    def outcome(self, run: Run, tests: Mapping[str, SiteScore]) -> Outcome:
        """Return the sites' epsilons."""
        return Outcome(results={"privacy": Privacy(self.spent, **_read_settings(self.study).model_dump())})


class SiteDpSgd(SitePart):
    """A site's private steps, and their count."""

    name = ROLE
    _is_counted = False

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._generators: dict[str, list[torch.Generator]] = {}

    @classmethod
    def list_client_state(cls, study: Study, number: int) -> Sequence[ClientState]:
        """Return nothing: the count lies beside the runs, and is missed where it is lost itself."""
        return ()

    def step(self, role: str, step: Step) -> Step:
        """Return the private step."""
        units, self._of_round = measure_round(self.work.study, self.work.data.training)
        # One list of generators for each model: a training that goes on puts their states back into these very lists.
        generators = self._generators.setdefault(role, [])
        return private_step(_read_settings(self.work.study), self._of_round.rate * units, generators)

    def epoch(self, examples: Examples) -> Sequence[NDArray[np.int64]]:
        """Draw an epoch's batches, as soon as the round is counted."""
        # A round is counted once, before its first epoch draws anything.
        if not self._is_counted:
            self._count_round()
            self._is_counted = True
        return draw_batches(examples, self.work.study.training.batch_size, _read_settings(self.work.study).unit)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the noise, which a training that goes on must not draw twice."""
        states = {}
        for role, generators in self._generators.items():
            states[role] = [generator.get_state() for generator in generators]
        return states

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take them back; the round was counted as it began."""
        self._is_counted = True
        for role, states in saved.items():
            self._generators[role][:] = [torch.Generator(self.work.device).set_state(state) for state in states]

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return the epsilon of all rounds; none where none was counted, as in an estimate."""
        if not self._is_counted:
            return Message()
        epsilon = compute_epsilon(self._read_count(), _read_settings(self.work.study).delta)
        return Message(meta={"metrics": {"epsilon": epsilon}})

    def kept(self) -> dict[str, Any]:
        """Return how many steps had been counted, to know whether the count is lost."""
        return {"steps": count_steps(self._read_count())}

    def _count_round(self) -> None:
        """Write what is spent with this round, before it is: of a failed training the server learns that it failed."""
        path = self.work.folder.parent / FILE
        limit = self.work.max_epsilon
        make_folder(path.parent)
        with open_own(path.with_suffix(".lock"), "a") as lock:
            # Other runs of the study count too.
            fcntl.flock(lock, fcntl.LOCK_EX)
            spent = add_steps(self._read_count(), self._of_round)
            epsilon = compute_epsilon(spent, _read_settings(self.work.study).delta)
            if limit is not None and epsilon > limit:
                digits = count_digits_apart(epsilon, limit)
                raise TrainingError(
                    f"this round would bring site {self.work.site!r} to epsilon {epsilon:.{digits}g}, above its "
                    f"max_epsilon of {limit:g}; end the study, or ask the site"
                )
            record = {"spent": [steps._asdict() for steps in spent]}
            # The count first: a copy that is ahead of it after a power cut would be taken for a count that was lost.
            write_json(path, record)
            write_json(self.work.folder / FILE, record)

    def _read_count(self) -> list[PrivacyBudget]:
        """Return what all runs of the study have spent here; the errors of `read_count`."""
        kept = self.work.kept.get(ROLE) or {"steps": 0}
        unit = _read_settings(self.work.study).unit
        return read_count(self.work.folder.parent, self.work.site, unit, kept["steps"])


def _read_settings(study: Study) -> DpSgdSettings:
    return checked_cast(study.privacy.dp_sgd, DpSgdSettings)


PART, SITE = DpSgdPart, SiteDpSgd
