"""A finished model held against the hospitals' own labelled test cases: a run without a round, which is its test.

The server sends the model, and each hospital its scores. What names a case stays there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from silofl.base.errors import AggregationError
from silofl.base.files import write_json
from silofl.base.schema import dump_record
from silofl.base.settings import Section
from silofl.core.mixing import Arrays
from silofl.data.learnt import check_not_learnt, is_recorded
from silofl.data.manifest import Manifest
from silofl.inference import cases_table, evaluation
from silofl.inference.answered import ALL, Told, open_answered
from silofl.inference.clinical import measure_evaluation
from silofl.inference.evaluated_cases import (
    EvaluatedCase,
    RefusedCase,
    SiteCases,
    evaluate_cases,
    merge_scores,
    sort_answers,
)
from silofl.inference.evaluation import TestedCases
from silofl.inference.evaluations import (
    COLUMNS,
    FILE,
    Evaluations,
    HospitalEvaluation,
    list_scores,
    pack_scores,
    pool_hospitals,
    unpack_scores,
)
from silofl.inference.model_file import join_model, split_model
from silofl.inference.own_tests import describe_quality
from silofl.inference.subgroups import People, list_having, measure_subgroups
from silofl.inference.super_model import SuperModel
from silofl.models.roles import add_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.asked_once import expect_float64
from silofl.parts.checked_cast import checked_cast
from silofl.parts.half_round import digest_task
from silofl.parts.part import OutboundPayload, Outcome, OwnTest, Part, Reported, Run
from silofl.parts.task import Exchange, Message, PayloadSpec
from silofl.parts.work import SitePart
from silofl.setup.divisions import check_divisions
from silofl.study import Study
from silofl.training.evaluation import count_patients
from silofl.training.site_score import SiteScore
from silofl.training.small_cells import find_small_labels

ROLE = "evaluation"
SCORES = f"{ROLE}/scores"
PURPOSE = (
    "scores of a finished model on the site's own test cases, by label, class or group of cases that the study names, "
    "each with its interval and number of cases, how many cases were refused, and whether the site has a record of the "
    "images that the model was trained on; sent once, without any training"
)
RISK = (
    "the server, and who gets the model's card, sees how many test patients there are and how good the model is on "
    "them. With few patients it sees the scores of single ones; min_patients (here of the test), or may_leave without "
    "evaluation: the site takes no part"
)


class EvaluationMetadata(Section):
    """What an answer says beside the scores.

    Attributes:
        tested: The test cases.
        is_checked: Whether the site has a record of what the model learnt from, none of which is a test case now.
    """

    tested: TestedCases = TestedCases()
    is_checked: bool = False


@dataclass(frozen=True)
class EvaluationPart(Part):
    """The model at the server, and what the hospitals say of it.

    Attributes:
        study: The study.
        facts: The model's model.json; empty where a site asks what it may send.
        arrays: Its weights, as ``model/name``.
        sites: Hospital -> what it says.
    """

    study: Study
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    sites: Mapping[str, HospitalEvaluation] = field(default_factory=dict)
    role: str = ROLE
    test: ClassVar[OwnTest] = OwnTest(ROLE)
    outbound = (OutboundPayload(ROLE, PURPOSE, RISK, ROLE, is_of_images=True, is_mixed=False),)

    @classmethod
    def start(cls, study: Study, sites: Sequence[str], pretrained: Arrays | None) -> Sequence[Part]:
        """Return the server half before the test.

        Raises:
            ConfigError: The model is none, or that of another study.
        """
        if not pretrained:
            return [cls(study)]
        facts, arrays = split_model(pretrained)
        # Joined only to refuse a wrong file before any site is asked.
        join_model(facts, arrays, study)
        return [cls(study, facts, arrays)]

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return the model."""
        return Message(add_role(ROLE, self.arrays), {ROLE: {"model": dict(self.facts)}})

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return the array of the scores."""
        if exchange.task != ROLE:
            return PayloadSpec(metadata=EvaluationMetadata)
        wanted = expect_float64((len(list_scores(self.study)), COLUMNS), minimum=None)
        return PayloadSpec({SCORES: replace(wanted, is_required=True)}, EvaluationMetadata)

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> EvaluationPart:
        """Keep a hospital's scores; refuse numbers that are none.

        Raises:
            AggregationError: They are of no case, or of more than there are.
        """
        if exchange.task != ROLE:
            return self
        entry = answer.metadata(ROLE, EvaluationMetadata)
        tested = entry.tested
        scores, not_said = unpack_scores(site, answer.arrays[SCORES], self.study)
        most = tested.num_units
        for group in scores.values():
            most = max([most, *(score.num_cases for score in group.values())])
        if not max(1, most) <= tested.num_cases:
            raise AggregationError(
                f"site {site!r} sent scores of {most} cases or patients, where it tested {tested.num_cases}"
            )
        record = HospitalEvaluation(
            **vars(tested), is_checked=entry.is_checked, scores=scores, not_said=not_said or None
        )
        return replace(self, sites={**self.sites, site: record})

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Say which model is tested."""
        facts = self.facts
        if not facts:
            return reported
        how = f"{facts['fingerprint'][:16]} of study {facts['study']['name']}, as it was given"
        return replace(reported, how=how)

    def outcome(self, run: Run, tests: Mapping[str, SiteScore]) -> Outcome:
        """Return the record of all hospitals."""
        return Outcome(make_files=self._make_record) if self.sites else Outcome()

    def _make_record(self) -> dict[str, Any]:
        sites = dict(sorted(self.sites.items()))
        contents = join_model(self.facts, self.arrays, self.study)
        thresholds = {}
        for number, threshold in contents.operating_point.shown_thresholds(self.study.is_multilabel).items():
            thresholds[self.study.labels[number]] = threshold
        record = Evaluations(
            fingerprint=self.facts["fingerprint"],
            model=self.facts["study"]["name"],
            sites=sites,
            pooled=pool_hospitals(sites, self.study),
            temperature=contents.operating_point.temperature,
            decision_thresholds=thresholds or None,
            quality=describe_quality(contents),
        )
        return {FILE: dump_record(record)}


