"""SCAFFOLD: control variates take the sites' own direction out of their steps.

    server  sends the model x and its control variate c; to a site that lost its own c_i, that too
    site i  from y_i = x, for each of K batches: y_i = y_i - eta (g(y_i) - c_i + c), with c_i at first 0 (Eq. 3)
            option 2: c_i' = c_i - c + (x - y_i) / (K eta); option 1: c_i' = the mean gradient of all its data at x
            sends y_i - x and c_i' - c_i; keeps c_i = c_i'
    server  takes the mean of the y_i, as in FedAvg
            c = c + sum_i q_i (c_i' - c_i), with q_i that sum to 1 over all sites of the run

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, arXiv:1910.06378.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from silofl.core.algorithm_option import AlgorithmOption, Traits, require_sgd
from silofl.core.array_file import store
from silofl.core.mixing import Arrays
from silofl.core.recipe import PRESET_NAMES, Recipe, find_bounding_rule, find_other_models
from silofl.core.robust import Robust, bound_updates
from silofl.core.steps import GradientStep, Step, corrected_step, norm
from silofl.models import build_plain_model
from silofl.models.names import as_array, traveling_names
from silofl.models.precision import keep_exact, round_as_received
from silofl.models.roles import MODEL, add_role, read_role, select_role
from silofl.parts.part import ClientState, OutboundPayload, Part, Run, WeightsOf
from silofl.parts.task import TRAIN, ArraySpec, Exchange, Message, PayloadSpec, SiteResults
from silofl.parts.tensors import to_arrays, to_tensors
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.loop import TrainingResult

# A site's own c_i travels to it as control/own/NAME, should it have lost it or another one.
ROLE, OWN = "control", "own"
PURPOSE = "how the site's control variate changed, a mean gradient that corrects the other sites' steps"
RISK = "the same as for weights, and more with option 1, the mean gradient of all training images; option 2"


class Control(AlgorithmOption):
    """A control variate of each site, and their mean at the server.

    Attributes:
        option: How a site makes its new variate: 2: from its own steps; 1: as the gradient of all its data at the
            received model.
        has_momentum: Whether ``training.momentum`` may be above 0, unlike in the paper.
    """

    section: ClassVar[str] = "scaffold"
    implementation: ClassVar[str] = __name__
    option: Literal[1, 2] = 2
    has_momentum: bool = False

    @property
    def traits(self) -> Traits:
        """With momentum a fresh optimiser: a buffer of the round before holds gradients that are not this round's."""
        return Traits(counts_steps=True, needs=("fresh_optimizer",) if self.has_momentum else ())

    def conflict(self, recipe: Recipe) -> str | None:
        """A site is corrected towards the one model of all sites."""
        return find_other_models(self, recipe)

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse what is not plain SGD: the sum of the steps would no longer be that of the gradients (Algorithm 1)."""
        require_sgd(self, study.training, self.has_momentum)

    def sentence(self) -> str:
        """Return what a report says of it."""
        beyond = ", with momentum, which the paper has not" if self.has_momentum else ""
        variates = f"Control variates (SCAFFOLD, option {'I' * self.option}{beyond})"
        return f"{variates}: each step is corrected by the server's and the site's, so that sites drift less."


def new_control(
    control: Mapping[str, NDArray[Any]],
    server_control: Mapping[str, NDArray[Any]],
    received: Mapping[str, NDArray[Any]],
    trained: Mapping[str, NDArray[Any]],
    divisor: float,
) -> Arrays:
    """Return a site's next control variate by option II: ``c_i' = c_i - c + (x - y) / (K eta)``.

    Args:
        control: What the site subtracted from its steps: its c_i, or the share of it that a robust rule counts.
        server_control: The server's c, the same names.
        received: The parameters x that the site started from.
        trained: Its parameters y after K steps.
        divisor: ``K eta``: the sum of the steps' learning rates; with momentum eta times FedNova's `norm`.
    """
    new = {}
    for name, own in control.items():
        # In the array's dtype, because a NumPy float64 divisor would make float32 arrays float64.
        steps = np.asarray(divisor, own.dtype)
        new[name] = own - server_control[name] + (received[name] - trained[name]) / steps
    return new


@dataclass(frozen=True)
class ControlPart(Part):
    """The server's control variate c: the weighted mean of all sites' c_i, those that are absent included.

    Attributes:
        study: Its recipe says how sites are weighted.
        sites: All sites of the run.
        total: Sum of the weighted c_i, {parameter name: array}, float64.
        weights_of_sites: Site -> its weight: its training examples, or 1; of those that ever answered.
        own: Site -> its c_i, the sum of the changes that it sent, float64.
        astray: Sites that have kept back some of their last change, so that their c_i is not the one in the sum.
    """

    study: Study
    sites: tuple[str, ...]
    total: Arrays
    weights_of_sites: dict[str, float] = field(default_factory=dict)
    own: dict[str, Arrays] = field(default_factory=dict)
    astray: tuple[str, ...] = ()
    role: str = ROLE
    saved = ("total", "own", "astray")
    outbound = (OutboundPayload("control", PURPOSE, RISK, ROLE, is_bounded=True),)

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return c = 0."""
        parameters = _read_parameters(build_plain_model(study, study.seed), study)
        # In float64: small changes are added to this sum for as long as the run lasts.
        zeros = {name: np.zeros(array.shape) for name, array in parameters.items()}
        return [cls(study, tuple(sites), zeros)]

    @cached_property
    def control(self) -> Arrays:
        """The server's c, in float32; the same arrays for all sites.

        A site that never answered has c_i = 0; it counts like the mean site until its examples are known. A robust rule
        bounds all c_i and not their changes, which would add up.
        """
        mean_weight = float(np.mean(list(self.weights_of_sites.values()) or [1.0]))
        divisor = len(self.sites) * mean_weight
        control = {}
        for name, total in self.total.items():
            if self._bounded:
                terms = [self.weights_of_sites[site] * counted[name] for site, counted in self._bounded.items()]
                total = np.sum(terms, axis=0)
            control[name] = (total / divisor).astype(np.float32)
        return control

    @cached_property
    def _rule(self) -> Robust | None:
        return find_bounding_rule(self.study.recipe, len(self.own), self.study.federation.min_sites_for_ratio)

    @cached_property
    def _bounded(self) -> Mapping[str, Arrays]:
        """Site -> what counts of its c_i by a robust rule; empty without one."""
        if self._rule is None:
            return {}
        # Clipped around 0, where a c_i keeps its direction: a site subtracts as much of its own as counts.
        return bound_updates(self._rule, self.own, self.weights_of_sites, (), has_median=False)[0]

    def _find_share(self, site: str) -> float:
        """Return the share of its c_i that a site subtracts from its steps: as much as counts in c.

        With all of it, ``c - c_i`` would no longer be 0 on average: a site with a long c_i would take itself out.
        """
        if self._rule is None or self._rule.rule != "clipped" or site not in self._bounded:
            return 1.0
        own = self.own[site]
        square = float(sum(np.vdot(array, array) for array in own.values()))
        if not square:
            return 1.0
        return float(sum(np.vdot(self._bounded[site][name], array) for name, array in own.items())) / square

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Send c with the model, and the c_i that is in the sum to a site that has another one or lost it."""
        if exchange.task != TRAIN:
            return Message()
        arrays = self.control
        if site in self.astray or run.has_lost(site, exchange.models_round):
            own = {name: array.astype(np.float32) for name, array in self._own_of(site).items()}
            # Not in place: c is the same dictionary for all sites, and a c_i is for its own alone.
            arrays = arrays | add_role(OWN, keep_exact(own, self.study))
        share = self._find_share(site)
        meta = {ROLE: {"share": share}} if share != 1 else {}
        return Message(add_role(ROLE, arrays), meta)

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return what a change of c_i must be like."""
        return PayloadSpec(ArraySpec.like(add_role(ROLE, self.control)) if exchange.task == TRAIN else {})

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> ControlPart:
        """Add the sites' changes: ``c = c + sum_S q_i (c_i' - c_i)``, with q_i that sum to 1 over all sites."""
        if exchange.task != TRAIN:
            return self
        counts = self.study.recipe.count(site_results.examples, self.study.federation.min_sites_for_ratio)
        total = dict(self.total)
        own = dict(self.own)
        astray = {*self.astray} - {*site_results.accepted}
        for site, answer in site_results.accepted.items():
            weight = counts[site]
            changes = {name: np.asarray(change, np.float64) for name, change in answer.of(ROLE).items()}
            before = self._own_of(site)
            # All of a site's c_i counts by the examples that it has now, what it keeps back too; they may be fewer.
            more = weight - self.weights_of_sites.get(site, weight)
            for name, array in total.items():
                total[name] = array + weight * changes.get(name, 0.0) + more * before[name]
            own[site] = store(before | {name: before[name] + change for name, change in changes.items()})
            # The site itself goes on from its whole c_i', so it must get back the one that counts here.
            if changes.keys() != total.keys():
                astray.add(site)
        weights = self.weights_of_sites | {site: float(count) for site, count in counts.items()}
        return replace(self, total=total, weights_of_sites=weights, own=own, astray=tuple(sorted(astray)))

    def joined(self, site: str) -> ControlPart:
        """Count one more site, whose c_i is 0."""
        return replace(self, sites=tuple(sorted([*self.sites, site])))

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return super().state() | {"weights": self.weights_of_sites}

    def restored(self, state: Mapping[str, Any]) -> ControlPart:
        """Return what `state` described."""
        return replace(super().restored(state), weights_of_sites=state["weights"])

    def _own_of(self, site: str) -> Arrays:
        """Return a site's c_i, which is 0 before its first change."""
        return self.own.get(site) or {name: np.zeros(array.shape) for name, array in self.total.items()}


