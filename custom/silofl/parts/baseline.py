"""The baseline comparison: every site trains a model alone beside the federated one, and keeps the better one.

The federated model is the one that the run tests. The local one goes on learning after it, to its end, and is taken
from its best round by the site's own validation. `silofl.core.baseline_rule` has the rule. What a site keeps lies in
its folder `chosen`, its decision bias with it; only numbers leave the site.

Where the normalisation is free and training starts from the seed, a site trains two local models, with the study's
normalisation and with BatchNorm, and takes the one that validates better: a federated model that beats a local one by
its normalisation alone gives nothing. With a falling rate that one alone is trained anew.

The local model is that of the algorithm ``local``, bit for bit: the same batches, steps and dropout. Where each site
trains alone, it is the run's own model: it goes on before the test, which is of its best round at each site.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.base.errors import ConfigError
from silofl.base.schema import dump_record
from silofl.base.settings import Section
from silofl.core.baseline_rule import BIASES, BaselineChoice, choose_kept
from silofl.core.findings import decide_findings
from silofl.core.gain import measure_joining
from silofl.core.mixing import Arrays
from silofl.core.training_end import is_finished
from silofl.data.batches import limit_batch_size
from silofl.data.counts import SiteCounts
from silofl.data.parts import Examples
from silofl.data.units import Units
from silofl.data.volumes import Array
from silofl.inference import SuperModel
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, OWN, read_model_folder, write_model_folder
from silofl.inference.geometry import decide_labels
from silofl.inference.measured_reference import measure_reference_statistics
from silofl.inference.probabilities import shift_foreground
from silofl.models import HarmonizedModel, build_plain_model
from silofl.models.networks import check_network, has_free_normalization
from silofl.models.roles import add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.operating_points import choose_site_operating_point
from silofl.parts.part import TESTED, UNTESTED, ClientState, Outcome, Part, Reported, Run, WeightsOf
from silofl.parts.task import TEST, TRAIN, Exchange, Message, PayloadSpec, SiteResults
from silofl.parts.work import SitePart, Work
from silofl.study import Study
from silofl.study.sections import CLASS_MEANS
from silofl.training.case_pictures import PICTURES, add_own
from silofl.training.evaluation import count_patients, join_pieces, score_predictions, select_regions
from silofl.training.grid_scores import score_classes, score_findings, score_label_maps, yield_probabilities
from silofl.training.home_statistics import fix_home_statistics
from silofl.training.joined import AT_ZERO, CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined, ReportedLocalModel
from silofl.training.local_model import ANEW, LocalModel, copy_state, lend, load_borrowed, local_rounds, locate_memo
from silofl.training.loop import Learner
from silofl.training.metrics import Score, average_by_unit, group_positions, value_or_none
from silofl.training.site_score import SiteScore
from silofl.training.small_cells import is_withheld

ROLE, TRAIN_LOCAL, CHOOSE = "guard", "guard_train", "guard_choose"
OWN_BEST = "of each site its own best round on its own validation data"
# The key of the local model with BatchNorm, where the study's normalisation is another.
BATCH = "local_batch"
# Local model -> the key of the same that is trained anew, in more rounds.
LONGER = {LOCAL: "longer", BATCH: "longer_batch"}
# Of a local model: its last state, with Adam's two moments, and that of its best round.
MODELS = 4


class BaselineMetadata(Section):
    """What a site says of its own model, and of its choice.

    Attributes:
        goes_on: Whether its own model learns in one round more.
        own: The own model that it reports, where each site trains alone.
        validation: The score of that.
        joined: The choice; None where it could not make one.
        reason: Why it could not.
    """

    goes_on: bool = False
    own: ReportedLocalModel | None = None
    validation: SiteScore | None = None
    joined: Joined | None = None
    reason: (
        Literal[
            "it has no validation data",
            "it has trained no model alone",
            "its comparison is withheld: of too few patients",
        ]
        | None
    ) = None


@dataclass(frozen=True)
class BaselinePart(Part):
    """The sites' choices at the server.

    Attributes:
        study: The study.
        choices: Site -> its choice; not part of the checkpoint, because the run ends with it.
        unchosen: Site -> why it made no choice, of those that were asked; not in the checkpoint either.
        tested: The sites that have tested what the run reports, each with what it said then of its own model; not in
            the checkpoint either.
        ended: Those of them whose own model learns no more; not in the checkpoint either.
        steps: The rounds that own models were asked to learn after the test; not in the checkpoint either.
        pretrained: All arrays of the file that every model of the study begins from; empty where the seed gives them.
            Not in the checkpoint either.
    """

    study: Study
    choices: dict[str, Joined] = field(default_factory=dict)
    unchosen: dict[str, str] = field(default_factory=dict)
    tested: dict[str, BaselineMetadata] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()
    steps: int = 0
    pretrained: Arrays = field(default_factory=dict)
    role: str = ROLE

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before any choice."""
        return [cls(study, pretrained=(pretrained or {}) if study.starts_from_file else {})]

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Let the sites train their own models to the end by rounds; after a federated model's test, then choose."""
        is_alone = self.study.recipe.trains_alone
        # A run may end early, and may have rounds after those of training.
        ending = min(number, run.study.last_training)
        sites = set(self.tested)
        if is_alone:
            # Of a run that was asked for more rounds, another site may have the model of the earlier end alone.
            sites = {site for site in run.sites if run.held(site, ending)}
        if moment != (UNTESTED if is_alone else TESTED) or not sites or self.choices or self.unchosen:
            return ()
        learning = tuple(sorted(sites - self.ended)) if self.steps < local_rounds(self.study, ending) else ()
        # Beside a federated model that still rises there is no verdict, however long the own one learns.
        if learning and goes_on(self.study) and (is_alone or is_finished(run.measure_last_rise())):
            return [Exchange(TRAIN_LOCAL, ending, self.steps + 1, learning, is_needed=False, models_round=ending)]
        if is_alone:
            return ()
        return [Exchange(CHOOSE, ending, sites=tuple(sorted(sites)), is_needed=False, models_round=ending)]

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return the file's arrays to a site whose model begins from them after round 1, which brings the models."""
        is_late = exchange.task == TRAIN and exchange.round > 1 and not run.held(site, exchange.models_round)
        # With a falling rate the local model is trained anew after the test, from the file's arrays.
        is_anew = exchange.task == TRAIN_LOCAL and exchange.step == 1 and self.study.training.has_falling_rate
        meta = {ROLE: {"rise": run.measure_last_rise()}} if exchange.task == CHOOSE else {}
        arrays = add_role(ROLE, self.pretrained) if is_late or is_anew else {}
        return Message(arrays, meta)

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return what a site may say."""
        return PayloadSpec(metadata=BaselineMetadata)

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> BaselinePart:
        """Collect a site's test."""
        # Without a test the site has no super model in its folder, which is what its candidates are made from.
        if answer.numbers.metrics.test is None:
            return self
        return replace(self, tested=self.tested | {site: answer.metadata(ROLE, BaselineMetadata)})

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Report of each site that trains alone its own best round, if any was validated."""
        if not self.study.recipe.trains_alone or not reported.validation:
            return reported
        validation = {site: entry.validation for site, entry in self.tested.items() if entry.validation}
        rounds = {site: entry.own.best_round for site, entry in self.tested.items() if entry.own}
        return replace(
            reported,
            round=min(run.finished_rounds, run.study.last_training),
            parts=run.parts,
            validation=validation or reported.validation,
            how=OWN_BEST,
            rounds=rounds,
        )

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> BaselinePart:
        """Take up the sites' choices, and whose own models learn no more: a site that is silent has none that does."""
        if exchange.task not in (TRAIN_LOCAL, CHOOSE):
            return self
        entries = {site: answer.metadata(ROLE, BaselineMetadata) for site, answer in site_results.accepted.items()}
        if exchange.task == TRAIN_LOCAL:
            # A site that was asked and is silent would be asked for ever, so its model counts as ended.
            learning = {site for site, entry in entries.items() if entry.goes_on}
            return replace(self, steps=self.steps + 1, ended=self.ended | {*(exchange.sites or ())} - learning)
        choices = {site: entry.joined for site, entry in entries.items() if entry.joined}
        unchosen = {site: entry.reason or "no answer" for site, entry in entries.items() if not entry.joined}
        return replace(self, choices=choices, unchosen=site_results.missing | site_results.refused | unchosen)

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return why sites made no choice."""
        if exchange.task != CHOOSE:
            return ()
        return [f"site {site!r} made no choice: {reason}" for site, reason in self.unchosen.items()]

    def outcome(self, run: Run, tests: Mapping[str, Any]) -> Outcome:
        """Return the sites' choices; of sites that train alone, their own models."""
        if self.study.recipe.trains_alone:
            local_models = {site: entry.own for site, entry in self.tested.items() if entry.own}
            return Outcome(results={"local_models": local_models or None})
        return Outcome(results={"joining": self.choices or None})