class SiteEvaluation(SitePart):
    """A hospital's half: it keeps its whole evaluation, and sends the scores."""

    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Hold the model against the test cases.

        Raises:
            DataError: The model answers none of them, or learnt from one at this hospital.
            PinError: The job divides them by what it may not, or they differ from those told before by few patients.
        """
        work = self.work
        study = work.study
        settings = work.settings
        least = work.min_patients
        asked = work.message.find_entry(ROLE)
        model = SuperModel(join_model(asked["model"], work.message.of(ROLE), study), work.device)
        # The site knows its own training images by the run that made the model.
        run = model.contents.facts.get("run")
        records = [work.locate_run(model.contents.study.name, run=str(run))] if work.locate_run and run else []
        check_not_learnt(records, work.data, study)
        divisions = set(settings.divisions if settings else ())
        for record in checked_cast(work.data.manifest, Manifest).parts["test"]:
            divisions.update(record.groups)
        check_divisions(study.subgroups, divisions)
        site = SiteCases.of(work.data, ("test",))
        cases, refused = sort_answers(evaluate_cases(model, site))
        question = digest_task(
            Message(work.message.arrays, {ROLE: asked}), least, list_scores(study), dump_record(study.subgroups)
        )
        with open_answered(settings.answered_file(work.site) if settings and least else None) as answered:
            people = People(site.units.unit_of, work.data.test.patient_of, least, answered)
            having = {name: people.hash(having) for name, having in list_having(cases, study).items()}
            # The same question about the same patients gets the same answer: a second one could be compared with it.
            told = answered.find_stored(question, having[ALL], least)
            if told is None:
                kept = answered.find_cases(having, least)
                left_out = {case.case for case in cases if not people.hash([case.case]) <= kept}
                answering = [case for case in cases if case.case not in left_out]
                unit_of = {case: unit for case, unit in site.units.unit_of.items() if case not in left_out}
                of_kept = replace(site, units=replace(site.units, unit_of=unit_of))
                told = self._tell(model, of_kept, answering, refused, people)
                answered.answers.append(replace(told, question=question, cases=tuple(sorted(kept))))
        entry = {**told.meta[ROLE], "is_checked": is_recorded(records)}
        return Message({SCORES: np.array(told.scores, np.float64)}, {**told.meta, ROLE: entry})

    def _tell(
        self,
        model: SuperModel,
        site: SiteCases,
        cases: Sequence[EvaluatedCase],
        refused: Sequence[RefusedCase],
        people: People,
    ) -> Told:
        """Write the evaluation of some cases, and return what of it may be told beside all that was told before."""
        work = self.work
        study = work.study
        least = people.least
        fingerprint = work.message.find_entry(ROLE)["model"]["fingerprint"]
        record = measure_evaluation(model, fingerprint, site, cases)
        people.may_tell(list_having(cases, study))
        if study.subgroups:
            subgroups = measure_subgroups(cases, site.divide(study.subgroups), people, study)
            record = replace(record, subgroups=subgroups, least=least)
        write_json(work.folder / evaluation.FILE, dump_record(record))
        cases_table.write_cases(work.folder / cases_table.FILE, cases, refused, record, model.contents)
        tested = {field.name: getattr(record, field.name) for field in fields(TestedCases)}
        score = merge_scores(cases)
        numbers = work.suppress_small_cells(count_patients(score, work.data.test), score, work.data.test)
        patients = {people.person_of.get(case.case) for case in cases} - {None}
        few = set()
        for label in find_small_labels(score, people.person_of, least, study):
            # A label is known by its number here, a region by its name.
            few.add(study.labels.get(label, str(label)) if isinstance(label, int) else str(label))
        meta = {
            ROLE: {"tested": tested | {"least": least}},
            "num_patients": len(patients),
            "metrics": {"test": numbers},
        }
        rows = pack_scores(record, study, few, least).tolist()
        return Told(tuple(map(tuple, rows)), meta)


PART, SITE = EvaluationPart, SiteEvaluation
