"""FedSM's selector: it learns beside the models, at the sites or at the server, which of them suits an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from silofl.algorithms.fedsm.best_models import label_best_models, load_fixed_models
from silofl.algorithms.fedsm.paper import AdamState, Selector, adam_step, site_loss
from silofl.core.mixing import Arrays, mix
from silofl.core.outliers import BEYOND
from silofl.core.robust import find_long
from silofl.core.steps import Batch, GradientStep, Loss, Step, plain_step
from silofl.data.batches import training_batches
from silofl.data.parts import Examples, take_central_slices
from silofl.inference.probabilities import to_probabilities
from silofl.models import HarmonizedModel
from silofl.models.names import read_arrays, write_arrays
from silofl.models.precision import keep_exact
from silofl.models.roles import GLOBAL, PERSONAL, add_role, read_role, select_role
from silofl.models.selector import build_selector
from silofl.parts.answer import SiteAnswer
from silofl.parts.half_round import to_device
from silofl.parts.part import AFTER, INSTEAD, ClientState, Compared, OutboundPayload, Part, Run, WeightsOf
from silofl.parts.task import TRAIN, VALIDATE, ArraySpec, Exchange, Message, Outliers, PayloadSpec, SiteResults
from silofl.parts.tensors import to_arrays, to_tensors
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.device import derive_seed
from silofl.training.evaluation import scores_by_case
from silofl.training.loop import Learner, TrainingResult
from silofl.training.metrics import Score

ROLE = "selector"
# Prefixes of Adam's moments, which travel too where they are averaged.
AVERAGE, SQUARE = "average", "square"
# The least probability that float32 tells from 0 and, taken from it, from 1.
SMALLEST = 1e-7
HEAD = ("network.head.weight", "network.head.bias")
PURPOSE = "what the selector, a classifier, learnt to say which site's images a case resembles"
RISK = (
    "whoever has the super model can ask for any image which hospital it came from; may_leave without selector, and a "
    "study without one"
)


@dataclass(frozen=True)
class SelectorPart(Part):
    """The selector at the server, after some steps.

    Attributes:
        study: Its recipe says how the selector learns.
        outputs: The models that its outputs choose: site names, after ``global`` where it learns the best model.
        parameters: {parameter name: array}.
        adam: The moments that the server keeps (``gradients``) or averages (``moments``).
    """

    study: Study
    outputs: tuple[str, ...]
    parameters: Arrays
    adam: AdamState
    role: str = ROLE
    saved = ("outputs", "parameters")
    outbound = (OutboundPayload("selector", PURPOSE, RISK, ROLE, is_bounded=True),)

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the selector drawn from the study's seed."""
        outputs = tuple(sites) if study.recipe.option("selector").learns_site else (GLOBAL, *sites)
        model = build_selector(study, len(outputs), study.seed)
        parameters = read_arrays(model.state_dict(), [name for name, _ in model.named_parameters()])
        return [cls(study, outputs, parameters, AdamState.zero(parameters))]

    @property
    def settings(self) -> Selector:
        """The recipe's answer."""
        option: Selector = self.study.recipe.option("selector")
        return option

    @property
    def follows_best(self) -> bool:
        """Whether it learns with the models, and not only after them."""
        return self.settings.learns_site

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Ask for further steps after a round's first one, or for all steps of a round of its own."""
        # Beside the models, step 1 travels with the training task, and sites train the selector in the same pass.
        start = 2 if self.settings.learns_site else 1
        if moment != (AFTER if self.settings.learns_site else INSTEAD):
            return ()
        return [Exchange(ROLE, number, step, models_round=number) for step in range(start, self.settings.steps + 1)]

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return the selector for learning or validation."""
        if not self._takes_part(exchange):
            return Message()
        return Message(self._arrays, {ROLE: {"outputs": list(self.outputs), "step": self.adam.steps}})

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return the shapes of a gradient, or of differences to what was sent."""
        is_learning = self._takes_part(exchange) and exchange.task != VALIDATE
        wanted = ArraySpec.like(self._arrays) if is_learning else {}
        # Its parameters, and each of Adam's moments: behind long ones of another scale none can hide.
        scales: dict[str, list[str]] = {}
        for name in select_role(ROLE, wanted):
            scales.setdefault(read_role(name), []).append(name)
        # Each site teaches it its own name.
        return PayloadSpec(wanted, averaged=list(scales.values()), has_median=False)

    def compared(self, exchange: Exchange, answers: dict[str, SiteAnswer], run: Run) -> Compared:
        """Shorten what is more than 3 times as long as the others' median: else one site could turn every step."""
        if len(answers) < self.study.federation.min_sites_for_ratio:
            return Compared(answers)
        changed = dict(answers)
        outliers: Outliers = {}
        for names in self.payload_spec("", exchange, run).averaged:
            updates = {}
            for site, answer in answers.items():
                sent = answer.of(ROLE)
                updates[site] = {name: sent[name] for name in names if name in sent}
            # A square is as long as a gradient times itself.
            most = BEYOND**2 if read_role(next(iter(names))) == SQUARE else BEYOND
            for site, ratio in find_long(updates, most).items():
                scale = most / ratio
                shorter = {name: (scale * array).astype(array.dtype) for name, array in updates[site].items()}
                changed[site] = replace(changed[site], arrays=changed[site].arrays | add_role(ROLE, shorter))
                outliers[site] = {ROLE: ratio}
        return Compared(changed, outliers)

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> SelectorPart:
        """Take one step from the sites that sent every array."""
        wanted = self._arrays.keys()
        is_whole = np.array([wanted <= answer.arrays.keys() for answer in site_results.accepted.values()])
        if not self._takes_part(exchange) or exchange.task == VALIDATE or not is_whole.any():
            return self
        # A gradient without some arrays points elsewhere, so such a site is left out. Row 0 is as good as any: there is
        # one selector, and no recipe lets sites listen to it differently.
        weights = weights_of(ROLE)[0][is_whole]
        chosen = {}
        for (site, answer), whole in zip(site_results.accepted.items(), is_whole, strict=True):
            if whole:
                chosen[site] = answer.of(ROLE)
        mean = mix(chosen, np.tile(weights / weights.sum(), (len(chosen), 1)))[next(iter(chosen))]
        parameters, average, square = _split_moments(mean)
        if self.settings.learning == "gradients":
            new, adam = adam_step(self.parameters, parameters, self.adam, self.settings.learning_rate)
            return replace(self, parameters=new, adam=adam)
        # Sites send differences. The mean difference added to the old square may round to a hair below 0, and Adam
        # takes the root: NaN in every later step.
        squares = _add_difference(self.adam.square, square)
        squares = {name: np.maximum(array, 0).astype(np.float32) for name, array in squares.items()}
        adam = AdamState(_add_difference(self.adam.mean, average), squares, self.adam.steps + 1)
        return replace(self, parameters=_add_difference(self.parameters, parameters), adam=adam)

    def joined(self, site: str) -> SelectorPart:
        """Add an output for the site; zero weights leave it undecided at first."""
        # The moments grow with the weights, or Adam's next step would not fit them.
        adam = AdamState(_append_output(self.adam.mean), _append_output(self.adam.square), self.adam.steps)
        return replace(self, outputs=(*self.outputs, site), parameters=_append_output(self.parameters), adam=adam)

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return {**super().state(), **to_tensors(self.adam._asdict())}

    def restored(self, state: Mapping[str, Any]) -> SelectorPart:
        """Return what `state` described."""
        adam = AdamState(**to_arrays({name: state[name] for name in AdamState._fields}))
        return replace(super().restored(state), adam=adam)

    def _takes_part(self, exchange: Exchange) -> bool:
        return exchange.task == ROLE or (self.settings.learns_site and exchange.task in (TRAIN, VALIDATE))

    # Once a step and not once a site: `keep_exact` copies.
    @cached_property
    def _arrays(self) -> Arrays:
        arrays = dict(self.parameters)
        if self.settings.learning == "moments":
            # Adam divides by their root: a square that half precision makes 0 would be a step without bounds.
            square = keep_exact(self.adam.square, self.study)
            arrays |= add_role(AVERAGE, self.adam.mean) | add_role(SQUARE, square)
        return add_role(ROLE, arrays)


