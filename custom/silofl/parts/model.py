"""The models, which every algorithm sends: one part for each role (``model``, or ``global`` and ``personal``)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.core.algorithm_option import SecondModel
from silofl.core.array_file import ArrayFile, store
from silofl.core.mixing import Arrays, mix, server_step, uniform_weights
from silofl.core.steps import StatefulStep, Step
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, write_model_folder
from silofl.models import HarmonizedModel, build_model
from silofl.models.names import (
    alias_names,
    as_array,
    batchnorm_names,
    buffer_names,
    home_statistics_names,
    input_norm_names,
    read_arrays,
    traveling_names,
    write_arrays,
)
from silofl.models.networks import build_models
from silofl.models.precision import round_as_received
from silofl.models.roles import GLOBAL, add_role, is_variance, read_role
from silofl.parts.checked_cast import checked_cast
from silofl.parts.half_round import to_device
from silofl.parts.kept_back import Excluded
from silofl.parts.operating_points import choose_site_operating_point
from silofl.parts.part import ClientState, OutboundPayload, Outcome, Part, Run, WeightsOf
from silofl.parts.task import TEST, TRAIN, VALIDATE, ArraySpec, Exchange, Message, PayloadSpec, SiteResults
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.case_pictures import write_test_files
from silofl.training.evaluation import evaluate, summarise_test
from silofl.training.loop import Learner, TrainingResult, make_optimizer, set_learning_rate
from silofl.training.site_score import SiteScore

WEIGHTS = (
    "how the round's training changed the model's weights; the server mixes it with the other sites' changes into one "
    "model, or into one for each site"
)
WEIGHTS_RISK = (
    "the server may rebuild rough images from it, most easily after few steps on few images. If few sites take part, "
    "the mixed model tells much about this site's patients; min_partners, more local steps, NVFlare's filters, or "
    "local training"
)
BATCHNORM = "how the round's training changed BatchNorm, which holds means over the site's images"
BATCHNORM_RISK = (
    "the server sees the look of the scanner's images, and all sites see it in the mean. It also helps to rebuild "
    "images; stays: batchnorm, or the filter ExcludeBatchNorm or BatchNormStaysHome"
)
KEPT = "each site's personalised model stays with it; personal_model is missing in may_leave of site.yaml at {}"
# Bytes of all sites' arrays that are mixed at once; for single arrays, calls take most of the time.
PIECE = 1 << 26


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
        keepers: Sites whose updates it holds and that do not let other sites' own models leave with them. From all rows
            but one and the mean of all, or from the rows and their weights, anybody computes each site's update.
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
    keepers: frozenset[str] = frozenset()
    follows_best: bool = True
    saved = ("common", "own")

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the same models for every site, drawn from the study's seed or given by its file."""
        given = (pretrained or {}) if study.starts_from_file else {}
        parts = []
        for role, model in _traveling_models(study).items():
            write_arrays(model.state_dict(), given)
            state = model.state_dict()
            common = read_arrays(state, traveling_names(model, study.recipe))
            aliases = alias_names(model)
            part = cls(
                study=study,
                role=role,
                common=common,
                buffers=frozenset(buffer_names(model)),
                aliases=aliases,
                # Without further names: a late site would write them over what the others have learnt.
                pretrained={name: array for name, array in given.items() if name not in aliases},
                frozen=read_arrays(state, [name for name in sorted(model.frozen) if state[name].is_floating_point()]),
                excluded=Excluded(frozenset(common.keys() & batchnorm_names(model))),
            )
            parts.append(part)
        return parts

    @classmethod
    def outbound_payloads(cls, study: Study) -> Sequence[OutboundPayload]:
        """Return the kinds of the models' arrays that leave a site; the input normalisation is another part's."""
        kinds = []
        for role, model in _traveling_models(study).items():
            batchnorm = frozenset(batchnorm_names(model) - home_statistics_names(model))
            weights = frozenset(model.state_dict()) - batchnorm_names(model) - input_norm_names(model)
            kinds.append(OutboundPayload("weights", WEIGHTS, WEIGHTS_RISK, role, names=weights, is_bounded=True))
            kinds.append(
                OutboundPayload("batchnorm", BATCHNORM, BATCHNORM_RISK, role, names=batchnorm, is_bounded=True)
            )
        return kinds

    @property
    def home(self) -> frozenset[str]:
        """The names that no site sends any more."""
        return self.excluded.home

    @property
    def stays(self) -> bool:
        """Whether each site's own model is for this site alone."""
        return bool(self.own and self.keepers)

    def of(self, site: str) -> Arrays:
        """Return a site's model."""
        return self.own.get(site, self.common)

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return a site's model, unless the site holds it already."""
        if not exchange.is_of_models:
            return Message()
        recipe = self.study.recipe
        arrays = self.of(site)
        number = exchange.models_round
        meta = {self.role: {"home": sorted(self.home)}} if self.home else {}
        # What came in half precision is near to what the site has, and not the same; nor is what a rule has bounded.
        is_exact = self.study.federation.precision == "float32" and not (recipe.robust and recipe.mixing)
        if arrays and is_exact and 1 <= number <= run.finished_rounds and self._has_own_models(number, run):
            # No other site's model went into it, so it is what the site trained and kept, bit for bit.
            if run.averages_only_itself(site, number) and run.held(site, number) == number:
                return Message(meta=meta)
        if run.held(site, number):
            arrays = self._drop_home(arrays)
        elif self.pretrained:
            # The first task also brings what stays at home from then on, and so does the first after all was lost. What
            # others than training need of it is frozen: the rest would be no site's own.
            arrays = (self.pretrained if exchange.task == TRAIN else self.frozen) | arrays
        return Message(add_role(self.role, arrays), meta)

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return the arrays that travel, any of which a site may keep back."""
        if exchange.task != TRAIN:
            return PayloadSpec()
        arrays = self._drop_home(self.of(site))
        expected = ArraySpec.like(add_role(self.role, arrays))
        # A change may take a variance to 0, from what the site has received of it.
        variances = {name: array for name, array in arrays.items() if is_variance(name)}
        for name, received in add_role(self.role, round_as_received(variances, self.study)).items():
            expected[name] = replace(expected[name], minimum=-received)
        # No mean is taken where every site goes on with a model of its own alone (`weights`).
        is_alone = exchange.round > run.study.joint_rounds and self._has_own_models(exchange.round, run)
        return PayloadSpec(expected, averaged=() if is_alone else [self.common], buffers=self.buffers)

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> ModelPart:
        """Mix the trained models into the next ones."""
        if exchange.task != TRAIN:
            return self
        # Who mixes with whom, among the sites that answered:
        # - The global role always, and every role in shared rounds: all rows of the weights are equal, and the one mean
        #   is everybody's, an absent site's too.
        # - The personal role, and the only one after the shared rounds: row i makes site i's model. An absent site is
        #   not listened to and keeps its last model.
        # - In fine-tuning's extra rounds: every site with itself alone (`weights`).
        started = {site: self.of(site) for site in site_results.accepted}
        changes = site_results.updates_of(self.role)
        keepers = {site for site, answer in site_results.accepted.items() if not answer.numbers.shares_models}
        excluded = self.excluded.after(changes, self.study.federation.sites_left)
        new = replace(self, excluded=excluded, keepers=self.keepers | keepers)
        weights = weights_of(self.role)
        is_shared = not self._has_own_models(exchange.round, run)
        mixed = mix_models(started, changes, weights, is_shared)
        if is_shared:
            # All rows of the weights are equal, so that any site's mean is everybody's.
            site = next(iter(mixed))
            common = self._take_server_step(exchange.round, started[site], mixed[site], site_results, run)
            return replace(new, common=common)
        own = {site: self.of(site) for site in run.sites}
        for (site, arrays), weight in zip(mixed.items(), weights.diagonal(), strict=True):
            # A site that listens to itself alone goes on with what it trained (`to_send`): no step comes between.
            if weight != 1:
                arrays = store(self._take_server_step(exchange.round, started[site], arrays, site_results, run))
            own[site] = arrays
        return replace(new, own=own)

    def weights(self, role: str, number: int, sites: Sequence[str], run: Run) -> NDArray[Any] | None:
        """Return that every site listens to itself in the rounds after the study's, where it has its own model."""
        if role != self.role or not self._has_own_models(number, run):
            return None
        # Extra rounds keep models apart: fine-tuning starts from the shared model, and mixing the results back would
        # undo it. FedSM-extra trains no model in them, because its selector learns about fixed models.
        return np.eye(len(sites)) if number > run.study.joint_rounds else None

    def joined(self, site: str) -> ModelPart:
        """Give a site that comes late the mean of the others' models."""
        if not self.own:
            return self
        # Not the initial model: the others are rounds ahead of it.
        means = mix(self.own, uniform_weights(len(self.own)))
        own = self.own | {site: next(iter(means.values()))}
        return replace(self, own=dict(sorted(own.items())))

    def outcome(self, run: Run, tests: Mapping[str, SiteScore]) -> Outcome:
        """Return the models, what is frozen of them, and the super model of one model."""
        return Outcome(models=self._list_models(), arrays=self.frozen, make_contents=partial(self._make_contents, run))

    def _list_models(self) -> dict[str, Arrays]:
        # Global and personal ones are in the super model, unless the personal ones stay with their sites.
        is_all_that_leaves = self.role == GLOBAL and self.study.recipe.makes_personalised and self.keepers
        if self.stays or not (self._is_only or is_all_that_leaves):
            return {}
        models = {}
        for site, arrays in (self.own or {"": self.common}).items():
            models[site] = self._drop_home(arrays)
            for alias, name in self.aliases.items():
                if name in models[site]:
                    models[site][alias] = models[site][name]
        return models

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return who excludes BatchNorm, in the round that changed it, and why sites' own models stay with them."""
        if exchange.task != TRAIN:
            return ()
        notes = [self.excluded.news] if self.excluded.news else []
        is_first = self._has_own_models(exchange.round, run) and not self._has_own_models(exchange.round - 1, run)
        if is_first and self.stays:
            notes.append(KEPT.format(", ".join(sorted(self.keepers))))
        return notes

    def _make_contents(self, run: Run) -> Contents | None:
        """Return the super model of a run of one model; None where a site adds what stays with it.

        One model for all answers everybody. Where each site has its own, a new hospital gets the mean of them all.
        """
        recipe = self.study.recipe
        is_whole = recipe.stays == "nothing" and recipe.second_model != SecondModel.ADAPTED and not self.home
        if not self._is_only or not is_whole or self.stays or run.image_shape is None:
            return None
        states = {}
        for name, arrays in (self.own or {GLOBAL: self.common}).items():
            received = round_as_received(arrays | collect_part_arrays(run), self.study)
            states[name] = complete_state(self.study, run.image_shape, received)
        rule = "mean" if self.own else "only"
        return Contents(
            self.study, run.image_shape, states, rule, facts=run.reported.facts, data_profile=run.data_profile
        )

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return super().state() | {"excluded": self.excluded.state(), "keepers": sorted(self.keepers)}

    def restored(self, state: Mapping[str, Any]) -> ModelPart:
        """Return what `state` described."""
        restored = super().restored(state)
        own = {site: store(arrays) for site, arrays in restored.own.items()}
        excluded = self.excluded.restored(state["excluded"])
        return replace(restored, own=own, excluded=excluded, keepers=frozenset(state["keepers"]))

    @property
    def _is_only(self) -> bool:
        recipe = self.study.recipe
        return recipe.traveling_roles == (self.role,) and not recipe.collects_personal

    def _has_own_models(self, number: int, run: Run) -> bool:
        # Without a mixing of their own the sites share the model until the extra rounds, which may begin early.
        shared = min(self.study.recipe.shared_rounds(self.study.rounds), run.study.joint_rounds)
        return self.role != GLOBAL and number > shared

    def _drop_home(self, arrays: Arrays) -> Arrays:
        return {name: array for name, array in arrays.items() if name not in self.home}

    def _take_server_step(
        self, number: int, previous: Arrays, mixed: Arrays, site_results: SiteResults, run: Run
    ) -> Arrays:
        # Parts step on parameters only: momentum or Adam on a running variance has no meaning.
        parameters = {name: array for name, array in mixed.items() if name not in self.buffers}
        before = {name: previous[name] for name in parameters}
        mixed = mixed | run.server_step(self.role, number, before, parameters, site_results)
        return server_step(previous, mixed, self.study.recipe.server_lr, self.buffers)


