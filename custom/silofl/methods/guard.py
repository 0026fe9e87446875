"""The guard: every site trains a model alone beside the federated one, and keeps what its own validation data favour.

A site's candidates are the federated model (of its best round for this site, where the site has a model of its own and
enough validation data to know it), the mean of the last rounds' models, a copy that it fine-tunes (the head first, then
all), the model that it trained alone, and the mean of the federated and the local model's probabilities, with a share
of the local one that validation data speak for. `silofl.algorithms.guard` picks share and candidate. Only what was
chosen and by how much leaves the site.

The local model is that of the algorithm ``local``, bit for bit: the same batches, steps and dropout. A super model of
several models is one candidate as a whole: mixed with the local model, but neither averaged nor fine-tuned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.algorithms.gain import measure_gain, p_below
from silofl.algorithms.guard import SHARES, choose_candidate, choose_share, weigh_local
from silofl.algorithms.steps import Batch, Loss, frozen_statistics, plain_step
from silofl.data.batches import limit_batch_size
from silofl.data.parts import Examples
from silofl.errors import TrainingError
from silofl.inference import SuperModel
from silofl.inference.case_results import value_or_none
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, read_model_folder, write_model_folder
from silofl.inference.geometry import decide_labels
from silofl.inference.super_model import add_share
from silofl.methods.answer import SiteAnswer
from silofl.methods.average import ROLE as AVERAGE
from silofl.methods.part import TESTED, Kept, Part, Run, SitePart, WeightsOf
from silofl.methods.task import TRAIN, Exchange, Message, Replies
from silofl.models import HarmonizedModel, build_model, build_plain_model
from silofl.models.names import head_names, input_norm_names
from silofl.settings import Section
from silofl.study import Study
from silofl.training.evaluation import join_pieces, score_predictions
from silofl.training.joined import AVERAGED, BLEND, CHOSEN, FEDERATED, LOCAL, TUNED, WORDS, Joined
from silofl.training.local_model import (
    LEAST_UNITS,
    LocalModel,
    State,
    copy_state,
    load_borrowed,
    locate_memo,
    pick_better,
)
from silofl.training.loop import Learner, make_optimizer, set_learning_rate
from silofl.training.metrics import Score, group_positions
from silofl.training.schedule import learning_rate
from silofl.training.units import Units, average_by_unit, find_units

ROLE, TUNE, CHOOSE = "guard", "guard_tune", "guard_choose"
# Of the local model its state and its best round; of the federated its best round, its mean and its fine-tuned copy.
MODELS = 5
# Pixels whose means of two models' probabilities are in memory at once, of each image of a batch.
PIECE = 1 << 18
# The most rounds of fine-tuning, as a share of those of training.
TUNING_SHARE = 0.1


class GuardEntry(Section):
    """What a site says of its choice.

    Attributes:
        joined: The choice; None where it could not make one.
        reason: Why it could not.
    """

    joined: Joined | None = None
    reason: Literal["it has no validation data", "it has trained no model alone"] | None = None


@dataclass(frozen=True)
class GuardPart(Part):
    """The sites' choices at the server.

    Attributes:
        study: The study.
        choices: Site -> its choice; not part of the checkpoint, because the run ends with it.
        unchosen: Site -> why it made no choice, of those that were asked; not in the checkpoint either.
        untuned: Site -> why a round of its fine-tuning failed, the first that did; neither in the checkpoint.
        tested: The sites that have tested what the run reports; not in the checkpoint either.
    """

    study: Study
    choices: dict[str, Joined] = field(default_factory=dict)
    unchosen: dict[str, str] = field(default_factory=dict)
    untuned: dict[str, str] = field(default_factory=dict)
    tested: frozenset[str] = frozenset()
    role: str = ROLE
    entry: ClassVar[type[GuardEntry]] = GuardEntry
    keeps_second: ClassVar[bool] = True

    @property
    def home_bytes(self) -> int:
        """Bytes that a site keeps of it in each round: the local model with its optimiser, and five whole models."""
        return (2 + MODELS) * sum(value.nbytes for value in build_plain_model(self.study, 0).state_dict().values())

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """After the test, let every site that gave one fine-tune its copy round by round, then choose."""
        if moment != TESTED or not self.tested:
            return ()
        steps = [(TUNE, step) for step in range(1, tuning_rounds(self.study) + 1)]
        # A run may end early, and may have rounds after those of training.
        last = min(number, self.study.training_rounds)
        # Of a run that was asked for more rounds, another site may have the model of the earlier end alone.
        about = Exchange(CHOOSE, last, sites=tuple(sorted(self.tested)), is_needed=False, models_round=last)
        return [replace(about, task=task, step=step) for task, step in [*steps, (CHOOSE, 1)]]

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> GuardPart:
        """Take note of a test."""
        # Without a test the site has no super model in its folder, which is what its candidates are made from.
        return self if answer.numbers.metrics.test is None else replace(self, tested=self.tested | {site})

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> GuardPart:
        """Take up the sites' choices, and who could not fine-tune."""
        if exchange.task == TUNE:
            return replace(self, untuned=replies.missing | replies.refused | self.untuned)
        if exchange.task != CHOOSE:
            return self
        entries = {site: answer.entries[ROLE] for site, answer in replies.accepted.items()}
        choices = {site: entry.joined for site, entry in entries.items() if entry.joined}
        without = {site: entry.reason or "no answer" for site, entry in entries.items() if not entry.joined}
        return replace(self, choices=choices, unchosen=replies.missing | replies.refused | without)

    def notes(self, exchange: Exchange) -> Sequence[str]:
        """Return each site's choice or why it made none, and which of them had no fine-tuned copy to choose."""
        if exchange.task != CHOOSE:
            return ()
        chosen = [choice_sentence(site, one) for site, one in self.choices.items()]
        # A late site may have its copy all the same.
        without = [site for site, one in self.choices.items() if site in self.untuned and TUNED not in one.validation]
        chosen += [f"site {site!r} made no choice: {reason}" for site, reason in self.unchosen.items()]
        return chosen + [f"site {site!r} chose without a fine-tuned copy: {self.untuned[site]}" for site in without]

    def results(self, run: Run, tests: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sites' choices, and why the others made none."""
        without = [site for site in run.sites if site not in self.choices]
        reasons = {site: self.unchosen.get(site, "it did not test the model") for site in without}
        return {"joining": self.choices or None, "unchosen": reasons or None}


class SiteGuard(SitePart):
    """The models beside the federated one, and the choice among all."""

    name = ROLE
    tasks = (TUNE, CHOOSE)
    stays = (Kept("the models that it chooses among"),)

    def __init__(self, work: Any) -> None:  # noqa: ANN401 - `silofl.methods.work.Work`
        super().__init__(work)
        self._kept: dict[str, Any] = dict(work.kept.get(ROLE) or {})

    @property
    def is_on(self) -> bool:
        """Whether the site has data to choose by."""
        return len(self.work.data.validation) > 0

    @cached_property
    def local(self) -> LocalModel:
        """The model that is trained alone, as the task finds it; in a site's first task maybe another run's."""
        work, kept = self.work, self._kept.get(LOCAL)
        has_start = work.study.starts_from_file
        if kept is None:
            kept = load_borrowed(self._memo) if work.number == 1 and not has_start else {}
        # What every model of the study begins from; the local one has no input normalisation.
        start = _strip_input_norm(work.own) if has_start and not kept else None
        return LocalModel(work.study, work.device, kept, start)

    def learners(self) -> Mapping[str, Learner]:
        """Return the local model, which learns from the same batches as a study of the algorithm ``local``."""
        if not self.is_on or self.local.is_borrowed(self.work.number):
            return {}
        return {LOCAL: self.local.prepare_learner(self.work.loss, self.work.learning_rate, self.work.number)}

    def epoch(self) -> None:
        """Begin an epoch of the local model."""
        if self.is_on:
            self.local.epoch()

    def validated(self, own: Score) -> None:
        """Keep the site's model, and its local one, where this is their best round so far."""
        if not self.is_on:
            return
        work, kept = self.work, self._kept
        if work.message.find_entry(AVERAGE).get("is_sent"):
            kept[AVERAGED] = copy_state(work.own_deployed)
        else:
            # A training task brings the models of the round before.
            number = work.number - 1 if work.task == TRAIN else work.number
            self.local.validate(number, work.data.validation)
            if has_own_model(work.study):
                value = own.value if own.num_cases else 0.0
                kept[FEDERATED] = pick_better(kept.get(FEDERATED), number, value, work.own_deployed)
        if work.task != TRAIN:
            kept[LOCAL] = self.local.kept()
            self._save()

    def kept(self) -> dict[str, Any]:
        """Return the local model, and the best models so far."""
        if not self.is_on:
            return {}
        self.local.record_round(self.work.number)
        # Its other models are of an earlier end of a run that was asked for more rounds.
        best = {FEDERATED: self._kept[FEDERATED]} if FEDERATED in self._kept else {}
        return best | {LOCAL: self.local.kept()}

    def answer(self, task: str) -> Message:
        """Fine-tune the copy for a round, or choose."""
        if not self.is_on or LOCAL not in self._kept:
            reason = "it has trained no model alone" if self.is_on else "it has no validation data"
            return Message(meta={ROLE: {"reason": reason}} if task == CHOOSE else {})
        if task == TUNE:
            self._tune(self.work.message.meta["step"])
            return Message()
        if not self.work.study.starts_from_file:
            self.local.lend(self._memo, self.work.study.training_rounds)
        return Message(meta={ROLE: {"joined": self._choose_and_test()}})

    @property
    def _memo(self) -> Path | None:
        work = self.work
        if work.study.federation.patience is not None:
            # Another run's has learnt in all rounds, and this one's may learn in fewer.
            return None
        return locate_memo(work.study, work.site, work.data, work.cache, work.device)

    def _save(self) -> None:
        self.work.to_keep = dict(self.work.kept) | {ROLE: self._kept}

    def _tune(self, step: int) -> None:
        """Fine-tune the copy of the federated model for one round: in the first half of them the head alone."""
        work, rounds = self.work, tuning_rounds(self.work.study)
        contents = self._federated
        if contents.rule != "only":
            return
        before = self._kept.get(TUNED) if step > 1 else None
        if step > 1 and (before is None or before["step"] != step - 1):
            raise TrainingError(f"site {work.site!r} must have its fine-tuned copy after round {step - 1}; it has none")
        model = _load_only_model(contents, work.device)
        if before:
            model.load_state_dict(before["state"])
        is_head, head = step <= math.ceil(rounds / 2), head_names(model)
        for name, parameter in model.named_parameters():
            if is_head and name not in head:
                parameter.requires_grad_(False)
        optimizer = make_optimizer(work.study.training, model)
        settings = work.study.training
        set_learning_rate(optimizer, learning_rate(settings.schedule, settings.learning_rate, step, rounds))
        learner = Learner(model, optimizer, work.loss, _head_step if is_head else plain_step)
        work.train({TUNED: learner}, work.data.training, TUNE, step)
        self._kept[TUNED] = {"step": step, "state": copy_state(model)}
        self._save()

    @cached_property
    def _federated(self) -> Contents:
        """The federated candidate: the model that the site has tested, or with enough units that of its best round."""
        work, best = self.work, self._kept.get(FEDERATED)
        tested = read_model_folder(work.folder / FOLDER)
        has_enough = best is not None and len(self._units) >= LEAST_UNITS
        return replace(tested, models={work.site: best["state"]}) if has_enough else tested

    @cached_property
    def _units(self) -> Units:
        """The independent units of the validation data."""
        return self._find_units("validation")

    def _find_units(self, part: str) -> Units:
        data = self.work.data
        return find_units(getattr(data, part), getattr(data.manifest, part) if data.manifest else ())

    def _build_candidates(self) -> dict[str, Contents]:
        """Return every candidate as a super model."""
        work, kept, federated = self.work, self._kept, self._federated
        state = self.local.chosen(len(self._units))
        only = {"rule": "only", "selector": None, "outputs": (), "threshold": None}
        found = {FEDERATED: federated, LOCAL: replace(federated, models={LOCAL: state}, **only)}
        if federated.rule != "only":
            own = LOCAL
            # A site may be called local.
            while own in federated.models:
                own += "_"
            return found | {BLEND: replace(federated, models=federated.models | {own: state}, beside=own)}
        if AVERAGED in kept:
            found[AVERAGED] = replace(federated, models={work.site: kept[AVERAGED]})
        if kept.get(TUNED, {}).get("step") == tuning_rounds(work.study):
            found[TUNED] = replace(federated, models={work.site: kept[TUNED]["state"]})
        (shared,) = federated.models.values()
        found[BLEND] = replace(federated, models={FEDERATED: shared, LOCAL: state}, rule="mean", beside=LOCAL)
        return found

    def _choose_and_test(self) -> dict[str, Any]:
        work, candidates = self.work, self._build_candidates()
        models = {name: SuperModel(one, work.device) for name, one in candidates.items() if name != BLEND}
        # Two models answer once more for it: all volumes' probabilities would fill a memory.
        share = self._choose_share(models[FEDERATED], models[LOCAL])
        validation = self._score_candidates(models, work.data.validation, [*models, BLEND], share)
        unit_of = self._units.unit_of
        by_units = {name: average_by_unit(one.compared, unit_of) for name, one in validation.items()}
        # A mean in which one of them has no share is the other one.
        choice = choose_candidate(by_units, {0.0: FEDERATED, 1.0: LOCAL}.get(share, BLEND))
        wanted = list(dict.fromkeys([FEDERATED, LOCAL, choice.chosen]))
        test = self._score_candidates(models, work.data.test, wanted, share)
        test_units = self._find_units("test")
        local, chosen = (average_by_unit(test[name].compared, test_units.unit_of) for name in (LOCAL, choice.chosen))
        found = measure_gain(local, chosen, choice.chosen == LOCAL)
        self._write_chosen(replace(candidates[choice.chosen], beside_share=share), test[choice.chosen], choice.chosen)
        return {
            "chosen": choice.chosen,
            "default": choice.default,
            "lead": choice.lead,
            "margin": choice.margin,
            # Reports show it with the number of those in the test.
            "unit": test_units.name,
            "num_units": choice.num_units,
            "is_one_person": test_units.is_one_person,
            "validation": {name: value_or_none(one) for name, one in validation.items()},
            "test": {name: value_or_none(test[name]) for name in (FEDERATED, LOCAL)}
            | {CHOSEN: value_or_none(test[choice.chosen])},
            "difference": found.difference,
            "low": found.low,
            "high": found.high,
            "p_below": None if choice.chosen == LOCAL else p_below(local, chosen),
            "num_test_units": found.num_units,
            "verdict": found.verdict,
            "local_share": share,
            "local_since": self.local.since,
        }

    def _choose_share(self, federated: SuperModel, local: SuperModel) -> float:
        """Return the local model's share in the blend."""
        part, study = self.work.data.validation, self.work.study
        by_share: list[dict[str, float]] = [{} for _ in SHARES]
        for rows in _group_cases(part.cases, limit_batch_size(part.images, study.training.batch_size)):
            members = part.select_rows(rows)
            both = [
                _predict_probabilities(model, np.asarray(members.images), members.cases, study.training.batch_size)
                for model in (federated, local)
            ]
            for share, found in zip(SHARES, by_share, strict=True):
                labels = join_pieces(members.targets, [_label_blend(*both, share)])
                found |= score_predictions(labels, members, study).compared
            # Or they would be held while the next ones are computed.
            del both
        scores = np.stack([average_by_unit(one, self._units.unit_of) for one in by_share])
        # A label map is thousands of labels.
        weight = weigh_local(len(self.work.data.training)) if study.task == "classification" else 1.0
        return float(choose_share(scores, weight))

    def _write_chosen(self, chosen: Contents, tested: Score, candidate: str) -> None:
        """Write what the site keeps, with the test of just that."""
        # The facts of a single model are the test of the federated one.
        known = {} if "value" in chosen.facts else chosen.facts
        numbers = tested.numbers() | {"num_patients": self.work.data.test.patients_of(tested.by_case)}
        write_model_folder(self.work.folder / CHOSEN, replace(chosen, facts=known | numbers | {"candidate": candidate}))

    def _score_candidates(
        self, models: Mapping[str, SuperModel], part: Examples, names: Sequence[str], share: float = 0.0
    ) -> dict[str, Score]:
        """Return the score of each candidate on a part of the data; the share is the local model's in the blend."""
        study, size = self.work.study, self.work.study.training.batch_size
        shares = {FEDERATED: 1 - share, LOCAL: share} if BLEND in names else {}
        wanted = {name: models[name] for name in dict.fromkeys([*shares, *names]) if name != BLEND}
        predictions: dict[str, list[NDArray]] = {name: [] for name in names}
        for rows in _group_cases(part.cases, limit_batch_size(part.images, size)):
            images, cases = np.asarray(part.images[rows]), [part.cases[i] for i in rows]
            for name, found in _yield_probabilities(wanted, images, cases, size, shares):
                if name in names:
                    predictions[name].append(decide_labels(found))
                # Or it would be held while the next ones are computed.
                del found
        return {
            name: score_predictions(join_pieces(part.targets, pieces), part, study)
            for name, pieces in predictions.items()
            if pieces
        }


def has_own_model(study: Study) -> bool:
    """Return whether each site has one model, which differs from the other sites', and so a best round of its own."""
    recipe = study.recipe
    if recipe.collects_personal:
        # Then it is one of a super model's, which is a candidate as a whole.
        return False
    is_apart = bool(recipe.at_home) or recipe.mixing is not None or recipe.extra_rounds > 0 or recipe.takes_own_steps
    return len(recipe.traveling_roles) == 1 and is_apart


def tuning_rounds(study: Study) -> int:
    """Return the rounds of fine-tuning; 0 where a round would be more than a tenth of the study's."""
    return math.floor(TUNING_SHARE * study.training_rounds + 1e-9)


def choice_sentence(site: str, one: Joined) -> str:
    """Return what a site keeps, and on what grounds."""
    what = f"site {site!r} keeps {one.kept}"
    grounds = f"by its {one.num_units} validation {one.unit}{'' if one.num_units == 1 else 's'}"
    if one.chosen == one.default:
        return f"{what}, {grounds}: no other model leads by more than the margin of {one.margin:.3f}"
    return f"{what}, {grounds}: it leads {WORDS[one.default]} by {one.lead:.3f}, more than {one.margin:.3f}"


PART, SITE = GuardPart, SiteGuard


def _load_only_model(contents: Contents, device: torch.device) -> HarmonizedModel:
    (state,) = contents.models.values()
    model = build_model(contents.study, contents.image_shape, contents.study.seed)
    model.load_state_dict(state)
    return model.to(device)


def _strip_input_norm(model: HarmonizedModel) -> State:
    return {name: value for name, value in copy_state(model).items() if name not in input_norm_names(model)}


def _head_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
    """Take a plain step of the head; the body's running statistics stay where they are."""
    with frozen_statistics(model):
        return plain_step(model, optimizer, loss, batch)


def _predict_probabilities(model: SuperModel, images: NDArray, cases: Sequence[str], size: int) -> NDArray[np.float32]:
    """Return a super model's probabilities for whole cases, which follow one another, each by its own model."""
    if model.contents.rule == "only":
        return model.probabilities(next(iter(model.contents.models)), images, size)
    return np.concatenate([model.answer(images[rows], size).probabilities for rows in group_positions(cases).values()])


def _yield_probabilities(
    models: Mapping[str, SuperModel], images: NDArray, cases: Sequence[str], size: int, shares: Mapping[str, float]
) -> Iterator[tuple[str, NDArray]]:
    """Yield each model's probabilities, one after the other since a volume's are large, and those of the blend."""
    blend = None
    for name, model in models.items():
        found = _predict_probabilities(model, images, cases, size)
        yield name, found
        if name in shares:
            # As `SuperModel.answer` does: the score must be that of the model which the site keeps.
            blend = add_share(blend, found, shares[name])
        del found
    if blend is not None:
        yield BLEND, blend


def _label_blend(federated: NDArray, local: NDArray, share: float) -> NDArray[np.uint8]:
    """Return the labels by the mean of two models' probabilities (n, classes, ...), of which the local one has a share.

    As `SuperModel.answer` weighs them; piece by piece, since a volume's mean takes as much memory as one of both.
    """
    theirs, ours = (found.reshape(*found.shape[:2], -1) for found in (federated, local))
    labels = np.empty((len(theirs), theirs.shape[2]), np.uint8)
    for start in range(0, theirs.shape[2], PIECE):
        part = np.s_[:, :, start : start + PIECE]
        mean = theirs[part] * np.float32(1 - share) + ours[part] * np.float32(share)
        labels[:, start : start + PIECE] = decide_labels(mean)
    return labels.reshape(len(theirs), *federated.shape[2:])


def _group_cases(cases: Sequence[str], size: int) -> Iterator[list[int]]:
    """Yield the rows of whole cases, together at least ``size`` of them but for the last."""
    rows: list[int] = []
    for members in group_positions(cases).values():
        rows = [*rows, *members]
        if len(rows) >= size:
            yield rows
            rows = []
    if rows:
        yield rows
