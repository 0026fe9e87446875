"""What hospitals' data hold, asked once of all sites of a network: a run that trains and tests nothing.

The site half is `silofl.data.inventory`, which reads a site's data as they are; `silofl.data.inventories` says what
follows from all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.data.inventories import describe_inventories
from silofl.data.inventory import Inventory, take_inventory
from silofl.parts.answer import SiteAnswer
from silofl.parts.asked_once import AskedOnce, Withheld
from silofl.parts.part import Kind, Reported, Run, WeightsOf
from silofl.parts.task import Exchange, Message, Replies
from silofl.parts.work import SitePart

ROLE = "survey"
FILE = "survey.json"
PURPOSE = (
    "numbers of patients and cases, of patients with each label, contrast and scanner maker, by their names; median "
    "size and spacing; mean and deviation over patients of brightness and colour; sent once, without any training"
)
RISK = "the server sees which data the hospital has, and its scanners' look; min_patients, or may_leave without survey"


class Survey(AlgorithmOption):
    """A survey of what all sites' data hold."""

    section: ClassVar[str] = "survey"
    implementation: ClassVar[str] = "silofl.algorithms.survey"
    traits: ClassVar[Traits] = Traits(asks_alone=True)

    def sentence(self) -> str:
        """Return what a report says of it."""
        return "Once, counts of what each site's data hold, and the means of its images' brightness and colour."


class SurveyEntry(Withheld):
    """What a site says.

    Attributes:
        inventory: Of its data; None where it is withheld.
    """

    inventory: Inventory | None = None


@dataclass(frozen=True)
class SurveyPart(AskedOnce):
    """The inventories at the server.

    Attributes:
        inventories: Site -> its own, while they come in.
    """

    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    role: str = ROLE
    entry: ClassVar[type[SurveyEntry]] = SurveyEntry
    file: ClassVar[str] = FILE
    what: ClassVar[str] = "an inventory"
    leaves = (Kind(ROLE, PURPOSE, RISK, ROLE, is_of_images=True, is_mixed=False, is_entry=True),)

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> SurveyPart:
        """Keep an inventory."""
        found = answer.entry(ROLE, SurveyEntry).inventory if exchange.task == ROLE else None
        return replace(self, inventories={**self.inventories, site: found}) if found else self

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> SurveyPart:
        """Say what follows from the inventories of the sites that answered."""
        if exchange.task != ROLE:
            return self
        known = {site: self.inventories[site] for site in replies.accepted if site in self.inventories}
        silent = self.find_silent_sites(replies)
        sentences = (*describe_inventories(known), *(f"{site} is not surveyed: {why}" for site, why in silent.items()))
        sites = {site: one.model_dump(mode="json") for site, one in known.items()}
        document = {"sites": sites, "sentences": list(sentences), "not_surveyed": silent}
        return replace(self, inventories={}, document=document, sentences=sentences)

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Say what came out."""
        return replace(reported, how=" ".join(("none is trained.", *self.sentences)))


class SiteSurvey(SitePart):
    """A site's share of the survey."""

    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Return the inventory of the site's data, unless it would come from too few patients."""
        work = self.work
        found = take_inventory(work.data_folder, work.min_patients, has_progress=False)
        if found is None:
            return Message(meta={ROLE: {"withheld": f"fewer than {work.min_patients} patients"}})
        return Message(meta={ROLE: {"inventory": found.model_dump(mode="json")}, "num_patients": found.patients})


PART, SITE = SurveyPart, SiteSurvey
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(Survey(),)))
