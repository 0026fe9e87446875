"""One task at a site: the parts' halves there, the models it begins from, the training, and the answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from silofl.base.errors import TrainingError, quote_value
from silofl.base.schema import dump_record
from silofl.core.steps import Batch, Loss, Step, random_state, set_random_state
from silofl.data.batches import Position, evaluation_batches, num_batches, training_batches
from silofl.data.data_profile import DataProfile
from silofl.data.parts import Examples
from silofl.data.site_data import SiteData
from silofl.data.transforms import build_augmentation
from silofl.data.units import Units, find_units_of
from silofl.models import HarmonizedModel
from silofl.models.names import home_names
from silofl.models.networks import build_models
from silofl.models.seeds import seed_torch
from silofl.parts.half_round import HalfRound
from silofl.parts.load import list_outbound_payloads, load_modules
from silofl.parts.part import ClientState
from silofl.parts.task import TRAIN, Message
from silofl.parts.tensors import to_arrays, to_tensors
from silofl.setup.site import Site
from silofl.study import Study
from silofl.training.device import derive_seed
from silofl.training.evaluation import evaluate
from silofl.training.home_statistics import fix_home_statistics
from silofl.training.loop import Learner, Training, TrainingResult
from silofl.training.losses import NO_TARGETS, count_classes, make_loss
from silofl.training.metrics import Score
from silofl.training.processes import spread_batches
from silofl.training.schedule import learning_rate
from silofl.training.small_cells import round_scores, suppress_small_cells


@dataclass
class Work:
    """One task at a site.

    Attributes:
        site: The site's name.
        study: The study.
        data: The site's data.
        message: The task.
        device: Where to compute.
        processes: Over how many the images of a batch in training are spread.
        folder: The site's folder of the run.
        data_folder: That which holds dataset.json.
        min_patients: Patients in training that a mean over the site's images must come from.
        max_epsilon: What differential privacy may spend at the site; None for any.
        may_send: Whether the site lets a kind of arrays leave.
        settings: The site's settings; None in a task that no site gave.
        kept: Each part's state at home after the round that the task begins from.
        held: That round; 0 where there is none.
        task: Its name.
        cache: Folder of the site's decoded images; None where there is none.
        tested_study: The study of the model that is tested, where a part deploys another network; else None.
        to_keep: Each part's state at home after this task; empty where the task changes none.
        locate_run: The site's folder of a run by ``study`` and ``run``; None where it keeps none.
        on_step: Called before each step of a training, with its number, from 1, and how many there are.
        half: The task as an earlier process left it.
    """

    site: str
    study: Study
    data: SiteData
    message: Message
    device: torch.device
    processes: int = 1
    folder: Path = Path()
    data_folder: Path = Path()
    min_patients: int = 0
    max_epsilon: float | None = None
    may_send: Callable[[str], bool] = lambda kind: True
    settings: Site | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)
    held: int = 0
    task: str = TRAIN
    cache: Path | None = None
    tested_study: Study | None = None
    to_keep: dict[str, Any] = field(default_factory=dict)
    on_step: Callable[[int, int], None] = lambda step, steps: None
    locate_run: Callable[..., Path] | None = None
    half: HalfRound = field(default_factory=HalfRound)
    _scores: dict[str, Any] = field(default_factory=dict, init=False)

    @cached_property
    def parts(self) -> list[SitePart]:
        """The site halves of the study's parts, the models' first."""
        return [module.SITE(self) for module in load_modules(self.study)]

    @cached_property
    def models(self) -> dict[str, HarmonizedModel]:
        """The site's models by role where the task begins: the received arrays over those kept at home."""
        models = build_models(self.study, self.data.training.image_shape)
        # Cached by hand before it is complete: the parts' `prepare` reads this very property.
        vars(self)["models"] = {role: model.to(self.device) for role, model in models.items()}
        for part in self.parts:
            part.prepare()
        return self.models

    def close(self) -> None:
        """Let go of the models and the parts.

        Work and parts hold each other, and large models would wait for Python's garbage collector, which counts
        objects and not their size.
        """
        # They are built again if anybody asks for them.
        for name in ("parts", "models", "deployed"):
            vars(self).pop(name, None)

    @property
    def own(self) -> HarmonizedModel:
        """The site's own model: the personalised one, or the only one."""
        return self.models[self.study.recipe.roles[-1]]

    @cached_property
    def deployed(self) -> dict[str, HarmonizedModel]:
        """The models as the site validates, tests and keeps them; only before training are they those of the task."""
        models = dict(self.models)
        for part in self.parts:
            models = {role: part.deployed(role, model) for role, model in models.items()}
        for model in models.values():
            fix_home_statistics(model, self.data.training.images, self.study, self.device)
        return models

    def list_excluded(self, role: str) -> set[str]:
        """Return the names of a model that no site sends any more, as the server says."""
        return set(self.message.find_entry(role).get("home", ()))

    @property
    def has_learnt(self) -> bool:
        """Whether all that learns of the models has learnt: at this site, or at others where none of it stays home."""
        if self.held > 0:
            return True
        for role in self.study.recipe.traveling_roles:
            model = self.models[role]
            stays = home_names(model, self.study.recipe) | self.list_excluded(role)
            if stays - model.frozen:
                return False
        return True

    def learnt_models(self) -> dict[str, HarmonizedModel]:
        """Return the models as the site validates, tests and keeps them.

        Raises:
            TrainingError: They have not learnt.
        """
        if not self.has_learnt:
            raise TrainingError(
                f"site {self.site!r} has kept no model of a round up to {self.number}, and the server has none of the "
                "part that never leaves it"
            )
        return self.deployed

    def score(self, examples: Examples, is_validation: bool = False) -> dict[str, Any]:
        """Return the score of the site's own model, or of its models together as a part joins them."""
        scores = {}
        for role, model in self.learnt_models().items():
            scores[role] = evaluate(model, examples, self.study, self.device)[1]
        numbers = {role: self.suppress_small_cells(score.numbers(), score, examples) for role, score in scores.items()}
        # Every part is told the scores; the first that joins the models into one score has the word.
        judged = [part.judged(scores, examples, is_validation) for part in self.parts]
        result = next(filter(None, judged), numbers[self.study.recipe.roles[-1]])
        if len(scores) == 1:
            return result
        return result | {"models": {role: said["value"] for role, said in numbers.items()}}

    @property
    def has_enough_patients(self) -> bool:
        """Whether a mean over the site's training images may leave it."""
        return self.data.training.num_patients >= self.min_patients

    def suppress_small_cells(self, numbers: Mapping[str, Any], score: Score, part: Examples) -> dict[str, Any]:
        """Return the numbers of a score that may leave the site: none is of fewer patients than it allows."""
        return suppress_small_cells(numbers, score, part.patient_of, self.min_patients, self.study)

    @property
    def data_profile(self) -> DataProfile:
        """The site's training images, with the modality that the study names."""
        modality = self.study.data.modality
        return replace(self.data.data_profile, modalities=(modality,)) if modality else self.data.data_profile

    def find_units(self, part: str) -> Units:
        """Return what counts once of a part's cases."""
        return find_units_of(self.data, part)

    @property
    def number(self) -> int:
        """The round that the task belongs to."""
        number: int = self.message.meta["round"]
        return number

    @cached_property
    def loss(self) -> Loss:
        """The study's loss, of the labels that this site annotates."""
        part = self.data.training
        # Only class weights need the targets, which may be large volumes.
        targets = part.targets if self.study.training.class_weights is not None else NO_TARGETS
        return make_loss(self.study, part.annotated, part.has_ignored, targets)

    @property
    def learning_rate(self) -> float:
        """The base optimiser's rate in this round."""
        settings = self.study.training
        return learning_rate(settings.schedule, settings.learning_rate, self.number, self.study.training_rounds)

    def answer(self) -> Message:
        """Carry out the task.

        Raises:
            TrainingError: No part of the study knows such a task, or it cannot be done.
        """
        answer = self._train() if self.task == TRAIN else self._ask_parts()
        # What the images are like, and what a hospital agrees to by itself, are no scores.
        exact = {"domain", *(kind.role for kind in list_outbound_payloads(self.study) if kind.is_metadata)}
        meta = {}
        for key, value in answer.meta.items():
            meta[key] = value if key in exact else round_scores(value, key)
        return replace(answer, meta=meta)

    def _ask_parts(self) -> Message:
        answer = Message(meta={"round": self.number})
        tasks = [TRAIN]
        for part in self.parts:
            tasks += part.tasks
            if self.task in part.tasks:
                answer |= part.answer(self.task)
        if self.task not in tasks:
            known = ", ".join(dict.fromkeys(tasks))
            raise TrainingError(f"a task must be one of {known} in this study, not {quote_value(self.task)}")
        return answer

    def learners(self) -> dict[str, Learner]:
        """Return all that learns in a round's training by role, the models first."""
        self.models  # noqa: B018 - prepared before anything learns
        learners: dict[str, Learner] = {}
        for part in self.parts:
            learners |= part.learners()
        return learners

    def train(
        self, learners: Mapping[str, Learner], examples: Examples, *what: object, number: int | None = None
    ) -> dict[str, TrainingResult]:
        """Train for the study's local epochs, seeded by site, round (the task's), epoch and ``what``."""
        number = number or self.number
        training = Training(learners)
        self.half.has_trained = True
        try:
            with self.spread():
                return training.run(self._draw_epochs(training, self._go_on(training), examples, number, *what))
        except TrainingError as error:
            raise TrainingError(f"site {self.site!r}, round {number}: {error}") from None

    def spread(self) -> AbstractContextManager[None]:
        """Spread batches over the site's processes for a while; the errors of `spread_batches`."""
        return spread_batches(self.processes, self.study, self.device)

    def batches_of_all(self, *what: object) -> Iterable[Batch]:
        """Return all training data once, in batches; of volumes an epoch of patches, seeded by ``what`` too."""
        part = self.data.training
        size = self.study.training.batch_size
        if not part.patches:
            return evaluation_batches(part, size, self.device)
        # Volumes of any size do not go through a network in training.
        seed = derive_seed(self.study.seed, self.site, self.number, *what)
        return training_batches(part, size, None, seed, self.device)

    def count_classes(self) -> NDArray[np.int64]:
        """Return how many training examples, or pixels of label maps, have each class; of findings, each finding."""
        return count_classes(self.study, self.data.training.targets)

    def mean_loss(self, model: nn.Module, *what: object) -> float:
        """Return a model's mean loss over the training data, in evaluation mode; it is left as it was."""
        was_training = model.training
        total = 0.0
        count = 0
        model.eval()
        with torch.inference_mode():
            for images, targets in self.batches_of_all(*what):
                total += float(self.loss(model(images), targets)) * len(images)
                count += len(images)
        model.train(was_training)
        return total / count

    def numbers(self, results: Mapping[str, TrainingResult]) -> dict[str, Any]:
        """Return a training's numbers: the own model's loss, others' losses unless they stay home, and the drift."""
        # A part's own task may train none of the models.
        own = self.study.recipe.roles[-1] if self.study.recipe.roles[-1] in results else next(iter(results))
        # A loss is of the images themselves, and no noise covers it.
        metrics = {} if self.study.is_private else {"loss": results[own].loss}
        # A personal model that stays at home was not received, so the drift is that of the model that travels.
        traveling = results.get(self.study.recipe.traveling_roles[-1])
        if traveling and traveling.drift is not None:
            metrics["drift"] = traveling.drift
        for role, result in results.items():
            if role != own and not result.stays:
                metrics[f"loss_{role}"] = result.loss
        numbers = {
            "round": self.number,
            "num_examples": len(self.data.training),
            "num_patients": self.data.training.num_patients,
            "image_shape": list(self.data.training.image_shape),
            "domain": dump_record(self._public_data_profile()),
            "metrics": metrics,
            "steps": results[own].steps,
        }
        if self.data.unreadable:
            numbers["unreadable"] = dict(self.data.unreadable)
        return numbers

    def validation(self) -> dict[str, Any] | None:
        """Return the score of the site's models on its validation data; None where there is none."""
        examples = self.data.validation
        return self.score(examples, is_validation=True) if len(examples) else None

    def scores(self) -> dict[str, Any]:
        """Return the scores of a finished round's models: on validation data and, where the study asks, on test data.

        Those on test data are for curves: nothing at the site or the server goes by them.
        """
        # The validation comes first: parts take it up, and those on test data decide nothing.
        scores = {"validation": self.validation()}
        if self.study.evaluate_every_round and len(self.data.test):
            scores["round_test"] = self.score(self.data.test)
        return scores

    def _public_data_profile(self) -> DataProfile:
        """Return the data profile without the ranges where they come from few images or patients, or may not leave."""
        may_leave = self.has_enough_patients and not self.study.is_private
        return self.data_profile if may_leave else self.data_profile.bare

    def _train(self) -> Message:
        """Validate the received models of the round before, then train one round from them."""
        # Validation of round r travels with the training task of r + 1, which brings the models of round r to the sites
        # anyway: as an exchange of its own it would send every model once more. After the last round no such task
        # follows, and `Course` asks for it.
        learners = self.learners()
        # Before a site's own first round, which may be a later one, a part of its model may be the seed's.
        is_scored = self.number > 1 and self.has_learnt and not self.half.begun
        self._scores = self.scores() if is_scored else self.half.begun.get("scores", {})
        results = self.train(learners, self.data.training)
        update = Message()
        for part in self.parts:
            update |= part.finish(results)
        # Last: where anything before fails, the state of the round before stays on the disk.
        self.to_keep = {part.name: kept for part in self.parts if (kept := part.kept())}
        meta = self.numbers(results)
        # A part's own metrics come last: they may replace those of the training.
        meta["metrics"] = self._scores | meta["metrics"] | update.find_entry("metrics")
        return update | Message(meta=meta)

    def _go_on(self, training: Training) -> dict[str, Any]:
        """Let a training go on where an earlier process was in it; return how that had drawn its epoch."""
        begun = self.half.begun
        self.half.begun = {}
        if begun and begun["training"]["learners"].keys() < training.roles:
            # A model that another run had left is gone, and must learn from the round's first batch on.
            return {}
        if begun:
            training.load_state_dict(begun["training"])
            for part in self.parts:
                if part.name in begun["parts"]:
                    part.load_state_dict(begun["parts"][part.name])
        return begun

    def _draw_epochs(
        self, training: Training, begun: dict[str, Any], examples: Examples, number: int, *what: object
    ) -> Iterator[Iterator[Batch]]:
        """Yield each epoch's batches; of one that an earlier process has begun the rest."""
        settings = self.study.training
        # Slices of volumes are not moved as volumes are.
        is_as_read = examples.has_volumes == (self.study.data.dimensions == 3)
        augment = build_augmentation(self.study, examples.targets.ndim > 1) if is_as_read else None
        for epoch in range(training.epoch or 1, settings.local_epochs + 1):
            # From the round, not from a running state: a resumed run draws what the uninterrupted one would have.
            drawn = begun.get("epoch") or self._draw_epoch(examples, number, epoch, *what)
            rows = drawn["rows"] and [*to_arrays(drawn["rows"]).values()]
            position = Position(training.batch, to_arrays(begun.get("draws", {})))
            batches = training_batches(
                examples, settings.batch_size, augment, drawn["seed"], self.device, rows, settings.sampler, position
            )
            # Only the first epoch was begun before; torch's random numbers go on where that process stopped.
            if begun:
                set_random_state(self.device, begun["random"])
                begun = {}
            count = num_batches(examples, settings.batch_size) if rows is None else len(rows)
            yield self._count_steps(training, batches, count, drawn, position)

    def _draw_epoch(self, examples: Examples, *what: object) -> dict[str, Any]:
        """Begin an epoch; return its seed, and the rows of each batch where a part draws them, in plain values."""
        seed = derive_seed(self.study.seed, self.site, *what)
        # Dropout draws from torch's global generator.
        seed_torch(seed)
        # Every part begins its epoch, whichever draws the rows.
        drawn = [part.epoch(examples) for part in self.parts]
        rows = next((rows for rows in drawn if rows is not None), None)
        if rows is None:
            return {"seed": seed, "rows": None}
        # Secret, because the seed would tell who knows the study what a draw had done to an image.
        seed = secrets.randbits(63)
        seed_torch(seed)
        return {"seed": seed, "rows": to_tensors(dict(enumerate(rows)))}

    def _count_steps(
        self, training: Training, batches: Iterator[Batch], count: int, drawn: dict[str, Any], position: Position
    ) -> Iterator[Batch]:
        """Yield an epoch's batches; before each report the number of its step, and save the training where it is due.

        Args:
            count: Batches of an epoch.
            drawn: What `_draw_epoch` returned.
            position: What the batches are drawn with.
        """
        before = (training.epoch - 1) * count
        steps = self.study.training.local_epochs * count
        for step in range(before + training.batch, before + count):
            if self.half.is_due(step, steps):
                state = {
                    "training": training.state_dict(),
                    "parts": {part.name: of_part for part in self.parts if (of_part := part.state_dict())},
                    "scores": self._scores,
                    "epoch": drawn,
                    "draws": to_tensors(position.describe()),
                    "random": random_state(self.device),
                }
                self.half.save(step, state)
            batch = next(batches)
            self.on_step(step + 1, steps)
            yield batch


