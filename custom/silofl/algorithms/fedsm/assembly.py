"""FedSM's super model: every site gets all models, the sites' counts decide the threshold, every site tests it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from silofl.algorithms.fedsm.best_models import BEST_MODELS
from silofl.algorithms.fedsm.paper import THRESHOLDS, Selector, tune_threshold
from silofl.algorithms.fedsm.selector import SelectorPart
from silofl.base.errors import AggregationError
from silofl.base.settings import Section
from silofl.core.mixing import Arrays
from silofl.inference import SuperModel as Loaded
from silofl.inference.case_results import predict_cases
from silofl.inference.contents import Contents
from silofl.inference.directory import FOLDER, read_model_folder, write_model_folder
from silofl.inference.super_results import SuperResults
from silofl.models.precision import round_as_received
from silofl.models.roles import GLOBAL, PERSONAL, SELECTOR, add_role, read_role
from silofl.parts.answer import SiteAnswer
from silofl.parts.checked_cast import checked_cast
from silofl.parts.collected import ROLE as COLLECTED
from silofl.parts.collected import CollectedPart
from silofl.parts.model import ModelPart, collect_part_arrays
from silofl.parts.part import BEFORE, END, Outcome, OwnTest, Part, Run, WeightsOf
from silofl.parts.super_exchange import (
    collect_facts,
    counts_by_threshold,
    evaluate_super_model,
    read_contents,
    read_data_profile,
)
from silofl.parts.task import Exchange, Message, PayloadSpec, SiteResults
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.site_score import Counted, SuperScore
from silofl.training.small_cells import has_few

ROLE, ASSEMBLE, TEST = "super_model", "assemble", "test_super_model"


class SuperModelMetadata(Section):
    """What a site says when it has stored the super model.

    Attributes:
        by_threshold: For each candidate of the threshold the sum of its validation cases' values and their number;
            empty where it has no validation data.
    """

    by_threshold: Counted = ()


@dataclass(frozen=True)
class SuperModelPart(Part):
    """The super model at the server: who has it, and its threshold.

    Attributes:
        study: The study.
        holders: Sites that hold all models; not in the checkpoint, so a resumed run sends them once more.
        threshold: The paper's gamma; None where nothing is chosen by it.
        refused: Site -> why it has no say in the threshold.
    """

    study: Study
    holders: frozenset[str] = frozenset()
    threshold: float | None = None
    refused: dict[str, str] = field(default_factory=dict)
    role: str = ROLE
    test: ClassVar[OwnTest] = OwnTest(TEST, SuperScore)

    @property
    def selector(self) -> Selector:
        """The recipe's answer on the selector."""
        option: Selector = self.study.recipe.option(SELECTOR)
        return option

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Bring all models to sites that lack them: before a round of the selector alone, or at the end."""
        is_before_extra = moment == BEFORE and number > run.study.joint_rounds and not self.selector.learns_site
        # After a resume nobody counts as a holder, and every site gets the models once more.
        lacking = tuple(site for site in run.sites if site not in self.holders)
        if not lacking or not (is_before_extra or (moment == END and self.selector.learns_site)):
            return ()
        return (Exchange(ASSEMBLE, run.reported.round, sites=lacking, is_needed=False),)

    def to_send(self, site: str, exchange: Exchange, run: Run) -> Message:
        """Return the models and the selector, unless the site holds them already."""
        if exchange.task not in (ASSEMBLE, TEST):
            return Message()
        is_holder = site in self.holders
        # With FedSM-extra the selector goes on learning after the models were sent, so the test brings it again.
        has_selector = not is_holder if self.selector.learns_site else exchange.task == TEST
        arrays: Arrays = {}
        if not is_holder:
            arrays |= _all_models(run, site)
        if has_selector:
            arrays |= _collect_selector(run)
        return Message(add_role(ROLE, arrays), {ROLE: self._collect_facts(run)})

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return what a site may say of its validation."""
        return PayloadSpec(metadata=SuperModelMetadata)

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> SuperModelPart:
        """Refuse counts that are not one for each threshold, and sums of values that are more than their cases."""
        table = answer.metadata(ROLE, SuperModelMetadata).by_threshold
        if table and len(table) != len(self.selector.thresholds):
            raise AggregationError(
                f"site {site!r} sent by_threshold for {len(table)} of {len(self.selector.thresholds)} thresholds"
            )
        for total, cases in table:
            if total > cases:
                raise AggregationError(
                    f"a sum of by_threshold of site {site!r}, {total:g}, is above 1 for each of its {cases} cases"
                )
        return self

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> SuperModelPart:
        """Remember which sites hold the models, and choose the threshold from their counts."""
        if exchange.task != ASSEMBLE:
            # A site that did not answer may have lost the models, so it gets them again.
            return replace(self, holders=self.holders - site_results.missing.keys())
        tables = [answer.metadata(ROLE, SuperModelMetadata).by_threshold for answer in site_results.accepted.values()]
        counts = [table for table in tables if table]
        threshold = self.study.recipe.option(ROLE).threshold if self.selector.thresholds else None
        if threshold == "tuned":
            # Without counts the largest, 1: a model that nobody could measure on its choice is never chosen.
            threshold = tune_threshold(counts) if counts else THRESHOLDS[-1]
        holders = self.holders | set(site_results.accepted)
        return replace(self, holders=holders, threshold=threshold, refused=self.refused | site_results.refused)

    def joined(self, site: str) -> SuperModelPart:
        """Bring all models to every site once more: those that are out are without the new site's."""
        # Each super model is one for all sites, and its selector has an output for each.
        return replace(self, holders=frozenset())

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return why sites have no say in the threshold."""
        if exchange.task != ASSEMBLE:
            return ()
        return [f"site {site!r} has no say in the threshold: {reason}" for site, reason in self.refused.items()]

    def _make_contents(self, run: Run) -> Contents | None:
        # Where the personal models stay with their sites, a selector has nothing to choose from.
        if _find_personal(run).stays or run.image_shape is None:
            return None
        # Rounded as the sites received it, so that server and sites hold the same super model.
        arrays = round_as_received(_all_models(run) | _collect_selector(run), self.study)
        return read_contents(arrays, self._collect_facts(run), self.study, run.image_shape)

    def outcome(self, run: Run, tests: Mapping[str, SuperScore]) -> Outcome:
        """Return the super model, and what its selector can choose."""
        results = SuperResults(tuple(_find_selector(run).outputs), self.threshold, self.refused)
        return Outcome(make_contents=partial(self._make_contents, run), results={"super_model": results})

    def _collect_facts(self, run: Run) -> dict[str, Any]:
        return collect_facts(run, _find_selector(run).outputs) | {"threshold": self.threshold}


class SiteSuperModel(SitePart):
    """The super model at a site, in the folder of the run."""

    name = ROLE
    tasks = (ASSEMBLE, TEST)

    def answer(self, task: str) -> Message:
        """Store a received super model and score each threshold on validation data, or test the stored one."""
        if task == TEST:
            return Message(meta={"metrics": {"test": evaluate_super_model(self.work, self._store_final_model())}})
        work = self.work
        contents = self._receive()
        if contents.selector is None or len(work.data.validation) == 0:
            return Message()
        model = Loaded(contents, work.device)
        results = predict_cases(model, work.data.validation, work.study)
        # The study's and not the server's: between many narrow ones the score of each single case would show.
        counts = counts_by_threshold(model, results, work.study.recipe.option(SELECTOR).thresholds)
        if work.min_patients and has_few(results, work.data.validation.patient_of, work.min_patients):
            # Without cases a table has no vote on the threshold.
            counts = [[0.0, 0]] * len(counts)
        return Message(meta={ROLE: {"by_threshold": counts}})

    def _receive(self) -> Contents:
        """Store a received super model."""
        work = self.work
        arrays = work.message.of(ROLE)
        holds_models = any(read_role(name) == GLOBAL for name in arrays)
        stored = {} if holds_models else read_model_folder(work.folder / FOLDER).models
        shape = work.data.training.image_shape
        contents = read_contents(arrays, work.message.find_entry(ROLE), work.study, shape, stored)
        write_model_folder(work.folder / FOLDER, contents)
        # `label_best_models` computed it from the models before these.
        (work.folder / BEST_MODELS).unlink(missing_ok=True)
        return contents

    def _store_final_model(self) -> Contents:
        """Store the super model, received now or before, with the server's final threshold and facts."""
        work = self.work
        if work.message.arrays:
            return self._receive()
        facts = work.message.find_entry(ROLE)
        contents = replace(
            read_model_folder(work.folder / FOLDER),
            threshold=facts["threshold"],
            facts=facts["facts"],
            data_profile=read_data_profile(facts),
        )
        write_model_folder(work.folder / FOLDER, contents)
        return contents