class SiteControl(SitePart):
    """A site's own control variate c_i."""

    name = ROLE

    @classmethod
    def list_client_state(cls, study: Study, number: int) -> Sequence[ClientState]:
        """Return what `kept` holds, the same after every round."""
        return (ClientState("its control variate", is_recoverable=True, is_for_training=True),)

    def step(self, role: str, step: Step) -> Step:
        """Correct every step by ``c - c_i`` (Eq. 3), of c_i as much as counts in c."""
        work = self.work
        # Copied now: training changes the parameters in place, and option II needs where they began.
        self._received = _read_parameters(work.models[role], work.study)
        received = work.message.of(ROLE)
        self._server = {name: array for name, array in received.items() if not read_role(name)}
        self._own = self._load_control(select_role(OWN, received))
        if self._settings.option == 1:
            # An earlier process of this very task may have computed it already.
            saved = work.half.of(self.name)
            self._gradient = to_arrays(saved) if saved else self._compute_gradient(work.models[role])
        share = np.float32(work.message.find_entry(ROLE).get("share", 1))
        self._counted = {name: share * array for name, array in self._own.items()}
        shift = {name: torch.from_numpy(c - self._counted[name]).to(work.device) for name, c in self._server.items()}
        return corrected_step(step, shift)

    def state_dict(self) -> dict[str, Any]:
        """Return the gradient at the received model, which took a pass over the data."""
        return to_tensors(self._gradient) if self._settings.option == 1 else {}

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return how c_i changed."""
        work = self.work
        trained = _read_parameters(work.models[MODEL], work.study)
        if self._settings.option == 1:
            # What the loss does not depend on has no gradient, and option II leaves it at zero.
            self._new = {name: self._gradient.get(name, np.zeros_like(array)) for name, array in self._own.items()}
        else:
            training = work.study.training
            reach = norm(results[MODEL].steps, training.momentum, nesterov=training.nesterov)
            self._new = new_control(
                self._counted, self._server, self._received, trained, divisor=reach * work.learning_rate
            )
        # The site keeps the change as the server reads it after it has traveled in half precision.
        change = round_as_received({name: array - self._own[name] for name, array in self._new.items()}, work.study)
        if work.study.federation.precision != "float32":
            # The server sums the changes as they arrive: of others its c would drift away from the mean of all c_i.
            self._new = {name: self._own[name] + array for name, array in change.items()}
        return Message(add_role(ROLE, change))

    def kept(self) -> dict[str, Any]:
        """Return c_i."""
        return {"own": to_tensors(self._new)}

    @property
    def _settings(self) -> Control:
        option: Control = self.work.study.recipe.option("scaffold")
        return option

    def _load_control(self, again: Arrays) -> Arrays:
        """Return c_i, as the server sends it or else as it stayed here; 0 in the site's first round.

        From any other one on, c would no longer be the mean of all c_i.
        """
        if again:
            return {name: array.astype(np.float32) for name, array in again.items()}
        if kept := self.work.kept.get(self.name):
            return {**to_arrays(kept["own"])}
        return {name: np.zeros_like(array) for name, array in self._server.items()}

    def _compute_gradient(self, model: nn.Module) -> Arrays:
        """Return the mean gradient of all training data at the received model."""
        gather = GradientStep()
        # A copy, because a pass in training mode moves running statistics, and this one only probes.
        probe = copy.deepcopy(model).train()
        for batch in self.work.batches_of_all(ROLE):
            gather(probe, None, self.work.loss, batch)
        return gather.mean(probe)


def _read_parameters(model: nn.Module, study: Study) -> Arrays:
    """Return the trained parameters that travel: what stays at home has no control variate."""
    travels = set(traveling_names(model, study.recipe))
    trained = {name: p for name, p in model.named_parameters() if name in travels and p.requires_grad}
    return {name: as_array(parameter).copy() for name, parameter in trained.items()}


PART, SITE = ControlPart, SiteControl
# The paper averages sites uniformly; the authors released no other choice of constants.
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(Control(),), weights="uniform"))
