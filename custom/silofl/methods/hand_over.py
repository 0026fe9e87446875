"""One-shot learning: each site's model leaves once, with its last training answer, and all of them answer together.

A site validates its model after every epoch and keeps the best one. That one is what it sends, with the answer to the
last round's training; a study of one round asks for nothing before. A site that missed that round is asked once more in
the end. Then the test brings all models to every site, as the super model that it keeps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from silofl import schema
from silofl.algorithms.mixing import Arrays
from silofl.algorithms.recipe import Recipe
from silofl.data.domain import Domain
from silofl.errors import TrainingError
from silofl.inference import SuperModel
from silofl.inference.case_results import case_results, score_of, value_of
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, write
from silofl.inference.super_model import ENSEMBLE
from silofl.methods.model import complete_state, tensors_of
from silofl.methods.part import (
    COLLECT,
    END,
    TRAIN,
    Exchange,
    Expected,
    Kind,
    Message,
    Part,
    Replies,
    Reported,
    Run,
    SitePart,
)
from silofl.models import HarmonizedModel, build_plain_model
from silofl.models.names import read_arrays, traveling_names
from silofl.models.roles import of_role, role_of, with_role
from silofl.study import Study
from silofl.training.evaluation import evaluate, like, numbers_of_test
from silofl.training.loop import TrainingResult
from silofl.training.metrics import members_of
from silofl.training.pictures import keep_test

ROLE, ALL_MODELS = "hand_over", "test_all_models"
HOW = "of each site the epoch that was best on its own validation data"
PURPOSE = "the site's own model, whole and once after its training, for the super model that every site gets"
RISK = (
    "every site, and whoever holds the super model, holds a model that learnt from this site's images alone, and may "
    "rebuild rough images from it; may_leave without site_model, and the site takes no part"
)


@dataclass(frozen=True)
class HandOverPart(Part):
    """The sites' models at the server.

    Attributes:
        study: The study.
        shapes: An array of each name and shape that a model has.
        received: Site -> its model.
        missing: Site -> why it was asked in the end and sent none.
    """

    study: Study
    shapes: Arrays
    received: dict[str, Arrays] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    role: str = ROLE
    test_task: ClassVar[str] = ALL_MODELS

    @property
    def end_bytes(self) -> int:
        """Bytes of a model."""
        return sum(value.nbytes for value in self.shapes.values())

    @property
    def home_bytes(self) -> int:
        """Bytes of the best model so far."""
        return self.end_bytes

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Ask in the end the sites that have trained and whose models have not come."""
        lacking = tuple(site for site in run.sites if site not in self.received and run.held(site, number))
        if moment != END or not lacking:
            return ()
        return (Exchange(COLLECT, number, sites=lacking, is_needed=False, models_round=number),)

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return all models for the test."""
        if exchange.task != ALL_MODELS:
            return Message()
        arrays = {name: one for owner, model in self.received.items() for name, one in with_role(owner, model).items()}
        return Message(with_role(ROLE, arrays), {ROLE: {"facts": run.facts(), "domain": schema.plain(run.domain)}})

    def expected(self, site: str, exchange: Exchange, run: Run) -> Mapping[str, Expected]:
        """Return the arrays of a whole model, with the last training answer or in the end."""
        is_last = exchange.task == TRAIN and exchange.round == self.study.rounds
        wanted = Expected.like(with_role(ROLE, self.shapes)) if is_last or exchange.task == COLLECT else {}
        return {name: replace(one, is_required=True) for name, one in wanted.items()}

    def merged(
        self, exchange: Exchange, replies: Replies, weights_of: Callable[[str], NDArray], run: Run
    ) -> HandOverPart:
        """Take the models."""
        if exchange.task not in (TRAIN, COLLECT):
            return self
        new = {site: arrays for site, answer in replies.accepted.items() if (arrays := answer.of(ROLE))}
        missing = replies.missing | replies.refused if exchange.task == COLLECT else {}
        return replace(self, received=dict(sorted((self.received | new).items())), missing=missing)

    def notes(self, exchange: Exchange) -> Sequence[str]:
        """Return whose models did not come in the end, and why."""
        missing = self.missing if exchange.task == COLLECT else {}
        return [f"site {site!r} sent no model, and the others answer without it: {w}" for site, w in missing.items()]

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Say which models answer; a round whose validation is the best holds them already."""
        return replace(reported, how=HOW) if reported.validation else reported

    def contents(self, run: Run) -> Contents | None:
        """Return the super model; None where no model has come."""
        if not self.received or run.image_shape is None:
            return None
        return _contents(self.study, run.image_shape, self.received, run.facts(), run.domain)

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return {"received": {site: tensors_of(arrays) for site, arrays in self.received.items()}}

    def restored(self, state: Mapping[str, Any]) -> HandOverPart:
        """Return what `state` described."""
        received = state["received"].items()
        return replace(self, received={s: {name: one.numpy() for name, one in m.items()} for s, m in received})