PART, SITE = SuperModelPart, SiteSuperModel


def _all_models(run: Run, receiver: str = "") -> Arrays:
    """Return all models of the reported round as ``global/...``, ``<site>/...``, and the arrays common to all.

    Args:
        receiver: The site that gets them. Where personalised models stay with their sites it gets its own alone.
    """
    parts = run.reported.parts
    shared = checked_cast(parts[GLOBAL], ModelPart).common
    arrays = add_role(GLOBAL, shared)
    personal = _find_personal(run)
    for site in run.sites:
        # The global model answers for a site whose own did not come, or stays there.
        own: Arrays = {}
        if site == receiver or not personal.stays:
            own = personal.of(site)
        arrays |= add_role(site, own or shared)
    return arrays | collect_part_arrays(run)


def _find_personal(run: Run) -> CollectedPart | ModelPart:
    """Return who has the personal models: the part that collected them in the end, or the one that mixes them."""
    if COLLECTED in run.parts:
        return checked_cast(run.parts[COLLECTED], CollectedPart)
    return checked_cast(run.reported.parts[PERSONAL], ModelPart)


def _find_selector(run: Run) -> SelectorPart:
    return checked_cast(run.reported.parts[SELECTOR], SelectorPart)


def _collect_selector(run: Run) -> Arrays:
    return add_role(SELECTOR, _find_selector(run).parameters)
