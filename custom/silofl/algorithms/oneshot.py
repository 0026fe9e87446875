"""One exchange: every site trains alone and sends its model once, and in the end all models answer together.

Guha, Talwalkar, Smith, One-Shot Federated Learning, 2019, arXiv:1902.11175: the ensemble of all sites' models, without
its selection among them and without its distillation. Beside the paper, a selector (`silofl.models.nearest`) may choose
or weigh the models for each case.

A site validates its model after every epoch and keeps the best one. That one is what it sends, with the answer to the
last round's training; a study of one round asks for nothing before. A site that missed that round is asked once more in
the end. Then the test brings all models to every site, as the super model that it keeps. For a selector among them a
site sends, beside its model, the moments of its training images' features.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from silofl.base.errors import AggregationError, ConfigError, DataError, TrainingError
from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.mixing import Arrays
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.data.parts import Examples
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, write_model_folder
from silofl.inference.super_results import SuperResults
from silofl.models import HarmonizedModel, build_plain_model
from silofl.models.names import read_arrays, traveling_names
from silofl.models.nearest import NUM_FEATURES, FeatureMoments, discriminant, measure_features
from silofl.models.roles import SELECTOR, add_role, read_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.asked_once import Withheld, check_all_sent, expect_float64, withhold_few_patients
from silofl.parts.model import collect_part_arrays
from silofl.parts.part import END, Kept, Kind, Outcome, OwnTest, Part, Reported, Run, WeightsOf
from silofl.parts.super_exchange import collect_facts, evaluate_super_model, read_contents
from silofl.parts.task import COLLECT, TRAIN, Exchange, Expected, Message, Replies, Wanted
from silofl.parts.tensors import to_tensors
from silofl.parts.work import SitePart, keeps
from silofl.study import Study
from silofl.training.evaluation import compute_outputs, evaluate, yield_pieces
from silofl.training.local_model import copy_state
from silofl.training.loop import TrainingResult
from silofl.training.metrics import value_or_none
from silofl.training.site_score import SuperScore

ROLE, ALL_MODELS, FEATURES = "hand_over", "test_all_models", "image_features"
REPORTED = "of each site the epoch that was best on its own validation data"
PURPOSE = "the site's whole own model, sent once after its training, for the super model that every site gets"
RISK = (
    "every site, and whoever has the super model, has a model that was trained on this site's images alone, and may "
    "rebuild rough images from it; may_leave without site_model: the site takes no part"
)
FEATURES_PURPOSE = "means and covariances of brightness, contrast and sharpness, for a selector among all sites' models"
FEATURES_RISK = (
    "every site sees what this site's images look like. With few patients it sees their contrast; min_patients: the "
    "selector then never chooses this site's model"
)

# Of an image's side; with fewer pixels its lowest frequencies cannot be told apart.
SMALLEST_SIDE = 16
BESIDE = "Mean and covariance of nine numbers per channel of the site's images travel with it"
HOW = {
    "mean": "the mean of all models' probabilities answers",
    "choice": "a case is answered by the model of the site whose images it is most like",
    "ensemble": "all models answer, weighted by how like each site's images the case is",
}


class HandOver(AlgorithmOption):
    """Each site sends its model once, after its training, for the super model of all.

    A site sends the model of its best epoch on its validation data; without such data, of its last epoch.

    Attributes:
        answer: The super model answers with the ``mean`` of all models, the selector's ``choice``, or an ``ensemble``
            weighted by it.
    """

    section: ClassVar[str] = ROLE
    implementation: ClassVar[str] = __name__
    answer: Literal["mean", "choice", "ensemble"] = "mean"

    @property
    def has_selector(self) -> bool:
        """Whether a selector tells whose images a case is like."""
        return self.answer != "mean"

    @property
    def traits(self) -> Traits:
        """Its constant acts on a prediction; not where all models have equal shares, as older ones all have."""
        deciding = ("answer",) if self.has_selector else ()
        return Traits(own_model="handed_over", deciding=deciding, weighs_models=self.answer == "ensemble")

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse images of which the selector could tell too little."""
        if self.has_selector and len(shape) == 3 and min(shape[1:]) < SMALLEST_SIDE:
            size = " x ".join(map(str, shape[1:]))
            raise DataError(
                f"images must have at least {SMALLEST_SIDE} pixels along each axis for hand_over.answer "
                f"{self.answer!r}, not {size}; add a Resize to the study's data.transforms, or let the mean answer"
            )

    def conflict(self, recipe: Recipe) -> str | None:
        """Return why it does not go with a recipe in which models travel, or are combined, in training."""
        if recipe.stays_home != "everything":
            return (
                f"stays_home must be everything where each model leaves once, after its training, not "
                f"{recipe.stays_home!r}; leave it out"
            )
        if recipe.input is not None:
            return (
                "input must be none where each site trains alone and sends its model once, as it would know no "
                "amplitude but its own; leave it out"
            )
        if recipe.mixing is not None or len(recipe.roles) > 1:
            return "mixing must be shared, and a site have one model, where nothing is mixed; leave both out"
        for key in ("extra_rounds", "average_last"):
            if value := getattr(recipe, key):
                return f"{key} must be 0 where a site sends its model of its best epoch, not {value}; leave it out"
        return None

    def sentence(self) -> str:
        """Describe the answer for the report."""
        return (
            f"{BESIDE if self.has_selector else 'Nothing else'}: each site's model of its best epoch on its own "
            f"validation data leaves once, after the training, and {HOW[self.answer]}."
        )