@dataclass(frozen=True)
class Best:
    """A site's best model so far.

    Attributes:
        model: Its state dict.
        value: Its value on the site's validation data; None where nothing could be measured.
    """

    model: dict[str, Tensor]
    value: float | None


class SiteHandOver(SitePart):
    """A site's best model, and its test of all sites' models."""

    name = ROLE
    tasks = (COLLECT, ALL_MODELS)

    def prepare(self) -> None:
        """Take the best model of the rounds before."""
        kept = self.work.kept.get(self.name)
        self._best = Best(kept["model"], kept["value"]) if kept else None
        self._epochs = 0

    def epoch(self) -> None:
        """Validate the model as the epoch before left it."""
        # As the round began it was validated already, after the last epoch of the round before.
        if self._epochs:
            self._validate()
        self._epochs += 1

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return the best model of all epochs where this was the last round."""
        self._validate()
        return self._model() if self.work.number == self.work.study.rounds else Message()

    def kept(self) -> dict[str, Any]:
        """Return the best model so far."""
        return {"model": self._best.model, "value": self._best.value}

    def deployed(self, role: str, model: HarmonizedModel) -> HarmonizedModel:
        """Return the best model so far."""
        if self._best is None:
            return model
        best = copy.deepcopy(model)
        best.load_state_dict(self._best.model)
        return best

    def answer(self, task: str) -> Message:
        """Send the best model, or test the mean of all models and keep them.

        Raises:
            TrainingError: The site's best model is not in its state.
        """
        if task == ALL_MODELS:
            return Message(meta={"metrics": {"test": self._test()}})
        # Prepares the parts.
        self.work.models  # noqa: B018
        if self._best is None:
            raise TrainingError(f"site {self.work.site!r} must hold its model, which is not in its state; restore it")
        return self._model()

    def _model(self) -> Message:
        """Return every array of the model, not a difference: the server has none."""
        return Message(with_role(ROLE, read_arrays(self._best.model, _names(self.work.own))))

    def _validate(self) -> None:
        work, model = self.work, self.work.own
        part, value = work.data.validation, None
        if len(part):
            value = value_of(evaluate(model, part, work.study, work.device)[1])
            # Evaluation leaves a model as it answers, and training goes on.
            model.train()
        best = self._best.value if self._best else None
        if best is None or (value is not None and value > best):
            state = {name: one.detach().cpu().clone() for name, one in model.state_dict().items()}
            self._best = Best(state, value)

    def _test(self) -> dict[str, Any]:
        work, part = self.work, self.work.data.test
        contents = self._received()
        write(work.folder / FOLDER, contents)
        model = SuperModel(contents, work.device)
        results = case_results(model, part, work.study)
        result = score_of(results, dict.fromkeys(results, ENSEMBLE))
        cases = [results[case].predictions[ENSEMBLE] for case in members_of(part.cases)]
        predictions = like(part.targets, cases)
        keep_test(work.folder, result, predictions, model.network(contents.sites[0]), part, work.study.data.shown)
        return numbers_of_test(predictions, result, part, work.study)

    def _received(self) -> Contents:
        work, said = self.work, self.work.message.about(ROLE)
        arrays = work.message.of(ROLE)
        models = {site: of_role(site, arrays) for site in dict.fromkeys(role_of(name) for name in arrays)}
        domain = schema.read(Domain, said["domain"], "the domain of the super model")
        return _contents(work.study, work.data.training.image_shape, models, said["facts"], domain)


def start(study: Study, sites: Sequence[str], pretrained: Arrays | None) -> list[Part]:
    """Return the server half before any model has come."""
    model = build_plain_model(study, study.seed)
    return [HandOverPart(study, read_arrays(model.state_dict(), _names(model)))]


def kinds(study: Study) -> list[Kind]:
    """Return the kind of the models' arrays."""
    return [Kind("site_model", PURPOSE, RISK, ROLE)]


SITE = SiteHandOver


def _names(model: torch.nn.Module) -> list[str]:
    """Return the names of a whole model's arrays: those that would travel if nothing stayed at home."""
    return traveling_names(model, Recipe())


def _contents(
    study: Study, shape: tuple[int, ...], models: Mapping[str, Arrays], facts: Mapping[str, Any], domain: Domain
) -> Contents:
    states = {site: complete_state(study, shape, arrays) for site, arrays in models.items()}
    return Contents(study, shape, states, "mean", facts=dict(facts), domain=domain)
