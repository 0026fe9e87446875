"""What a model answers in use, month by month, asked once of all sites of a network: a run that needs no labels."""

from __future__ import annotations

from typing import ClassVar

from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.recipe import PRESET_NAMES, Recipe
from silofl.inference.answers import FILE, SiteMonths, count_patients, group_months, select_finished, sum_up_months
from silofl.parts.asked_once import AskedAlone, Said
from silofl.parts.part import Kind
from silofl.parts.task import Message
from silofl.parts.work import SitePart

ROLE = "monthly_answers"
PURPOSE = (
    "for each month that has ended, how many answers a model gave, the share with a warning, and each class's number "
    "or label's mean millilitres; sent once, without any training"
)
RISK = (
    "the server sees how many patients are examined, and how common findings are; min_patients, or may_leave without "
    "monthly_answers"
)


class MonthlyAnswers(AlgorithmOption):
    """What a model answers in use, month by month.

    Attributes:
        model: Fingerprint of the super model, whose answers alone count.
    """

    section: ClassVar[str] = ROLE
    implementation: ClassVar[str] = "silofl.algorithms.monthly_answers"
    traits: ClassVar[Traits] = Traits(asks_alone="answers")

    model: str = ""


class MonthlyEntry(Said):
    """A site's months."""

    said: SiteMonths | None = None


class MonthlyPart(AskedAlone):
    """The sites' months at the server."""

    role = ROLE
    entry: ClassVar[type[MonthlyEntry]] = MonthlyEntry
    file: ClassVar[str] = FILE
    leaves = (Kind(ROLE, PURPOSE, RISK, ROLE, is_of_images=True, is_mixed=False, is_entry=True),)


class SiteMonthlyAnswers(SitePart):
    """A site's share: its records, of which numbers alone leave."""

    tasks = (ROLE,)

    def answer(self, task: str) -> Message:
        """Return the months of the model's answers, unless each is of too few patients."""
        work = self.work
        (model,) = (one.model for one in work.study.recipe.parts if isinstance(one, MonthlyAnswers))
        found = select_finished(work.data_folder, model)
        # Of a month, since a total would rise by those who are new, however few they are.
        patients = max(map(count_patients, group_months(found).values()), default=0)
        if patients < work.min_patients:
            return Message(meta={ROLE: {"withheld": f"fewer than {work.min_patients} patients in every month"}})
        said = sum_up_months(found, work.study, work.min_patients).model_dump(mode="json")
        return Message(meta={ROLE: {"said": said}, "num_patients": patients})


PART, SITE = MonthlyPart, SiteMonthlyAnswers
PRESETS = dict.fromkeys(PRESET_NAMES, Recipe(parts=(MonthlyAnswers(),)))
