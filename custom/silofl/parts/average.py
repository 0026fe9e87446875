"""The mean of the last rounds' models (SWA), a candidate for the reported model beside the best round.

Izmailov et al., arXiv:1803.05407; at the server, Caldarola et al., arXiv:2203.11834. Training goes on from each round's
own model, never from the mean. The server averages what travels, and a site what stays at home, BatchNorm too: nothing
is computed anew from images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any

import numpy as np
from torch import Tensor

from silofl.base.schema import dump_record, read_record
from silofl.core.array_file import store
from silofl.core.mixing import Arrays
from silofl.models.roles import add_role
from silofl.parts.checked_cast import checked_cast
from silofl.parts.model import ModelPart
from silofl.parts.part import VALIDATED, Kept, Part, Reported, Run, WeightsOf
from silofl.parts.task import COLLECT, TEST, TRAIN, VALIDATE, Exchange, Message, Replies
from silofl.parts.tensors import to_arrays, to_tensors
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.site_score import SiteScore, mean_of_scores

ROLE = "average"
TASK = f"{VALIDATE}_{ROLE}"


@dataclass(frozen=True)
class Mean:
    """A running mean of models.

    Attributes:
        count: Models in it.
        arrays: Name -> mean, float64.
    """

    count: int = 0
    arrays: Arrays = field(default_factory=dict)

    def with_model(self, arrays: Arrays) -> Mean:
        """Return the mean with one more model."""
        count = self.count + 1
        # x - 0 where there is no mean yet: float64, so that adding and subtracting rounds far below float32.
        before = self.arrays or {name: np.zeros(np.shape(array)) for name, array in arrays.items()}
        means = {name: before[name] + (array - before[name]) / count for name, array in arrays.items()}
        return Mean(count, store(means))

    def model(self) -> Arrays:
        """Return the mean as a model."""
        return store({name: mean.astype(np.float32) for name, mean in self.arrays.items()})


@dataclass(frozen=True)
class AveragePart(Part):
    """The means at the server, and whether they are reported.

    Attributes:
        study: The study.
        means: Role -> site -> mean of its models; the mean of a model that all share has the empty name.
        is_decided: Whether the sites were asked.
        chosen: The sites' validation of the means, where these are the better ones.
        sentence: What came of it.
    """

    study: Study
    means: dict[str, dict[str, Mean]] = field(default_factory=dict)
    is_decided: bool = False
    chosen: dict[str, SiteScore] = field(default_factory=dict)
    sentence: str = ""
    role: str = ROLE
    saved = ("is_decided", "sentence")

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Let all sites validate the means after the last round of training, once."""
        is_due = moment == VALIDATED and not self.is_decided and self.study.closing_rounds
        return (Exchange(TASK, number, is_needed=False, models_round=number),) if is_due else ()

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return all that a validation of the last round brings, with the means in place of its models."""
        if exchange.task == TASK:
            usual = replace(exchange, task=VALIDATE)
            sent = (part.to_send(site, usual, run) for part in run.parts.values() if part is not self)
            return reduce(or_, sent, Message()) | self._build_message(site, run)
        return self._build_message(site, run) if exchange.task in (TEST, COLLECT) and self.chosen else Message()

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> AveragePart:
        """Take a round's models into the means, or decide whether the means are reported."""
        if exchange.task == TRAIN:
            return self._add_round(exchange.round, run)
        if exchange.task != TASK:
            return self
        found = {site: answer.numbers.metrics.validation for site, answer in replies.accepted.items()}
        scores = {site: score for site, score in found.items() if score}
        is_better = run.is_better_than_best(scores)
        sentence = self._describe_decision(scores, run.reported, is_better)
        return replace(self, is_decided=True, chosen=scores if is_better else {}, sentence=sentence)

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return what came of the validation."""
        return (self.sentence,) if exchange.task == TASK else ()

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Put the means in the models' place where they are the better ones; all else is as the last round left it."""
        # A finished run that was asked for more rounds has the means of its earlier end until it averages again.
        if not self.chosen or run.finished_rounds < self.study.training_rounds:
            return reported
        models = {role: self._put_means(role, checked_cast(run.parts[role], ModelPart)) for role in self.roles}
        number = self.study.training_rounds
        parts, how = dict(run.parts) | models, f"best validation, {self._name}"
        return replace(reported, round=number, parts=parts, validation=self.chosen, how=how, is_mean=True)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the models that travel."""
        return self.study.recipe.traveling_roles

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        means = {role: {site: vars(mean) for site, mean in by_site.items()} for role, by_site in self.means.items()}
        return super().state() | {"means": to_tensors(means), "chosen": dump_record(self.chosen)}

    def restored(self, state: Mapping[str, Any]) -> AveragePart:
        """Return what `state` described."""
        means = {
            role: {site: Mean(**to_arrays(one)) for site, one in by_site.items()}
            for role, by_site in state["means"].items()
        }
        chosen = {site: read_record(SiteScore, score, "the checkpoint") for site, score in state["chosen"].items()}
        return replace(super().restored(state), means=means, chosen=chosen)

    @property
    def _name(self) -> str:
        rounds = self.study.closing_rounds
        return f"mean of the models of rounds {rounds[0]} to {rounds[-1]}"

    def _add_round(self, number: int, run: Run) -> AveragePart:
        rounds = self.study.closing_rounds
        if number not in rounds:
            # A finished run that was asked for more rounds has means of its earlier end.
            return AveragePart(self.study)
        # What is there before the first of these rounds is of other rounds, as what was decided before any of them.
        begun = AveragePart(self.study, self.means if number > rounds[0] else {})
        # The models come first, so that those of this round are there already.
        means = {role: begun._add_models(role, checked_cast(run.parts[role], ModelPart)) for role in self.roles}
        return replace(begun, means=means)

    def _add_models(self, role: str, part: ModelPart) -> dict[str, Mean]:
        before = self.means.get(role, {})
        # While all share one model its mean is everybody's; a site that comes late begins a mean of its own.
        # No site has the empty name.
        shared = before.get("", Mean())
        models = part.own or {"": part.common}
        return {site: before.get(site, shared).with_model(arrays) for site, arrays in models.items()}

    def _put_means(self, role: str, part: ModelPart) -> ModelPart:
        models = self._models[role]
        return replace(part, own=models) if part.own else replace(part, common=models[""])

    @cached_property
    def _models(self) -> dict[str, dict[str, Arrays]]:
        """Return role -> site -> mean as a model; what all sites share is the same arrays for all."""
        return {role: {site: mean.model() for site, mean in means.items()} for role, means in self.means.items()}

    def _build_message(self, site: str, run: Run) -> Message:
        arrays: Arrays = {}
        for role, models in self._models.items():
            mean, home = models.get(site, models.get("", {})), checked_cast(run.parts[role], ModelPart).home
            arrays |= add_role(role, {name: array for name, array in mean.items() if name not in home})
        return Message(arrays, {ROLE: {"is_sent": True}})

    def _describe_decision(self, scores: Mapping[str, SiteScore], best: Reported, is_better: bool) -> str:
        values = [{site: score.value for site, score in one.items()} for one in (scores, best.validation)]
        validated = [{site for site, value in one.items() if value is not None} for one in values]
        shared = sorted(validated[0] & validated[1])
        known = [mean_of_scores(one[site] for site in shared) for one in (scores, best.validation)]
        means = ["none" if mean is None else f"{mean:.4f}" for mean in known]
        where = "" if validated[0] == validated[1] else " on the sites that validated both"
        where += " (the sites' median change decides)" if len(shared) > 2 else ""
        what = "is reported" if is_better else f"is not better than round {best.round}, which is reported"
        return f"the {self._name}, validation {means[0]} against {means[1]}{where}, {what}"


class SiteAverage(SitePart):
    """The mean of what stays at home."""

    name = ROLE
    tasks = (TASK,)

    @classmethod
    def list_kept(cls, study: Study, number: int) -> Sequence[Kept]:
        """Return the mean, in the last rounds of a study in which something of the models stays at home."""
        mean = Kept("the mean of what stays at home", is_of_model=True)
        return [mean] if study.recipe.at_home and number in study.closing_rounds else []

    def prepare(self) -> None:
        """Where the task brings means, put the mean of what stays at home beside them."""
        kept = self.work.kept.get(self.name)
        if not kept or not self.work.message.find_entry(ROLE).get("is_sent"):
            return
        state = self.work.site_models.state()
        for name, value in kept["home"].items():
            if name not in self.work.message.arrays:
                state[name].copy_(value)

    def answer(self, task: str) -> Message:
        """Validate the means."""
        return Message(meta={"metrics": {"validation": self.work.validation()}})

    def kept(self) -> dict[str, Any]:
        """Take what stays at home into its mean; integers are the last round's."""
        rounds = self.work.study.closing_rounds
        if self.work.number not in rounds:
            return {}
        # A state from before these rounds has the mean of other ones, the last of a run that was asked for more.
        has_begun = self.work.held >= rounds[0]
        before = (self.work.kept.get(self.name) if has_begun else None) or {"count": 0, "home": {}}
        count = before["count"] + 1
        models = self.work.site_models.home()
        home = {name: _update_mean(before["home"].get(name), value, count) for name, value in models.items()}
        return {"count": count, "home": home}


PART, SITE = AveragePart, SiteAverage


def _update_mean(mean: Tensor | None, value: Tensor, count: int) -> Tensor:
    """Return a mean, float64, with one more value; of integers the value."""
    if not value.is_floating_point():
        return value.clone()
    value = value.double()
    return value if mean is None else mean + (value - mean) / count
