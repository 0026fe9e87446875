"""The models, which every algorithm sends: one part for each role (``model``, or ``global`` and ``personal``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.core.mixing import Arrays, mix, server_step, uniform_weights
from silofl.errors import StateError
from silofl.inference.contents import Contents
from silofl.models import HarmonizedModel, build_model
from silofl.models.names import (
    alias_names,
    batchnorm_names,
    buffer_names,
    input_norm_names,
    is_variance,
    read_arrays,
    traveling_names,
    write_arrays,
)
from silofl.models.networks import build_models
from silofl.models.precision import round_as_received
from silofl.models.roles import GLOBAL, add_role
from silofl.parts.kept_back import Excluded
from silofl.parts.model_mixing import mix_models
from silofl.parts.part import Kind, Part, Run, WeightsOf
from silofl.parts.site_models import SiteModels
from silofl.parts.task import TRAIN, Exchange, Expected, Message, Replies
from silofl.study import Study
from silofl.training.site_score import SiteScore

WEIGHTS = "what the round's training changed in the model's weights; they are mixed with other sites'"
WEIGHTS_RISK = (
    "the server may rebuild rough images from it, above all after few steps on few images; more local steps, NVFlare's "
    "filters, or local training"
)
BATCHNORM = "what the round's training changed in BatchNorm, which holds means over the site's images"
BATCHNORM_RISK = (
    "it shows the server, and mixed all sites, the scanner's look, and helps to rebuild images; stays_home: "
    "batchnorm, or the filter ExcludeBatchNorm or BatchNormStaysHome"
)


@dataclass(frozen=True)
class ModelPart(Part):
    """The sites' models in one role: one for all while all get the same mean, then one for each site.

    Attributes:
        study: The study.
        role: ``model``, ``global`` or ``personal``.
        common: The model of all sites.
        own: Site -> its own model; empty while there is one for all.
        buffers: Names that are no parameters, so that the server's step does not act on them.
        aliases: Further name -> the name under which its tensor travels, for the models that are written.
        pretrained: All arrays of the model that training starts from, what stays at home included; not part of the
            checkpoint.
        frozen: The arrays that stay as they began and do not travel; not part of the checkpoint either.
        excluded: What the sites' own filters take out of it.
    """

    study: Study
    role: str
    common: Arrays
    own: dict[str, Arrays] = field(default_factory=dict)
    buffers: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)
    pretrained: Arrays = field(default_factory=dict)
    frozen: Arrays = field(default_factory=dict)
    excluded: Excluded = Excluded(frozenset())
    follows_best: bool = True
    saved = ("common", "own")

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the same models for every site, drawn from the study's seed or given by its file."""
        recipe, parts = study.recipe, []
        given = (pretrained or {}) if study.starts_from_file else {}
        for role, model in _traveling_models(study).items():
            write_arrays(model.state_dict(), given)
            common = read_arrays(model.state_dict(), traveling_names(model, recipe))
            buffers, aliases = frozenset(buffer_names(model)), alias_names(model)
            # Without further names: a late site would write them over what the others have learnt.
            first = {name: array for name, array in given.items() if name not in aliases}
            state = model.state_dict()
            frozen = read_arrays(state, [name for name in sorted(model.frozen) if state[name].is_floating_point()])
            excluded = Excluded(frozenset(common.keys() & batchnorm_names(model)))
            parts.append(cls(study, role, common, {}, buffers, aliases, first, frozen, excluded))
        return parts

    @classmethod
    def kinds(cls, study: Study) -> Sequence[Kind]:
        """Return the kinds of the models' arrays that leave a site; the input normalisation is another part's."""
        kinds = []
        for role, model in _traveling_models(study).items():
            batchnorm = frozenset(batchnorm_names(model))
            weights = frozenset(model.state_dict()) - batchnorm - input_norm_names(model)
            kinds.append(Kind("weights", WEIGHTS, WEIGHTS_RISK, role, names=weights))
            kinds.append(Kind("batchnorm", BATCHNORM, BATCHNORM_RISK, role, names=batchnorm))
        return kinds

    @property
    def home(self) -> frozenset[str]:
        """The names that no site sends any more."""
        return self.excluded.home

    def of(self, site: str) -> Arrays:
        """Return a site's model."""
        return self.own.get(site, self.common)

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return a site's model, unless the site holds it already."""
        if not exchange.is_of_models:
            return Message()
        recipe, arrays, number = self.study.recipe, self.of(site), exchange.models_round
        told = Message(meta={self.role: {"home": sorted(self.home)}} if self.home else {})
        # What came in half precision is near to what the site has, and not the same; nor is what a rule has bounded.
        is_exact = self.study.federation.precision == "float32" and not (recipe.robust and recipe.mixing)
        if arrays and is_exact and 1 <= number <= run.finished_rounds and self._has_own_models(number):
            # No other site's model went into it, so it is what the site trained and kept, bit for bit.
            if run.listens_to_itself(site, number) and run.held(site, number) == number:
                return told
        if self.pretrained and not run.held(site, number):
            # The first task also brings what stays at home from then on, and so does the first after all was lost. What
            # others than training need of it is frozen: the rest would be no site's own.
            arrays = (self.pretrained if exchange.task == TRAIN else self.frozen) | arrays
        if run.held(site, number):
            arrays = self._drop_home(arrays)
        return told | Message(add_role(self.role, arrays))

    def expected(self, site: str, exchange: Exchange, run: Run) -> Mapping[str, Expected]:
        """Return the arrays that travel, any of which a site may keep back."""
        arrays = self._drop_home(self.of(site)) if exchange.task == TRAIN else {}
        expected = Expected.like(add_role(self.role, arrays))
        # A change may take a variance to 0, from what the site has received of it.
        received = round_as_received({name: one for name, one in arrays.items() if is_variance(name)}, self.study)
        return expected | {
            name: replace(expected[name], minimum=-one) for name, one in add_role(self.role, received).items()
        }

    def averaged(self, exchange: Exchange, run: Run) -> Sequence[Collection[str]]:
        """Return all names in training, but where every site goes on with a model of its own alone (`weights`)."""
        is_alone = exchange.round > self.study.rounds and self._has_own_models(exchange.round)
        return [self.common] if exchange.task == TRAIN and not is_alone else []

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> ModelPart:
        """Mix the trained models into the next ones."""
        if exchange.task != TRAIN:
            return self
        # Who mixes with whom, among the sites that answered:
        # - The global role always, and every role in shared rounds: all rows of the weights are equal, and the one mean
        #   is everybody's, an absent site's too.
        # - The personal role, and the only one after the shared rounds: row i makes site i's model. An absent site is
        #   not listened to and keeps its last model.
        # - In fine-tuning's extra rounds: every site with itself alone (`weights`).
        started = {site: self.of(site) for site in replies.accepted}
        changes = {site: answer.of(self.role) for site, answer in replies.accepted.items()}
        new = replace(self, excluded=self.excluded.after(changes, self.study.federation.sites_left))
        weights = weights_of(self.role)
        mixed = mix_models(started, changes, weights)
        if not self._has_own_models(exchange.round):
            # All rows of the weights are equal, so that any site's mean is everybody's.
            first = next(iter(mixed))
            return replace(new, common=self._take_server_step(started[first], mixed[first], replies, run))
        own = {site: self.of(site) for site in run.sites}
        for (site, arrays), weight in zip(mixed.items(), weights.diagonal(), strict=True):
            # A site that listens to itself alone goes on with what it trained (`to_send`): no step comes between.
            own[site] = arrays if weight == 1 else self._take_server_step(started[site], arrays, replies, run)
        return replace(new, own=own)

    def weights(self, role: str, number: int, sites: Sequence[str], run: Run) -> NDArray | None:
        """Return that every site listens to itself in the rounds after the study's, where it has its own model."""
        if role != self.role or not self._has_own_models(number):
            return None
        # Extra rounds keep models apart: fine-tuning starts from the shared model, and mixing the results back would
        # undo it. FedSM-extra trains no model in them, because its selector learns about fixed models.
        return np.eye(len(sites)) if number > self.study.rounds else None

    def joined(self, site: str) -> ModelPart:
        """Give a site that comes late the mean of the others' models."""
        if not self.own:
            return self
        # Not the initial model: the others are rounds ahead of it.
        mean = mix(self.own, uniform_weights(len(self.own)))
        return replace(self, own=dict(sorted((self.own | {site: next(iter(mean.values()))}).items())))

    def models(self) -> dict[str, Arrays]:
        """Return the models that the run's folder keeps by themselves."""
        # Global and personal ones are in the super model already.
        if not self._is_only:
            return {}
        models = self.own or {"": self.common}
        return {
            site: arrays | {name: arrays[one] for name, one in self.aliases.items() if one in arrays}
            for site, arrays in zip(models, map(self._drop_home, models.values()), strict=True)
        }

    def to_save(self) -> Arrays:
        """Return what is frozen."""
        return self.frozen

    def notes(self, exchange: Exchange) -> Sequence[str]:
        """Return who excludes BatchNorm, in the round that changed it."""
        return (self.excluded.news,) if exchange.task == TRAIN and self.excluded.news else ()

    def results(self, run: Run, tests: Mapping[str, SiteScore]) -> dict[str, Any]:
        """Return who excludes BatchNorm."""
        return {"batchnorm": self.excluded.sentence} if self.excluded.sentence else {}

    def contents(self, run: Run) -> Contents | None:
        """Return the super model of a run of one model; None where a site adds what stays with it.

        One model for all answers everybody. Where each site has its own, a new hospital gets the mean of them all.
        """
        recipe = self.study.recipe
        is_whole = recipe.stays_home == "nothing" and not recipe.takes_own_steps and not self.home
        if not self._is_only or not is_whole or run.image_shape is None:
            return None
        named = self.own or {GLOBAL: self.common}
        states = {
            name: complete_state(
                self.study, run.image_shape, round_as_received(arrays | collect_part_arrays(run), self.study)
            )
            for name, arrays in named.items()
        }
        return Contents(
            self.study, run.image_shape, states, "mean" if self.own else "only", facts=run.facts(), domain=run.domain
        )

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return super().state() | {"excluded": self.excluded.state()}

    def restored(self, state: Mapping[str, Any]) -> ModelPart:
        """Return what `state` described.

        Raises:
            StateError: It lacks an array that travels.
        """
        lacking = sorted(self.common.keys() - state["common"].keys())
        if lacking:
            raise StateError(
                f"the checkpoint must hold {lacking[0]!r}, which travels; it is of a version of SiloFL that kept it at "
                "home: start anew"
            )
        # An older version sent a tensor with several names under each of them.
        own = {site: {name: tensors[name] for name in self.common} for site, tensors in state["own"].items()}
        restored = super().restored({"common": {name: state["common"][name] for name in self.common}, "own": own})
        return replace(restored, excluded=self.excluded.restored(state.get("excluded", {})))

    @property
    def _is_only(self) -> bool:
        recipe = self.study.recipe
        return recipe.traveling_roles == (self.role,) and not recipe.collects_personal

    def _has_own_models(self, number: int) -> bool:
        recipe, rounds = self.study.recipe, self.study.rounds
        return self.role != GLOBAL and number > recipe.shared_rounds(rounds)

    def _drop_home(self, arrays: Arrays) -> Arrays:
        return {name: array for name, array in arrays.items() if name not in self.home}

    def _take_server_step(self, previous: Arrays, mixed: Arrays, replies: Replies, run: Run) -> Arrays:
        # Parts step on parameters only: momentum or Adam on a running variance has no meaning.
        parameters = {name: array for name, array in mixed.items() if name not in self.buffers}
        before = {name: previous[name] for name in parameters}
        mixed = mixed | run.server_step(self.role, before, parameters, replies)
        return server_step(previous, mixed, self.study.recipe.server_lr, self.buffers)


def complete_state(study: Study, image_shape: tuple[int, ...], arrays: Arrays) -> dict[str, Tensor]:
    """Return a model's complete state dict: the arrays that travel, and initial values for the rest."""
    return fill_state(build_model(study, image_shape, study.seed), arrays)


def fill_state(model: nn.Module, arrays: Arrays) -> dict[str, Tensor]:
    """Return a model's state dict with some arrays written into it."""
    write_arrays(model.state_dict(), arrays)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def collect_part_arrays(run: Run) -> Arrays:
    """Return the arrays of all parts that belong into every written model."""
    return {name: array for part in run.parts.values() for name, array in part.to_save().items()}


PART, SITE = ModelPart, SiteModels


def _traveling_models(study: Study) -> dict[str, HarmonizedModel]:
    models = build_models(study, None)
    return {role: models[role] for role in study.recipe.traveling_roles}
