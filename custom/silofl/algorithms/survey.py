"""What hospitals' data hold, asked once of all sites of a network.

    server  asks every site once, at the end of a run without rounds
    site i  counts patients, cases, labels and contrasts; takes median size and spacing (`silofl.data.inventory`)
            sends these numbers, or the reason why not: too few patients; its images stay
    server  writes all answers and what follows from them (`silofl.data.inventories`) into survey.json

Such a run trains and tests nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.data.inventories import describe_inventories
from silofl.data.inventory import Inventory, take_inventory
from silofl.parts.asked_once import Withheld
from silofl.parts.part import END, OutboundPayload, Outcome, Part, Reported, Run, WeightsOf
from silofl.parts.task import Exchange, Message, PayloadSpec, SiteResults
from silofl.parts.work import SitePart
from silofl.study import Study
from silofl.training.site_score import SiteScore

ROLE = "survey"
FILE = "survey.json"
PURPOSE = (
    "numbers of patients and cases, of patients with each label and contrast, by their names; median size and spacing; "
    "of CT the share of labelled voxels by value; sent once, without any training"
)
RISK = "the server sees which data the hospital has; min_patients, or may_leave without survey"


class Survey(AlgorithmOption):
    """A survey of what all sites' data hold."""

    section: ClassVar[str] = "survey"
    implementation: ClassVar[str] = "silofl.algorithms.survey"
    traits: ClassVar[Traits] = Traits(asks_alone=True)

    def sentence(self) -> str:
        """Return what a report says of it."""
        return "Once, counts of what each site's data hold, median size and spacing, and of CT the shares of values."


class SurveyMetadata(Withheld):
    """The inventory of a site's data; there is none where it is withheld."""

    said: Inventory | None = None


@dataclass(frozen=True)
class SurveyPart(Part):
    """The inventories at the server; a site that fails, or says nothing, keeps no run from ending.

    Attributes:
        study: The study.
        document: What came out as plain values; empty before.
        sentences: It in words.
    """

    study: Study
    document: dict[str, Any] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
    role: str = ROLE
    saved = ("document", "sentences")
    outbound = (OutboundPayload(ROLE, PURPOSE, RISK, ROLE, is_of_images=True, is_mixed=False, is_metadata=True),)

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Ask all sites once."""
        return (Exchange(ROLE, 0, is_needed=False),) if moment == END else ()

    def payload_spec(self, site: str, exchange: Exchange, run: Run) -> PayloadSpec:
        """Return what an answer says; no array is sent."""
        return PayloadSpec(metadata=SurveyMetadata)

    def merged(self, exchange: Exchange, site_results: SiteResults, weights_of: WeightsOf, run: Run) -> SurveyPart:
        """Put the inventories of the sites that answered beside each other, and say what follows."""
        if exchange.task != ROLE:
            return self
        inventories = {}
        silent = site_results.missing | site_results.refused
        for site, answer in site_results.accepted.items():
            entry = answer.metadata(ROLE, SurveyMetadata)
            if entry.said:
                inventories[site] = entry.said
            if entry.withheld:
                silent[site] = entry.withheld
        # Only sites that answered are compared; why others did not follows after that.
        sentences = [*describe_inventories(inventories)]
        for site, why in silent.items():
            sentences.append(f"{site} says nothing: {why}")
        sites = {site: inventory.model_dump(mode="json") for site, inventory in inventories.items()}
        document = {"sites": sites, "sentences": sentences, "not_said": silent}
        return replace(self, document=document, sentences=tuple(sentences))

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return what came out in sentences."""
        return self.sentences if exchange.task == ROLE else ()

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Say what came out."""
        return replace(reported, how=" ".join(("none is trained.", *self.sentences)))

    def outcome(self, run: Run, tests: Mapping[str, SiteScore]) -> Outcome:
        """Return the document."""
        return Outcome(make_files=lambda: {FILE: self.document} if self.document else {})


class SiteSurvey(SitePart):
    """A site's share of the survey."""

    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Return the inventory of the site's data, unless it would come from too few patients."""
        work = self.work
        # Counts of few patients would show single ones.
        inventory = take_inventory(work.data_folder, work.min_patients, has_progress=False)
        if inventory is None:
            return Message(meta={ROLE: {"withheld": f"fewer than {work.min_patients} patients"}})
        return Message(meta={ROLE: {"said": inventory.model_dump(mode="json")}, "num_patients": inventory.patients})


PART, SITE = SurveyPart, SiteSurvey
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(Survey(),)))