class SiteBaseline(SitePart):
    """The local model beside the federated one and after it, and the choice between both."""

    name = ROLE
    tasks = (TRAIN_LOCAL, CHOOSE, TEST)

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._kept: dict[str, Any] = dict(work.kept.get(ROLE) or {})
        # The run's own model learns as the local one would, so that no second one learns beside it.
        self._is_the_runs = work.study.recipe.trains_alone

    @classmethod
    def list_client_state(cls, study: Study, number: int) -> Sequence[ClientState]:
        """Return the local model, which is the run's own one where each site trains alone."""
        is_alone = study.recipe.trains_alone
        count = len(list_local_studies(study)) + study.training.has_falling_rate
        what = "its best round" if is_alone else "the local model and its best round"
        return [
            ClientState(what, is_of_model=is_alone, num_models=count * MODELS, has_second=study.compares_with_baseline)
        ]

    @property
    def is_on(self) -> bool:
        """Whether the site has data to choose by, and a local model or what one begins from."""
        has_model = LOCAL in self._kept or not self.work.study.starts_from_file or bool(self._start)
        return len(self.work.data.validation) > 0 and (has_model or self._is_the_runs)

    @cached_property
    def studies(self) -> dict[str, Study]:
        """Key of each local model that the site trains -> the study that it learns by."""
        work = self.work
        studies = list_local_studies(work.study)
        is_single = len(work.data.training) == 1 and not work.study.data.patches
        if is_single or work.processes > 1:
            # BatchNorm learns from whole batches of several images.
            return {LOCAL: studies[LOCAL]}
        if BATCH in studies and BATCH not in self._kept:
            try:
                check_network(studies[BATCH], work.data.image_shape)
            except ConfigError:
                # BatchNorm cannot learn from a single value either.
                return {LOCAL: studies[LOCAL]}
        return studies

    @cached_property
    def models(self) -> dict[str, LocalModel]:
        """The models that are trained alone, as the task finds them; in a site's first task maybe another run's."""
        return {name: self._find_local(name) for name in self.studies}

    def _find_local(self, name: str) -> LocalModel:
        work = self.work
        rounds = work.study.training_rounds
        is_due = name not in self._kept and work.number == 1
        if self._is_the_runs and name == LOCAL:
            # The run's own model is trained in all of its rounds, and may be another run's after them.
            is_due = work.task != TRAIN and self._build(name, name, rounds).is_whole
        if is_due and self._is_shared:
            # A study of the other normalisation may have left it, under its own key.
            keys = {LOCAL: name, LONGER[LOCAL]: LONGER[name]}
            for key, state in load_borrowed(self._find_memo(name)).items():
                self._kept[keys[key]] = state
        return self._build(name, name, rounds)

    @property
    def _best(self) -> str:
        """The key of the local model that validates best; of two that are level the study's."""
        return max(self.models, key=lambda name: self.models[name].best_value)

    @property
    def _is_shared(self) -> bool:
        """Whether runs leave the local model to one another."""
        return goes_on(self.work.study) and not self.work.study.starts_from_file

    @cached_property
    def longer(self) -> LocalModel | None:
        """The model that is trained anew in more rounds, where the rate falls; None where nothing can begin it."""
        study = self.work.study
        name = self._best
        has_start = not study.starts_from_file or LONGER[name] in self._kept or bool(self._start)
        if not study.training.has_falling_rate or not has_start:
            return None
        return self._build(name, LONGER[name], ANEW * study.training_rounds)

    def _build(self, name: str, key: str, rounds: int) -> LocalModel:
        start = self._start if self.work.study.starts_from_file else {}
        return LocalModel(self.studies[name], self.work.device, self._kept.get(key, {}), start, rounds)

    def learners(self) -> Mapping[str, Learner]:
        """Return the local models, which learn from the same batches as a study of the algorithm ``local``."""
        if not self.is_on:
            return {}
        number = self.work.number
        learners = {}
        for name, model in self.models.items():
            is_the_runs = self._is_the_runs and name == LOCAL
            if not is_the_runs and not model.has_learnt(number):
                learners[name] = model.prepare_learner(self.work.loss, number)
        return learners

    def epoch(self, examples: Examples) -> None:
        """Begin an epoch of the models that learn."""
        if self.is_on:
            for model in self._learning.values():
                model.epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the local models' random numbers, and their validations, which the task may have begun with."""
        if not self.is_on:
            return {}
        return {
            "draws": {name: model.draws.state for name, model in self._learning.items()},
            "values": {name: model.kept.get("values", {}) for name, model in self.models.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take them back."""
        for name, state in saved["draws"].items():
            self._learning[name].draws.state = state
        for name, values in saved["values"].items():
            model = self.models[name]
            for number in values.keys() - model.kept.get("values", {}).keys():
                model.take_value(number, values[number])

    def judged(self, scores: Mapping[str, Score], examples: Examples, is_validation: bool) -> None:
        """Keep each local model where this is its best round so far."""
        work = self.work
        # Before its first round the site has trained none.
        if not is_validation or LOCAL not in self._kept:
            return
        # A training task brings the models of the round before.
        number = work.number - 1 if work.task == TRAIN else work.number
        own = scores[work.study.recipe.roles[-1]] if work.study.recipe.trains_alone else None
        for name, model in self.models.items():
            model.validate(number, work.data, own if name == LOCAL else None)
        if work.task != TRAIN:
            self._keep()

    def kept(self) -> dict[str, Any]:
        """Return the local models, and what another run has trained of them."""
        if not self.is_on:
            return {}
        for name, model in self.models.items():
            if self._is_the_runs and name == LOCAL:
                optimizers = self.work.parts[0].kept().get("optimizer", {})
                model.adopt(self.work.number, self.work.own, optimizers.get(self.work.study.recipe.roles[-1], {}))
            else:
                model.record_round(self.work.number)
        return self._kept | {name: model.kept for name, model in self.models.items()}

    def deployed(self, role: str, model: HarmonizedModel) -> HarmonizedModel:
        """Return the own model of its best round for the test of a site that trains alone."""
        if not self._reports_own:
            return model
        own = self._own[0]
        if self._best == LOCAL:
            best = copy.deepcopy(model)
        else:
            best = build_plain_model(own.study, own.study.seed).to(self.work.device)
            self.work.tested_study = own.study
        best.load_state_dict(own.best)
        return best

    def _report_own(self) -> Message:
        """Say which round of its own a site that trains alone has tested, and what its validation was."""
        if not self._reports_own:
            return Message()
        model, rise = self._own
        own = {
            "rounds": model.last,
            "best_round": model.best_round,
            "is_finished": is_finished(rise),
            "normalization": self._normalization,
        }
        # Measured again: the run reports the validation of this best round, not of its last one.
        score = self.work.score(self.work.data.validation)
        return Message(meta={ROLE: {"own": own, "validation": score}})

    @property
    def _reports_own(self) -> bool:
        return self.work.task == TEST and self.work.study.recipe.trains_alone and LOCAL in self._kept

    def answer(self, task: str) -> Message:
        """Train the own model for a round more, or choose what the site keeps, and test it."""
        if task == TEST:
            return self._report_own()
        if not len(self.work.data.validation):
            entry: dict[str, Any] = {"reason": "it has no validation data"}
        elif LOCAL not in self._kept:
            entry = {"reason": "it has trained no model alone"}
        elif task == TRAIN_LOCAL:
            entry = {"goes_on": self._train_on()}
        elif joined := self._choose_and_test():
            entry = {"joined": joined}
        else:
            entry = {"reason": "its comparison is withheld: of too few patients"}
        return Message(meta={ROLE: entry})

    @property
    def _learning(self) -> dict[str, LocalModel]:
        """The models that learn in this task, by the key of the learner."""
        if self.work.task != TRAIN and self.longer:
            return {LOCAL: self.longer}
        return self.models

    @property
    def _normalization(self) -> str | None:
        """The normalisation of the best local model; None where the site has trained one alone."""
        return self.studies[self._best].model.normalization if len(self.studies) > 1 else None

    def _train_on(self) -> bool:
        """Train the own models for one round more, unless they have ended; return whether one has not."""
        work = self.work
        waiting = {name: model for name, model in self._learning.items() if not model.has_ended}
        if waiting:
            # A model that has learnt in more rounds waits for the other one.
            number = min(model.last for model in waiting.values()) + 1
            learning = {name: model for name, model in waiting.items() if model.last < number}
            learners = {name: model.prepare_learner(work.loss, number) for name, model in learning.items()}
            work.train(learners, work.data.training, number=number)
            for model in learning.values():
                model.record_round(number)
                model.validate(number, work.data)
            self._keep()
        return any(not model.has_ended for model in self._learning.values())

    def _keep(self) -> None:
        self._kept |= {name: model.kept for name, model in self.models.items()}
        if self.work.task == TRAIN_LOCAL and self.longer:
            self._kept[LONGER[self._best]] = self.longer.kept
        self.work.to_keep = dict(self.work.kept) | {ROLE: self._kept}
        if not self._is_shared:
            return
        for name, model in self.models.items():
            is_last = self.longer if self.longer and name == self._best else model
            if is_last.has_ended and model.is_whole:
                # Every study finds it under the keys of its own local model.
                lent = {LOCAL: self._kept[name]}
                if LONGER[name] in self._kept:
                    lent[LONGER[LOCAL]] = self._kept[LONGER[name]]
                lend(self._find_memo(name), lent)

    @property
    def _own(self) -> tuple[LocalModel, float | None]:
        """The own model, and by how much its last rounds raised it, or twice the rounds where the rate falls."""
        local = self.models[self._best]
        longer = self.longer
        if not self.work.study.training.has_falling_rate:
            return local, local.rise
        if longer is None or not longer.has_ended:
            return local, None
        rise = longer.best_value - local.best_value
        return (local if is_finished(rise) else longer), rise

    @property
    def _start(self) -> Arrays:
        """The arrays of the file that all models begin from, where the task brings them."""
        is_first = self.work.number == 1 and self.work.task == TRAIN
        return self.work.message.of(self.work.study.recipe.traveling_roles[-1] if is_first else ROLE)

    def _find_memo(self, name: str) -> Path | None:
        work = self.work
        return locate_memo(self.studies[name], work.site, work.data, work.cache, work.device)

    @cached_property
    def _contents(self) -> dict[str, Contents]:
        """The federated model as the site has tested it, and its own."""
        federated = read_model_folder(self.work.folder / FOLDER)
        local, _ = self._own
        # All other facts are of the federated run; those of a single model are the federated one's test.
        rounds = {"rounds": local.last, "reported_round": local.best_round}
        facts = {key: fact for key, fact in federated.facts.items() if key in ("stays", "stays_home", "run", *rounds)}
        if "value" in federated.facts:
            federated = replace(federated, facts=facts)
        study = federated.study
        if self._best == BATCH:
            study = _with_batchnorm(study)
        local.model.load_state_dict(local.best)
        # The best state is that after training, which takes no home statistics.
        fix_home_statistics(local.model, self.work.data.training.images, study, self.work.device)
        own = Contents(
            study=study,
            image_shape=federated.image_shape,
            models={LOCAL: copy_state(local.model)},
            rule="only",
            facts=facts | rounds,
            data_profile=self.work.data_profile,
        )
        return {FEDERATED: federated, LOCAL: own}

    def _choose_and_test(self) -> dict[str, Any] | None:
        """Return what leaves of the choice; None where it is of too few patients."""
        work = self.work
        choice = self._choose(work.find_units("validation"))
        points = {
            FEDERATED: {FEDERATED: 0.0, SHIFTED: choice.federated_bias},
            LOCAL: {LOCAL: choice.local_bias, AT_ZERO: 0.0},
        }
        kept = LOCAL if choice.keeps_local else SHIFTED
        # Of the validation data only the kept model is scored anew; the choice has compared both by cases already.
        model = _name_kept(choice)
        validated = self._score(work.data.validation, {model: {kept: points[model][kept]}})[0][kept]
        test, predictions = self._score(work.data.test, points)
        self._write_kept(choice, validated, test[kept])
        add_own(work.folder / PICTURES, work.data.test, predictions[LOCAL], test[LOCAL].by_case)
        test[CHOSEN] = test[kept]
        for part, score in ((work.data.validation, validated), (work.data.test, test[kept])):
            if is_withheld(score, part.patient_of, work.min_patients, work.study):
                return None
        # What the choice compares.
        validation = {
            FEDERATED: choice.federated_at_zero,
            SHIFTED: choice.federated,
            LOCAL: choice.own,
            AT_ZERO: choice.local_at_zero,
        }
        validation[CHOSEN] = validation[kept]
        own, rise = self._own
        rises = {"own": rise, "federated": work.message.find_entry(ROLE).get("rise")}
        unfinished = tuple(name for name, rise in rises.items() if not is_finished(rise))
        return {
            "chosen": _name_kept(choice),
            "bias": choice.bias,
            "local_bias": choice.local_bias,
            # As they are shown.
            "lead": round(choice.federated, 3) - round(choice.own, 3),
            "num_units": choice.num_units,
            "validation": validation if choice.num_units else dict.fromkeys(validation),
            "test": {name: value_or_none(score) for name, score in test.items()},
            "local_rounds": own.last,
            "local_best_round": own.best_round,
            "local_normalization": self._normalization,
            "unfinished": unfinished,
            **self._compare(test, choice, not unfinished),
        }

    def _compare(self, test: Mapping[str, Score], choice: BaselineChoice, are_finished: bool) -> dict[str, Any]:
        """Return what the site's test units say of the federated model beside its own, whichever it keeps."""
        units = self.work.find_units("test")
        values = {name: average_by_unit(score.compared, units.unit_of) for name, score in test.items()}
        # The same units for all, so that their means can be compared.
        is_tested = np.isfinite(values[LOCAL]) & np.isfinite(values[SHIFTED])
        by_unit = None
        if is_tested.any() and self.work.study.metric not in CLASS_MEANS:
            by_unit = {name: float(of_units[is_tested].mean()) for name, of_units in values.items()}
        gain = measure_joining(values[LOCAL], values[AT_ZERO], values[SHIFTED], choice.keeps_local, are_finished)
        return {**asdict(gain), "unit": units.name, "is_one_person": units.is_one_person, "by_unit": by_unit}

    def _choose(self, units: Units) -> BaselineChoice:
        """Choose the model and the biases by the validation data."""
        biases = BIASES if self.work.study.task == "segmentation" else np.zeros(1)
        scores = {}
        for name in (FEDERATED, LOCAL):
            averaged = average_by_unit(self._score_biases(name), units.unit_of)
            # Without any case that counts the mean knows no biases.
            scores[name] = np.broadcast_to(averaged, (len(biases), averaged.shape[-1]))
        return choose_kept(scores[FEDERATED], scores[LOCAL], biases)

    def _score_biases(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Return what each validation case counts with every bias of a model; none of a case without any label."""
        part = self.work.data.validation
        study = self.work.study
        score_answers = score_findings if study.is_multilabel else score_classes
        regions = select_regions(part, study)
        has_background = study.metric == "dice_with_background"
        foreground = sorted(set().union(*regions.values()))
        values: dict[str, NDArray[np.float64]] = {}
        for members, answers in self._yield_answers(name, part):
            for case, rows in group_positions(members.cases).items():
                # A view, because a copy of a volume's answers would take as much memory as they do.
                predicted = answers[rows[0] : rows[-1] + 1]
                truth = np.stack([members.targets[row] for row in rows])
                if study.task != "segmentation":
                    values[case] = score_answers(predicted, truth)
                elif np.isin(truth, foreground).any():
                    values[case] = score_label_maps(predicted, truth, regions, has_background, part.annotated)
        return values

    def _write_kept(self, choice: BaselineChoice, validated: Score, tested: Score) -> None:
        """Write the model that the site keeps, with the test of just that, and its own one if that is another."""
        work = self.work
        kept = self._contents[_name_kept(choice)]
        operating_point, read = choose_site_operating_point(work, lambda part: validated, tested)
        facts = kept.facts | count_patients(tested, work.data.test) | read
        facts |= {"candidate": _name_kept(choice), "data": {work.site: dump_record(SiteCounts.of(work.data))}}
        kept = replace(kept, bias=choice.bias, operating_point=operating_point, facts=facts)
        reference_statistics = measure_reference_statistics(
            SuperModel(kept, work.device), work.data, work.site, work.min_patients
        )
        kept = replace(kept, reference_statistics={work.site: reference_statistics} if reference_statistics else {})
        write_model_folder(work.folder / CHOSEN, kept)
        # The local model stays beside it, so that a person may use that one instead.
        if not choice.keeps_local:
            write_model_folder(work.folder / OWN, replace(self._contents[LOCAL], bias=choice.local_bias))

    def _score(
        self, part: Examples, points: Mapping[str, Mapping[str, float]]
    ) -> tuple[dict[str, Score], dict[str, Array]]:
        """Return the score of both models at each bias, and the label maps, classes or sets of findings.

        Args:
            points: Model -> name -> bias.
        """
        study = self.work.study
        scores = {}
        labels = {}
        for model, biases in points.items():
            decided: dict[str, list[NDArray[Any]]] = {name: [] for name in biases}
            probabilities: list[NDArray[Any]] = []
            for _, answers in self._yield_answers(model, part):
                for name, bias in biases.items():
                    decided[name].append(decide_findings(answers) if study.is_multilabel else _decide(answers, bias))
                # Those of a segmentation are not needed, and would fill the memory.
                if study.task != "segmentation":
                    probabilities.append(answers)
            joined = np.concatenate(probabilities) if probabilities else None
            for name, pieces in decided.items():
                labels[name] = join_pieces(part.targets, pieces)
                scores[name] = score_predictions(labels[name], part, study, joined)
        return scores, labels

    def _yield_answers(self, name: str, part: Examples) -> Iterator[tuple[Examples, NDArray[Any]]]:
        """Yield whole cases with a model's probabilities, anew for each purpose: all volumes' would fill a memory."""
        size = self.work.study.training.batch_size
        model = SuperModel(self._contents[name], self.work.device)
        for rows in _group_cases(part.cases, limit_batch_size(part.images, size)):
            members = part.select_rows(rows)
            yield members, _predict_probabilities(model, np.asarray(members.images), members.cases, size)


def is_plain(study: Study) -> bool:
    """Return whether a model that never meets another one learns as the local model does."""
    return study.recipe.input is None and study.recipe.step is None and not study.is_private


def goes_on(study: Study) -> bool:
    """Return whether own models may go on after the rounds, and be shared with other runs."""
    return study.compares_with_baseline or (study.baseline_comparison and study.recipe.trains_alone and is_plain(study))


def list_local_studies(study: Study) -> dict[str, Study]:
    """Return key -> the study that a site's local model learns by: this one, and with BatchNorm where that is free."""
    is_free = has_free_normalization(study.model) and study.model.normalization != "batch"
    if not is_free or not goes_on(study) or study.starts_from_file or study.is_private:
        return {LOCAL: study}
    return {LOCAL: study, BATCH: _with_batchnorm(study)}


def _with_batchnorm(study: Study) -> Study:
    model = study.model.model_copy(update={"normalization": "batch"})
    return study.model_copy(update={"model": model})


PART, SITE = BaselinePart, SiteBaseline


def _name_kept(choice: BaselineChoice) -> str:
    """Name what a site keeps."""
    return LOCAL if choice.keeps_local else FEDERATED


def _predict_probabilities(
    model: SuperModel, images: NDArray[Any], cases: Sequence[str], size: int
) -> NDArray[np.float32]:
    """Return a super model's probabilities for whole cases, which follow one another, each by its own model."""
    if model.contents.rule == "only":
        return model.probabilities(next(iter(model.contents.models)), images, size)
    return np.concatenate([model.answer(images[rows], size).probabilities for rows in group_positions(cases).values()])


def _decide(probabilities: NDArray[Any], bias: float) -> NDArray[np.uint8]:
    """Return the labels by a model's probabilities (n, classes, ...) with a bias, as `SuperModel` does."""
    labels = np.empty((len(probabilities), np.size(probabilities[0, 0])), np.uint8)
    for image, pixels, of_pixels in yield_probabilities(probabilities):
        labels[image, pixels] = decide_labels(shift_foreground(torch.from_numpy(of_pixels[None]), bias).numpy())[0]
    return labels.reshape(len(labels), *probabilities.shape[2:])


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