class SiteSelector(SitePart):
    """The selector at a site: it learns from the site's images, and only what it learnt leaves."""

    name = ROLE
    tasks = (ROLE,)
    _taken = 0

    @classmethod
    def list_client_state(cls, study: Study, number: int) -> Sequence[ClientState]:
        """Return its optimiser where it takes local steps, after the rounds in which it does."""
        settings = study.recipe.option("selector")
        has_learnt = settings.learns_site or number > study.last_training
        if settings.learning != "local_steps" or not has_learnt:
            return []
        return [ClientState("its selector's optimiser", is_for_training=True)]

    def learners(self) -> Mapping[str, Learner]:
        """Return the selector, which learns that every image is this site's; of volumes it sees slices of its own."""
        if not self._has_selector():
            return {}
        learner = self._prepare_learner(self.work.site)
        if self._sees_slices:
            learner = replace(learner, step=self._step_on_slices(learner.step))
        return {ROLE: learner}

    def state_dict(self) -> dict[str, Any]:
        """Return the gradient so far, and how many batches of slices it has seen."""
        if "_gradient" not in vars(self):
            return {}
        gradient = {name: p.grad for name, p in self._model.named_parameters() if p.grad is not None}
        return {"examples": self._gradient.num_examples, "gradient": gradient, "taken": self._taken}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take both back."""
        self._gradient.num_examples = saved["examples"]
        self._taken = saved["taken"]
        for name, parameter in self._model.named_parameters():
            parameter.grad = to_device(saved["gradient"].get(name), self.work.device)
        # The slices that were learnt from before the stop are passed over.
        for _ in range(self._taken):
            next(self._slices)

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return a mean gradient, or differences to what was sent."""
        return Message(self._compute_update()) if self._has_selector() else Message()

    def kept(self) -> dict[str, Any]:
        """Return its optimiser's state, where it takes local steps."""
        if not self._has_selector() or self._optimizer is None:
            return {}
        return {"optimizer": self._optimizer.state_dict()}

    def answer(self, task: str) -> Message:
        """Take one more pass over the training data with the selector alone."""
        work = self.work
        settings = self._settings
        examples = work.data.training
        site = work.site if settings.learns_site else None
        if settings.labels == "best_model":
            examples = label_best_models(work, examples, work.message.find_entry(ROLE)["outputs"])
        if self._sees_slices:
            examples = take_central_slices(examples)
        learners = {ROLE: self._prepare_learner(site)}
        results = work.train(learners, examples, ROLE, work.message.meta["step"])
        if kept := self.kept():
            # The models and all else stay as the training before this exchange left them.
            work.to_keep = {**work.kept, self.name: kept}
        return Message(self._compute_update(), work.numbers(results))

    def judged(self, scores: Mapping[str, Score], examples: Examples, is_validation: bool) -> dict[str, Any] | None:
        """Return the super model's score as far as the site can judge it.

        It has no other site's model, so where the selector does not choose this site the global model answers.
        """
        if not self._has_selector():
            return None
        model, outputs = self._load_received()
        outputs_of_cases = scores_by_case(model, examples, self.work.study.training.batch_size, self.work.device)
        index = outputs.index(self.work.site)
        is_own = {case: output.mean(axis=0).argmax() == index for case, output in outputs_of_cases.items()}
        combined = Score.merged({case: scores[PERSONAL if own else GLOBAL] for case, own in is_own.items()})
        # The selector's accuracy counts single images, the choice of a model whole cases.
        chosen = np.concatenate([output.argmax(axis=1) for output in outputs_of_cases.values()])
        numbers = combined.numbers() | {"selector_accuracy": float(np.mean(chosen == index))}
        return self.work.suppress_small_cells(numbers, combined, examples)

    @property
    def _settings(self) -> Selector:
        option: Selector = self.work.study.recipe.option("selector")
        return option

    @property
    def _sees_slices(self) -> bool:
        return self.work.data.training.has_volumes

    def _step_on_slices(self, step: Step) -> Step:
        """Return a step that takes the next central slices of whole volumes in place of the models' patches."""
        self._slices = self._draw_slices()

        def own(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
            self._taken += 1
            return step(model, optimizer, loss, next(self._slices))

        return own

    def _draw_slices(self) -> Iterator[Batch]:
        work = self.work
        slices = take_central_slices(work.data.training)
        for epoch in count():
            seed = derive_seed(work.study.seed, work.site, work.number, ROLE, "slices", epoch)
            yield from training_batches(slices, work.study.training.batch_size, None, seed, work.device)

    def _has_selector(self) -> bool:
        return bool(self.work.message.find_entry(ROLE))

    def _load_received(self) -> tuple[HarmonizedModel, list[str]]:
        work = self.work
        outputs = list(work.message.find_entry(ROLE)["outputs"])
        model = build_selector(work.study, len(outputs), work.study.seed).to(work.device)
        write_arrays(model.state_dict(), _split_moments(work.message.of(ROLE))[0])
        return model, outputs

    def _prepare_learner(self, site: str | None) -> Learner:
        """Return how it learns: every image as this site's; of None each image's own class, or the mixture's loss."""
        self._model, outputs = self._load_received()
        self._gradient = GradientStep()
        self._optimizer = None
        if self._settings.learning == "local_steps":
            self._optimizer = torch.optim.Adam(self._model.parameters(), lr=self._settings.learning_rate)
            if kept := self.work.kept.get(self.name):
                self._optimizer.load_state_dict(kept["optimizer"])
                _add_outputs(self._optimizer)
        loss: Loss = nn.functional.cross_entropy if site is None else site_loss(outputs.index(site))
        step = plain_step if self._optimizer is not None else self._gradient
        if self._settings.labels != "ensemble":
            return Learner(self._model, self._optimizer, loss, step)
        ensemble = TrainedEnsemble(self._model, load_fixed_models(self.work, outputs), self.work.study.is_multilabel)
        return Learner(ensemble, self._optimizer, self.work.loss, step)

    def _compute_update(self) -> Arrays:
        # A gradient is sent as it is; weights and moments travel as differences to what was sent.
        if self._settings.learning == "gradients":
            return add_role(ROLE, self._gradient.mean(self._model))
        trained = self._collect_trained()
        sent = self.work.message.of(ROLE)
        return add_role(ROLE, {name: trained[name] - array for name, array in sent.items()})

    def _collect_trained(self) -> Arrays:
        parameters, average, square = _split_moments(self.work.message.of(ROLE))
        if self._settings.learning == "local_steps":
            return read_arrays(self._model.state_dict(), parameters)
        state = AdamState(average, square, int(self.work.message.find_entry(ROLE)["step"]))
        gradient = self._gradient.mean(self._model)
        parameters, adam = adam_step(parameters, gradient, state, self._settings.learning_rate)
        return parameters | add_role(AVERAGE, adam.mean) | add_role(SQUARE, adam.square)


class TrainedEnsemble(nn.Module):
    """The mean of fixed models' probabilities by a selector's scores, as logits of that mean (FedSM, 3.1.1).

    Args:
        selector: Learns.
        models: In the order of its outputs; they stay as they are.
        is_multilabel: Whether they answer sets of findings.
    """

    def __init__(self, selector: nn.Module, models: Sequence[nn.Module], is_multilabel: bool = False) -> None:
        super().__init__()
        self.selector = selector
        self.is_multilabel = is_multilabel
        # A tuple and no ModuleList: the models are not trained, nor put into training mode.
        self._models = tuple(models)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, outputs, ...) for images (B, C, *spatial)."""
        scores = self.selector(images).softmax(dim=1)
        with torch.no_grad():
            answers = torch.stack(
                [to_probabilities(model(images), self.is_multilabel) for model in self._models], dim=1
            )
        # One score a model, the same for all classes and pixels.
        weights = scores.view(*scores.shape, *[1] * (answers.ndim - 2))
        # Logits of 0 and of 1 would be infinite.
        mean: Tensor = (weights * answers).sum(dim=1).clamp(SMALLEST, 1 - SMALLEST)
        return mean.logit() if mean.shape[1] == 1 or self.is_multilabel else mean.log()


PART, SITE = SelectorPart, SiteSelector


def _split_moments(arrays: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    parameters = {name: array for name, array in arrays.items() if not read_role(name)}
    return parameters, select_role(AVERAGE, arrays), select_role(SQUARE, arrays)


def _add_difference(arrays: Arrays, difference: Arrays) -> Arrays:
    return arrays | {name: arrays[name] + change for name, change in difference.items()}


def _add_outputs(optimizer: torch.optim.Optimizer) -> None:
    """Give Adam's moments the outputs of sites that have come since, of which nothing is known yet."""
    for parameter, state in optimizer.state.items():
        for key in ("exp_avg", "exp_avg_sq"):
            more = state[key].new_zeros(len(parameter) - len(state[key]), *parameter.shape[1:])
            state[key] = torch.cat([state[key], more])


def _append_output(arrays: Arrays) -> Arrays:
    return arrays | {name: np.concatenate([arrays[name], np.zeros_like(arrays[name][:1])]) for name in HEAD}
