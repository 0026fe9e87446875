"""What hospitals' data hold, asked once of all sites of a network: a run that trains and tests nothing.

The site half is `silofl.data.inventory`, which reads a site's data as they are; `silofl.data.inventories` says what
follows from all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.data.inventories import describe_inventories
from silofl.data.inventory import Inventory, take_inventory
from silofl.parts.asked_once import AskedAlone, Said
from silofl.parts.part import Kind
from silofl.parts.task import Message
from silofl.parts.work import SitePart

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


class SurveyEntry(Said):
    """The inventory of a site's data."""

    said: Inventory | None = None


class SurveyPart(AskedAlone):
    """The inventories at the server."""

    role = ROLE
    entry: ClassVar[type[SurveyEntry]] = SurveyEntry
    file: ClassVar[str] = FILE
    leaves = (Kind(ROLE, PURPOSE, RISK, ROLE, is_of_images=True, is_mixed=False, is_entry=True),)

    def describe(self, said: Mapping[str, Inventory]) -> Sequence[str]:
        """Return what follows from the inventories."""
        return describe_inventories(said)


class SiteSurvey(SitePart):
    """A site's share of the survey."""

    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Return the inventory of the site's data, unless it would come from too few patients."""
        work = self.work
        found = take_inventory(work.data_folder, work.min_patients, has_progress=False)
        if found is None:
            return Message(meta={ROLE: {"withheld": f"fewer than {work.min_patients} patients"}})
        return Message(meta={ROLE: {"said": found.model_dump(mode="json")}, "num_patients": found.patients})


PART, SITE = SurveyPart, SiteSurvey
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(Survey(),)))