def mix_models(
    started: Mapping[str, Arrays], changes: Mapping[str, Arrays], weights: NDArray[Any], is_shared: bool = True
) -> dict[str, Arrays]:
    """Mix trained models, each array over the sites that sent it.

    Args:
        started: Site -> the model that it began from; the order is that of the weights' rows.
        changes: Site -> what training changed in those of its arrays that it sent.
        weights: Aggregation weights, shape (K, K).
        is_shared: Whether all get the same, of which one copy is held in memory.

    Returns:
        Site -> its next model; what nobody sent stays as it was.
    """
    mixed = {site: dict(arrays) for site, arrays in started.items()}
    file = ArrayFile[tuple[str, str]](in_memory=is_shared)
    # A site's policy may keep arrays back, so each is mixed over its senders; arrays with the same senders together.
    model = next(iter(started.values()))
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in model:
        senders = tuple(site for site in changes if name in changes[site])
        groups.setdefault(senders, []).append(name)
    for senders, names in groups.items():
        if not senders:
            continue
        rows = _renormalise_rows(weights, [site in senders for site in changes])
        for piece in _cut_pieces(names, model, PIECE // len(changes)):
            trained: dict[str, Arrays] = {}
            for site, changed in changes.items():
                trained[site] = {name: _add_change(name, started[site][name], changed.get(name)) for name in piece}
            for site, arrays in mix(trained, rows).items():
                for name, array in arrays.items():
                    file.write((site, name), array)
    for (site, name), array in file.read().items():
        mixed[site][name] = array
    return mixed


def _cut_pieces(names: Sequence[str], arrays: Arrays, most: int) -> Iterator[list[str]]:
    """Yield names of some bytes at a time: all trained models at once would fill the server's memory."""
    piece: list[str] = []
    size = 0
    for name in names:
        piece.append(name)
        size += arrays[name].nbytes
        if size >= most or name == names[-1]:
            yield piece
            piece = []
            size = 0


def complete_state(study: Study, image_shape: tuple[int, ...], arrays: Arrays) -> dict[str, Tensor]:
    """Return a model's complete state dict: the arrays that travel, and initial values for the rest."""
    return fill_state(build_model(study, image_shape, study.seed), arrays)


def fill_state(model: nn.Module, arrays: Arrays) -> dict[str, Tensor]:
    """Return a model's state dict with some arrays written into it."""
    write_arrays(model.state_dict(), arrays)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def collect_part_arrays(run: Run) -> Arrays:
    """Return the arrays of all parts that belong into every written model."""
    arrays: Arrays = {}
    for part in run.parts.values():
        arrays |= part.outcome(run, {}).arrays
    return arrays


class SiteModels(SitePart):
    """A site's models with their optimisers."""

    name = "models"
    tasks = (VALIDATE, TEST)
    _steps: Mapping[str, Step] = {}

    @classmethod
    def list_client_state(cls, study: Study, number: int) -> Sequence[ClientState]:
        """Return the optimisers, where they keep anything, and what of the models stays at home."""
        kept = []
        if study.keeps_optimizers:
            kept.append(ClientState("its optimisers", is_for_training=True, is_of_model=True))
        if study.recipe.stays != "nothing":
            kept.append(ClientState(f"what stays at home ({study.recipe.stays})", is_of_model=True))
        return kept

    def prepare(self) -> None:
        """Load the arrays that the site kept at home, then the received ones over them."""
        work = self.work
        kept = work.kept.get(self.name) or {"home": {}}
        # These are the models' very tensors, so that copying into them changes the models.
        state = self.state()
        with torch.no_grad():
            for name, value in kept["home"].items():
                state[name].copy_(value)
        for role, model in work.models.items():
            write_arrays(model.state_dict(), work.message.of(role))

    def learners(self) -> Mapping[str, Learner]:
        """Return every model that learns, its optimiser fresh or as the last round left it, with the recipe's step."""
        study = self.work.study
        kept = self.work.kept.get(self.name)
        models = {role: self.work.models[role] for role in study.learning_roles(self.work.number)}
        # Read before the parts' steps and the training, which change the models in place.
        self._before = self._read_start()
        self._optimizers = {role: make_optimizer(study.training, model) for role, model in models.items()}
        learners = {}
        self._steps = {}
        for role, model in models.items():
            optimizer = self._optimizers[role]
            if kept and not study.has_fresh_optimizer:
                # Momentum and Adam's moments go on from round to round; they never travel. A model that is fine-tuned
                # goes on with a copy of the shared one's; without it both would write into the same tensors.
                state = kept["optimizer"]
                optimizer.load_state_dict(state[role] if role in state else copy.deepcopy(state[GLOBAL]))
            # The rate is set after the state is loaded, which holds the rate of the round before.
            set_learning_rate(optimizer, self.work.learning_rate)
            step = study.recipe.make_step(role)
            self._steps[role] = step
            for part in self.work.parts:
                step = part.step(role, step)
            learners[role] = Learner(model, optimizer, self.work.loss, step, study.training.measures_drift)
        return learners

    def state_dict(self) -> dict[str, Any]:
        """Return what the models' steps remember."""
        return {role: step.memory for role, step in self._steps.items() if isinstance(step, StatefulStep)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take it back."""
        for role, memory in saved.items():
            checked_cast(self._steps[role], StatefulStep).memory.update(to_device(memory, self.work.device))

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return the differences that training made, and let go of the last step's gradients."""
        # Gradients are as large as the models, and nobody needs them any more.
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        state = self.state()
        return Message({name: as_array(state[name]) - before for name, before in self._before.items()})

    def kept(self) -> dict[str, Any]:
        """Return the arrays that the server will not send again, and the optimisers' states."""
        kept: dict[str, Any] = {"home": self.home()}
        if not self.work.study.has_fresh_optimizer:
            kept["optimizer"] = {role: optimizer.state_dict() for role, optimizer in self._optimizers.items()}
        return kept

    def home(self) -> dict[str, Tensor]:
        """Return the arrays that the server will not send again, as they are now."""
        recipe = self.work.study.recipe
        # Of its own model a site keeps every array: where it listens to nobody, `ModelPart.to_send` sends none.
        # In extra rounds each site goes on from its own last model: sent back to it, it would travel for nothing.
        has_own = recipe.mixing is not None or recipe.extra_rounds > 0
        left_out = set()
        for name in self._list_traveling_names():
            if name in self.work.message.arrays and not (has_own and read_role(name) != GLOBAL):
                left_out.add(name)
        for role, model in self.work.models.items():
            # A filter of the site's own may keep BatchNorm back, of which nothing here says; so it is always at hand.
            left_out.difference_update(f"{role}/{name}" for name in batchnorm_names(model))
            left_out.update(f"{role}/{name}" for name in alias_names(model))
        return {name: value.cpu() for name, value in self.state().items() if name not in left_out}

    def state(self) -> dict[str, Tensor]:
        """Return the models' own tensors, ``role/name``."""
        state: dict[str, Tensor] = {}
        for role, model in self.work.models.items():
            state |= add_role(role, model.state_dict())
        return state

    def answer(self, task: str) -> Message:
        """Validate or test the received models of a finished round."""
        if task == VALIDATE:
            return Message(meta={"metrics": self.work.scores()})
        return Message(meta={"metrics": {"test": self._test_and_write()}})

    def _test_and_write(self) -> dict[str, Any]:
        """Test the site's model, and write it as a super model that holds this one model."""
        work = self.work
        model = work.learnt_models()[work.study.recipe.roles[-1]]
        part = work.data.test
        predictions, result = evaluate(model, part, work.study, work.device)
        operating_point, read = choose_site_operating_point(
            work, lambda part: evaluate(model, part, work.study, work.device)[1], result
        )
        numbers = summarise_test(predictions, result, part, work.study) | read
        facts = dict(numbers)
        if any(work.list_excluded(role) for role in work.models):
            facts["stays"] = "batchnorm"
        # By the run's name the site knows which images the model learnt from.
        facts["run"] = work.folder.name
        contents = Contents(
            study=work.tested_study or work.study,
            image_shape=part.image_shape,
            models={work.site: {name: value.cpu() for name, value in model.state_dict().items()}},
            rule="only",
            facts=facts,
            data_profile=work.data_profile,
            operating_point=operating_point,
        )
        write_model_folder(work.folder / FOLDER, contents)
        write_test_files(work.folder, result, predictions, model, part, work.study.data.shown)
        return work.suppress_small_cells(numbers, result, part)

    def _list_traveling_names(self) -> list[str]:
        recipe = self.work.study.recipe
        names = []
        for role in recipe.traveling_roles:
            home = self.work.list_excluded(role)
            traveling = traveling_names(self.work.models[role], recipe)
            names += [f"{role}/{name}" for name in traveling if name not in home]
        return names

    def _read_start(self) -> Arrays:
        """Return what travels as it is before training: the received array itself where it is the same, else a copy."""
        state = self.state()
        start: Arrays = {}
        for name in self._list_traveling_names():
            value = as_array(state[name])
            received = self.work.message.arrays.get(name)
            if received is not None and received.dtype == value.dtype and np.array_equal(received, value):
                start[name] = received
            else:
                start[name] = value.copy()
        return start


PART, SITE = ModelPart, SiteModels


def _traveling_models(study: Study) -> dict[str, HarmonizedModel]:
    models = build_models(study, None)
    return {role: models[role] for role in study.recipe.traveling_roles}


def _add_change(name: str, started: NDArray[Any], change: NDArray[Any] | None) -> NDArray[Any]:
    """Return a trained array; a variance that half precision rounds to a hair below 0 is 0."""
    if change is None:
        return started
    trained: NDArray[Any] = started + change
    return np.maximum(trained, 0) if is_variance(name) else trained


def _renormalise_rows(weights: NDArray[Any], is_sender: list[bool]) -> NDArray[Any]:
    """Renormalise every row over the senders; a row without any listens to its own site's last model."""
    rows = weights * np.array(is_sender, dtype=np.float64)
    # A row is 0 where a site listens to nobody who sent the array.
    sums = rows.sum(axis=1, keepdims=True)
    return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), np.eye(len(rows)))