@dataclass(frozen=True)
class HandOverPart(Part):
    """The sites' models at the server.

    Attributes:
        study: The study.
        shapes: An array of each name and shape that a model has.
        received: Site -> its model.
        moments: Site -> the moments of its images' features, where a selector needs them.
        missing: Site -> why it was asked in the end and sent none.
        withheld: Site -> why it told nothing of its images.
    """

    study: Study
    shapes: Arrays
    received: dict[str, Arrays] = field(default_factory=dict)
    moments: dict[str, Arrays] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)
    role: str = ROLE
    test: ClassVar[OwnTest] = OwnTest(ALL_MODELS, SuperScore)
    saved = ("received", "moments", "withheld")

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before any model has come."""
        model = build_plain_model(study, study.seed)
        return [cls(study, read_arrays(model.state_dict(), _list_array_names(model)))]

    @classmethod
    def kinds(cls, study: Study) -> Sequence[Kind]:
        """Return the kinds of the models' arrays, and of what a selector needs."""
        model = Kind("site_model", PURPOSE, RISK, ROLE, is_mixed=False)
        features = Kind(FEATURES, FEATURES_PURPOSE, FEATURES_RISK, FEATURES, is_of_images=True, is_mixed=False)
        return [model, features] if study.recipe.option(ROLE).has_selector else [model]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The sites that the selector knows; fewer than two are none."""
        known = tuple(site for site in self.received if site in self.moments)
        return known if len(known) > 1 else ()

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
        return Message(add_role(ROLE, self._pack_super_model(run)), {ROLE: collect_facts(run, self.outputs)})

    def expected(self, site: str, exchange: Exchange, run: Run) -> Wanted:
        """Return the arrays of a whole model, with the last training answer or in the end."""
        if not self._brings_models(exchange):
            return Wanted(entry=Withheld)
        return Wanted(Expected.whole_model(add_role(ROLE, self.shapes)) | _expect_features(self.study), Withheld)

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> HandOverPart:
        """Refuse a part of the features, and those of no images; a site may keep back all or nothing."""
        wanted = {name for name in self.expected(site, exchange, run).arrays if read_role(name) == FEATURES}
        check_all_sent(site, answer, wanted, ROLE, "the moments of its images' features")
        if moments := answer.of(FEATURES):
            try:
                _read_moments(moments)
            except ConfigError as error:
                raise AggregationError(f"site {site!r}: {error}") from None
        return self

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> HandOverPart:
        """Take the models."""
        if exchange.task not in (TRAIN, COLLECT):
            return self
        new = {site: arrays for site, answer in replies.accepted.items() if (arrays := answer.of(ROLE))}
        moments = {site: arrays for site, answer in replies.accepted.items() if (arrays := answer.of(FEATURES))}
        withheld = {site: why for site in new if (why := replies.accepted[site].entry(ROLE, Withheld).withheld)}
        # A run that goes on for more rounds asks all sites anew: their models of before are no longer their last ones.
        earlier = self if exchange.task == COLLECT else replace(self, received={}, moments={}, withheld={})
        return replace(
            self,
            received=dict(sorted((earlier.received | new).items())),
            moments=earlier.moments | moments,
            missing=replies.missing | replies.refused if exchange.task == COLLECT else {},
            withheld=earlier.withheld | withheld,
        )

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return whose models did not come in the end, or cannot be chosen, and why."""
        missing = self.missing if exchange.task == COLLECT else {}
        withheld = self.withheld if self._brings_models(exchange) else {}
        return [
            *(f"site {site!r} sent no model, and the others answer without it: {why}" for site, why in missing.items()),
            *(f"site {site!r} has a model that no selector chooses: {why}" for site, why in withheld.items()),
        ]

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Say which models answer; a round whose validation is the best holds them already."""
        return replace(reported, how=REPORTED) if reported.validation else reported

    def outcome(self, run: Run, tests: Mapping[str, SuperScore]) -> Outcome:
        """Return the super model, and what its selector can choose where there is one."""
        results = {"super_model": SuperResults(tuple(self.outputs), None, {}, ())} if self.outputs else {}
        return Outcome(make_contents=partial(self._make_contents, run), results=results)

    def _make_contents(self, run: Run) -> Contents | None:
        if not self.received or run.image_shape is None:
            return None
        return read_contents(self._pack_super_model(run), collect_facts(run, self.outputs), self.study, run.image_shape)

    def _brings_models(self, exchange: Exchange) -> bool:
        return exchange.task == COLLECT or (exchange.task == TRAIN and exchange.round == self.study.rounds)

    def _pack_super_model(self, run: Run) -> Arrays:
        """Return all models, what they have in common, and the selector as they travel."""
        arrays = collect_part_arrays(run)
        for site, model in self.received.items():
            arrays |= add_role(site, model)
        return arrays | add_role(SELECTOR, self._fit_selector())

    def _fit_selector(self) -> Arrays:
        """Return the arrays of the selector; none without one."""
        if not self.outputs:
            return {}
        moments = [_read_moments(self.moments[site]) for site in self.outputs]
        return {f"network.{name}": value.numpy() for name, value in discriminant(moments).items()}


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
    list_kept = keeps(Kept("its best model", is_of_model=True, num_models=1))

    def prepare(self) -> None:
        """Take the best model of the rounds before."""
        kept = self.work.kept.get(self.name)
        self._best = Best(kept["model"], kept["value"]) if kept else None
        self._epochs = 0

    def epoch(self, examples: Examples) -> None:
        """Validate the model as the epoch before left it."""
        if self.work.task != TRAIN:
            return
        # As the round began it was validated already, after the last epoch of the round before.
        if self._epochs:
            self._validate()
        self._epochs += 1

    def halfway(self) -> dict[str, Any]:
        """Return the best model of the epochs before, and their number."""
        return {"best": self._best and vars(self._best), "epochs": self._epochs}

    def go_on(self, halfway: Mapping[str, Any]) -> None:
        """Take them back."""
        self._best, self._epochs = halfway["best"] and Best(**halfway["best"]), halfway["epochs"]

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return the best model of all epochs where this was the last round."""
        self._validate()
        return self._pack_model() if self.work.number == self.work.study.rounds else Message()

    def kept(self) -> dict[str, Any]:
        """Return the best model so far."""
        best = self._find_best()
        return {"model": best.model, "value": best.value}

    def deployed(self, role: str, model: HarmonizedModel) -> HarmonizedModel:
        """Return the best model so far."""
        if self._best is None:
            return model
        best = copy.deepcopy(model)
        best.load_state_dict(self._best.model)
        return best

    def answer(self, task: str) -> Message:
        """Send the best model, or test the super model of all and keep it.

        Raises:
            TrainingError: The site's best model is not in its state.
        """
        if task == ALL_MODELS:
            work = self.work
            arrays, facts = work.message.of(ROLE), work.message.find_entry(ROLE)
            contents = read_contents(arrays, facts, work.study, work.data.training.image_shape)
            write_model_folder(work.folder / FOLDER, contents)
            return Message(meta={"metrics": {"test": evaluate_super_model(work, contents)}})
        # Prepares the parts.
        self.work.models  # noqa: B018
        return self._pack_model()

    def _find_best(self) -> Best:
        if self._best is None:
            raise TrainingError(f"site {self.work.site!r} must hold its model, which is not in its state; restore it")
        return self._best

    def _pack_model(self) -> Message:
        """Return every array of the model, not a difference: the server has none."""
        model = Message(add_role(ROLE, read_arrays(self._find_best().model, _list_array_names(self.work.own))))
        return model | self._pack_features() if self.work.study.recipe.option(ROLE).has_selector else model

    def _pack_features(self) -> Message:
        """Return the moments of the training images' features, unless they came from too few patients."""
        work = self.work
        if withheld := withhold_few_patients(work, ROLE, {}):
            return withheld
        size = work.study.training.batch_size
        found = [
            compute_outputs(measure_features, images, size, work.device) for images in yield_pieces(work.data.training)
        ]
        moments = FeatureMoments.of(torch.from_numpy(np.concatenate(found)))
        arrays = {"count": np.array(moments.count), "mean": moments.mean.numpy(), "scatter": moments.scatter.numpy()}
        return Message(add_role(FEATURES, arrays))

    def _validate(self) -> None:
        work, model = self.work, self.work.own
        part, value = work.data.validation, None
        if len(part):
            value = value_or_none(evaluate(model, part, work.study, work.device)[1])
            # Evaluation leaves a model as it answers, and training goes on.
            model.train()
        best = self._best.value if self._best else None
        # Of level ones, and without validation data, where no model has a value, the last one is taken.
        if best is None or (value is not None and value >= best):
            self._best = Best(copy_state(model), value)


def _list_array_names(model: torch.nn.Module) -> list[str]:
    """Return the names of a whole model's arrays: those that would travel if nothing stayed at home."""
    return traveling_names(model, Recipe())


def _expect_features(study: Study) -> dict[str, Expected]:
    """Return the moments that a site sends with its model; none without a selector."""
    size = study.data.in_channels * NUM_FEATURES
    shapes = {"mean": (size,), "scatter": (size, size)}
    wanted = {"count": expect_float64(())} | {
        name: expect_float64(shape, minimum=None) for name, shape in shapes.items()
    }
    return add_role(FEATURES, wanted) if study.recipe.option(ROLE).has_selector else {}


def _read_moments(arrays: Arrays) -> FeatureMoments:
    """Return a site's moments; the errors of `FeatureMoments`."""
    one = to_tensors(arrays)
    return FeatureMoments(float(one["count"]), one["mean"], one["scatter"])


PART, SITE = HandOverPart, SiteHandOver
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(stays_home="everything", parts=(HandOver(),))) | {
    "recommended": Recipe(stays_home="everything", parts=(HandOver(answer="ensemble"),))
}
