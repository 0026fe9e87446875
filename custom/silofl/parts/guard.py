"""The guard: every site trains a model alone beside the federated one, and keeps what its own validation data favour.

The federated model is the one that the run tests; the local one is taken from its best round by the site's own
validation. `silofl.core.guard_rule` has the rule. What a site keeps lies in its folder `chosen`, its decision bias
with it; only numbers leave the site.

The local model is that of the algorithm ``local``, bit for bit: the same batches, steps and dropout. A super model of
several models is mixed with it as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.core.findings import decide_findings
from silofl.core.gain import measure_joining
from silofl.core.guard_rule import BIASES, GuardChoice, choose_kept
from silofl.core.mixing import Arrays
from silofl.data.batches import limit_batch_size
from silofl.data.counts import SiteCounts
from silofl.data.parts import Examples
from silofl.data.volumes import Array
from silofl.inference import SuperModel
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, read_model_folder, write_model_folder
from silofl.inference.geometry import decide_labels
from silofl.inference.measured_usual import measure_usual
from silofl.inference.probabilities import shift_foreground
from silofl.models import build_plain_model
from silofl.models.roles import add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.average import ROLE as AVERAGE
from silofl.parts.calling import choose_site_calling
from silofl.parts.part import TESTED, Kept, Part, Run, WeightsOf
from silofl.parts.task import TRAIN, Exchange, Message, Replies
from silofl.parts.work import SitePart, Work
from silofl.schema import dump_record
from silofl.settings import Section
from silofl.study import Study
from silofl.training.case_pictures import PICTURES, add_kept
from silofl.training.evaluation import count_patients, join_pieces, score_predictions, select_regions
from silofl.training.grid_scores import score_classes, score_findings, score_label_maps, yield_means
from silofl.training.joined import AT_ZERO, BLEND, CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined
from silofl.training.local_model import LocalModel, load_borrowed, locate_memo
from silofl.training.loop import Learner
from silofl.training.metrics import Score, group_positions, value_or_none
from silofl.training.units import Units, average_by_unit

ROLE, CHOOSE = "guard", "guard_choose"
# Of the local model: its last state, with Adam's two moments, and that of its best round.
MODELS = 4
# Share of the local model, and bias, of each model of a choice.
Points = Mapping[str, tuple[float, float]]


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
        tested: The sites that have tested what the run reports; not in the checkpoint either.
        pretrained: All arrays of the file that every model of the study begins from; empty where the seed gives them.
            Not in the checkpoint either.
    """

    study: Study
    choices: dict[str, Joined] = field(default_factory=dict)
    unchosen: dict[str, str] = field(default_factory=dict)
    tested: frozenset[str] = frozenset()
    pretrained: Arrays = field(default_factory=dict)
    role: str = ROLE
    entry: ClassVar[type[GuardEntry]] = GuardEntry
    keeps_second: ClassVar[bool] = True

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before any choice."""
        return [cls(study, pretrained=(pretrained or {}) if study.starts_from_file else {})]

    @property
    def home_bytes(self) -> int:
        """Bytes that a site keeps of it in each round: the local model with its optimiser, and its best round."""
        return MODELS * sum(value.nbytes for value in build_plain_model(self.study, 0).state_dict().values())

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """After the test, let every site that gave one choose."""
        if moment != TESTED or not self.tested:
            return ()
        # A run may end early, and may have rounds after those of training. Of a run that was asked for more rounds,
        # another site may have the model of the earlier end alone.
        last = min(number, self.study.training_rounds)
        return [Exchange(CHOOSE, last, sites=tuple(sorted(self.tested)), is_needed=False, models_round=last)]

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return the file's arrays to a site that begins after round 1, in which the models themselves are these."""
        is_late = exchange.task == TRAIN and exchange.round > 1 and not run.held(site, exchange.models_round)
        return Message(add_role(ROLE, self.pretrained) if is_late else {})

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> GuardPart:
        """Collect a site's test."""
        # Without a test the site has no super model in its folder, which is what its candidates are made from.
        return self if answer.numbers.metrics.test is None else replace(self, tested=self.tested | {site})

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> GuardPart:
        """Take up the sites' choices."""
        if exchange.task != CHOOSE:
            return self
        entries = {site: answer.entry(ROLE, GuardEntry) for site, answer in replies.accepted.items()}
        choices = {site: entry.joined for site, entry in entries.items() if entry.joined}
        without = {site: entry.reason or "no answer" for site, entry in entries.items() if not entry.joined}
        return replace(self, choices=choices, unchosen=replies.missing | replies.refused | without)

    def notes(self, exchange: Exchange) -> Sequence[str]:
        """Return each site's choice, or why it made none."""
        if exchange.task != CHOOSE:
            return ()
        chosen = [choice_sentence(site, one) for site, one in self.choices.items()]
        return chosen + [f"site {site!r} made no choice: {reason}" for site, reason in self.unchosen.items()]

    def results(self, run: Run, tests: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sites' choices, and why the others made none."""
        without = [site for site in run.sites if site not in self.choices]
        reasons = {site: self.unchosen.get(site, "it did not test the model") for site in without}
        return {"joining": self.choices or None, "unchosen": reasons or None}


class SiteGuard(SitePart):
    """The local model beside the federated one, and the choice between both."""

    name = ROLE
    tasks = (CHOOSE,)
    stays = (Kept("the local model and its best round"),)

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._kept: dict[str, Any] = dict(work.kept.get(ROLE) or {})

    @property
    def is_on(self) -> bool:
        """Whether the site has data to choose by, and a local model or what one begins from."""
        has_model = LOCAL in self._kept or not self.work.study.starts_from_file or bool(self._start)
        return len(self.work.data.validation) > 0 and has_model

    @cached_property
    def local(self) -> LocalModel:
        """The model that is trained alone, as the task finds it; in a site's first task maybe another run's."""
        work, kept = self.work, self._kept.get(LOCAL)
        has_start = work.study.starts_from_file
        if kept is None:
            kept = load_borrowed(self._memo) if work.number == 1 and not has_start else {}
        return LocalModel(work.study, work.device, kept, self._start if has_start else {})

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
        """Keep the local model where this is its best round so far."""
        work = self.work
        # Before its first round the site has trained none; a mean of the last rounds is validated after them.
        if LOCAL not in self._kept or work.message.find_entry(AVERAGE).get("is_sent"):
            return
        # A training task brings the models of the round before.
        self.local.validate(work.number - 1 if work.task == TRAIN else work.number, work.data.validation)
        if work.task != TRAIN:
            work.to_keep = dict(work.kept) | {ROLE: self._kept | {LOCAL: self.local.kept()}}

    def kept(self) -> dict[str, Any]:
        """Return the local model."""
        if not self.is_on:
            return {}
        self.local.record_round(self.work.number)
        return {LOCAL: self.local.kept()}

    def answer(self, task: str) -> Message:
        """Choose what the site keeps, and test it."""
        has_data = len(self.work.data.validation) > 0
        if not has_data or LOCAL not in self._kept:
            reason = "it has trained no model alone" if has_data else "it has no validation data"
            return Message(meta={ROLE: {"reason": reason}})
        if not self.work.study.starts_from_file:
            self.local.lend(self._memo, self.work.study.training_rounds)
        return Message(meta={ROLE: {"joined": self._choose_and_test()}})

    @property
    def _start(self) -> Arrays:
        """The arrays of the file that all models begin from, where the task brings them."""
        return self.work.message.of(self.work.study.recipe.traveling_roles[-1] if self.work.number == 1 else ROLE)

    @property
    def _memo(self) -> Path | None:
        work = self.work
        if work.study.federation.patience is not None:
            # Another run's has learnt in all rounds, and this one's may learn in fewer.
            return None
        return locate_memo(work.study, work.site, work.data, work.cache, work.device)

    @cached_property
    def _contents(self) -> dict[str, Contents]:
        """The federated model as the site has tested it, and its own model."""
        federated, state = read_model_folder(self.work.folder / FOLDER), self.local.best
        # All other facts are of the federated run; those of a single model are the federated one's test.
        home = {key: one for key, one in federated.facts.items() if key in ("stays_home", "run")}
        federated = replace(federated, facts=home) if "value" in federated.facts else federated
        study, shape, domain = federated.study, federated.image_shape, self.work.domain
        own = Contents(study, shape, {LOCAL: state}, "only", facts=home, domain=domain)
        return {FEDERATED: federated, LOCAL: own}

    @cached_property
    def _pair(self) -> tuple[SuperModel, SuperModel]:
        """The federated and the local model."""
        federated, local = (SuperModel(self._contents[name], self.work.device) for name in (FEDERATED, LOCAL))
        return federated, local

    def _choose_and_test(self) -> dict[str, Any]:
        work, units = self.work, self.work.find_units("validation")
        choice = self._choose(units)
        points = {
            FEDERATED: (0.0, 0.0),
            SHIFTED: (0.0, choice.federated_bias),
            LOCAL: (1.0, choice.own_bias),
            AT_ZERO: (1.0, 0.0),
            CHOSEN: (choice.share, choice.bias),
        }
        validation = self._score(work.data.validation, *self._predict(work.data.validation, points))
        predictions, means = self._predict(work.data.test, points)
        test = self._score(work.data.test, predictions, means)
        self._write_kept(choice, validation[CHOSEN], test[CHOSEN], predictions[CHOSEN])
        return {
            "chosen": _name_kept(choice),
            "local_share": choice.share,
            "bias": choice.bias,
            "own_bias": choice.own_bias,
            "lead": choice.lead,
            "num_units": choice.num_units,
            "validation": {name: value_or_none(one) for name, one in validation.items()},
            "test": {name: value_or_none(one) for name, one in test.items()},
            "local_since": self.local.since,
            **self._compare(test, choice),
        }

    def _compare(self, test: Mapping[str, Score], choice: GuardChoice) -> dict[str, Any]:
        """Return what the site's test units say of what it keeps."""
        units = self.work.find_units("test")
        own, at_zero, kept = (average_by_unit(test[name].compared, units.unit_of) for name in (LOCAL, AT_ZERO, CHOSEN))
        gains = own - at_zero
        return asdict(measure_joining(own, at_zero, kept, keeps_own=choice.share == 1)) | {
            "unit": units.name,
            "is_one_person": units.is_one_person,
            "own_gain": float(np.nanmean(gains)) if np.isfinite(gains).any() else None,
        }

    def _choose(self, units: Units) -> GuardChoice:
        """Choose share and biases by the validation data."""
        part, study = self.work.data.validation, self.work.study
        is_map = study.task == "segmentation"
        score_answers = score_findings if study.is_multilabel else score_classes
        scored = select_regions(part, study), study.metric == "dice_with_background", part.annotated
        found: dict[str, NDArray[np.float64]] = {}
        for members, *both in self._yield_answers(part):
            for case, rows in group_positions(members.cases).items():
                # A view: a copy of a volume's answers would take as much memory as they do.
                theirs, ours = (one[rows[0] : rows[-1] + 1] for one in both)
                truth = np.stack([members.targets[row] for row in rows])
                found[case] = (
                    score_label_maps(theirs, ours, truth, *scored) if is_map else score_answers(theirs, ours, truth)
                )
        return choose_kept(average_by_unit(found, units.unit_of), BIASES if is_map else np.zeros(1))

    def _write_kept(self, choice: GuardChoice, validated: Score, tested: Score, predictions: Array) -> None:
        """Write the model that the site keeps, with the test of just that, and show what it predicts."""
        work, kept = self.work, self._contents[_name_kept(choice)]
        calling, read = choose_site_calling(work, lambda part: validated, tested)
        numbers = count_patients(tested, work.data.test) | read
        counts = SiteCounts.of(work.data, contrasts=work.study.data.channel_names)
        own = {"candidate": _name_kept(choice), "data": {work.site: dump_record(counts)}}
        facts = kept.facts | numbers | own
        kept = replace(kept, bias=choice.bias, calling=calling, facts=facts)
        usual = measure_usual(SuperModel(kept, work.device), work.data, work.site, work.min_patients)
        kept = replace(kept, usual={work.site: usual} if usual else {})
        write_model_folder(work.folder / CHOSEN, kept)
        add_kept(work.folder / PICTURES, work.data.test, predictions, tested.by_case)

    def _predict(self, part: Examples, points: Points) -> tuple[dict[str, Array], dict[str, NDArray]]:
        """Return the label maps, classes or sets of findings of both models' mean at each point, in the part's order.

        Of a classification also the classes' mean probabilities, (N, classes).
        """
        pieces: dict[str, list[NDArray]] = {name: [] for name in points}
        means: dict[str, list[NDArray]] = {name: [] for name in points if self.work.study.task != "segmentation"}
        decide = _decide_findings if self.work.study.is_multilabel else _decide
        for _, federated, local in self._yield_answers(part):
            for name, (share, bias) in points.items():
                pieces[name].append(decide(federated, local, share, bias))
                if name in means:
                    means[name].append(_mix(federated, local, share))
        labels = {name: join_pieces(part.targets, found) for name, found in pieces.items()}
        return labels, {name: np.concatenate(found) for name, found in means.items()}

    def _score(
        self, part: Examples, predictions: Mapping[str, Array], means: Mapping[str, NDArray]
    ) -> dict[str, Score]:
        study = self.work.study
        return {name: score_predictions(one, part, study, means.get(name)) for name, one in predictions.items()}

    def _yield_answers(self, part: Examples) -> Iterator[tuple[Examples, NDArray, NDArray]]:
        """Yield whole cases with the federated and the local model's probabilities.

        Two models answer anew for each purpose: all volumes' probabilities would fill a memory.
        """
        size = self.work.study.training.batch_size
        for rows in _group_cases(part.cases, limit_batch_size(part.images, size)):
            members = part.select_rows(rows)
            federated, local = (
                _predict_probabilities(one, np.asarray(members.images), members.cases, size) for one in self._pair
            )
            yield members, federated, local
            # Or they would be held while the next ones are computed.
            del federated, local


def choice_sentence(site: str, one: Joined) -> str:
    """Return what a site keeps, and on what grounds."""
    text = one.threshold
    units = f"{one.num_units} validation {one.unit}{'' if one.num_units == 1 else 's'}"
    lead = f"the best mean of both models scores {one.lead:+.3f} beside its own model"
    return f"site {site!r} keeps {one.kept}: by its {units} {lead}{f'. On test data {text}' * bool(text)}"


PART, SITE = GuardPart, SiteGuard


def _name_kept(choice: GuardChoice) -> str:
    """Name what a site keeps: a mean without one of the models is the other one."""
    return {0.0: FEDERATED, 1.0: LOCAL}.get(choice.share, BLEND)


def _predict_probabilities(model: SuperModel, images: NDArray, cases: Sequence[str], size: int) -> NDArray[np.float32]:
    """Return a super model's probabilities for whole cases, which follow one another, each by its own model."""
    if model.contents.rule == "only":
        return model.probabilities(next(iter(model.contents.models)), images, size)
    return np.concatenate([model.answer(images[rows], size).probabilities for rows in group_positions(cases).values()])


def _mix(federated: NDArray, local: NDArray, share: float) -> NDArray:
    return (1 - share) * federated + share * local


def _decide_findings(federated: NDArray, local: NDArray, share: float, _: float) -> NDArray[np.int64]:
    """Return the sets of findings by two models' mean (n, findings), of which there is no bias."""
    return decide_findings(_mix(federated, local, share))


def _decide(federated: NDArray, local: NDArray, share: float, bias: float) -> NDArray[np.uint8]:
    """Return the labels by two models' mean (n, classes, ...) with a bias, as `SuperModel` does."""
    labels = np.empty((len(federated), np.size(federated[0, 0])), np.uint8)
    for image, piece, mean in yield_means(federated, local, share):
        labels[image, piece] = decide_labels(shift_foreground(torch.from_numpy(mean[None]), bias).numpy())[0]
    return labels.reshape(len(labels), *federated.shape[2:])


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