class SitePart:
    """A part's half at a site, for one task.

    Args:
        work: The task, and what the site has for it.

    Attributes:
        name: The key of its state in the site's file of a round; empty where it keeps none.
        tasks: Tasks that this part answers, alone or beside another part.
    """

    name: ClassVar[str] = ""
    tasks: tuple[str, ...] = ()

    def __init__(self, work: Work) -> None:
        self.work = work

    @classmethod
    def list_client_state(cls, study: Study, number: int) -> Sequence[ClientState]:
        """Return what `kept` returns after a round, in words: for the ledger where it is lost, and for the report."""
        if cls.kept is SitePart.kept:
            return ()
        return (ClientState(f"what {cls.name!r} keeps there"),)

    def prepare(self) -> None:
        """Load what the models need before the task begins."""

    def answer(self, task: str) -> Message:
        """Carry out one of its ``tasks``, or return what it sends beside another part's answer to it."""
        # Unreachable: `Work.answer` asks only parts that list the task.
        raise NotImplementedError(task)

    def step(self, role: str, step: Step) -> Step:
        """Return the step of a model with this part's additions."""
        return step

    def learners(self) -> Mapping[str, Learner]:
        """Return what this part trains in the same pass over the data."""
        return {}

    def epoch(self, examples: Examples) -> Sequence[NDArray[np.int64]] | None:
        """Begin an epoch, after torch was seeded; return the rows of each batch if this part draws them."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what it needs to go on between two batches, beside the learners: plain values and tensors."""
        return {}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` said in an earlier process, where the learners are prepared."""

    def deployed(self, role: str, model: HarmonizedModel) -> HarmonizedModel:
        """Return the model that the site validates, tests and keeps: this one, or a copy trained further."""
        return model

    def judged(self, scores: Mapping[str, Score], examples: Examples, is_validation: bool) -> dict[str, Any] | None:
        """Receive the scores of the site's models on some data; return one of all together if this part has it."""
        return None

    def finish(self, results: Mapping[str, TrainingResult]) -> Message:
        """Return what leaves after training; numbers beside the loss in ``meta["metrics"]``."""
        return Message()

    def kept(self) -> dict[str, Any]:
        """Return what stays at home until the next round; `list_client_state` names it."""
        return {}
