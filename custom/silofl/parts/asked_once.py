"""What asks all sites once, before the first round, and makes one document of their answers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from silofl.base.errors import AggregationError
from silofl.base.settings import Section
from silofl.parts.answer import SiteAnswer, Text
from silofl.parts.part import BEFORE, END, Outcome, Part, Reported, Run, WeightsOf
from silofl.parts.task import Exchange, Expected, Message, Replies, Wanted
from silofl.parts.work import Work
from silofl.study import Study
from silofl.training.site_score import SiteScore


class Withheld(Section):
    """What an answer says beside arrays that a site may keep back, all of them or none.

    Attributes:
        withheld: Why the site shares nothing; empty where it does, or where nothing was asked.
    """

    withheld: Text = ""


class Said(Withheld):
    """What a site says that is asked for a record alone; there is none where it is withheld."""

    said: Section | None = None


@dataclass(frozen=True)
class AskedAlone(Part):
    """The server half of what is asked of all sites once: their records beside each other.

    A site that fails here, or says nothing, keeps no round from running.

    Attributes:
        study: The study.
        document: What came out as plain values; empty before.
        sentences: It in words.
        said: Site -> its record, while they come in.
        entry: The schema of what a site says.
        file: Name of the document among the run's files.
    """

    study: Study
    document: dict[str, Any] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
    said: Mapping[str, Section] = field(default_factory=dict)
    entry: ClassVar[type[Said]] = Said
    file: ClassVar[str]
    saved = ("document", "sentences")

    def asks(self, moment: str, number: int, run: Run) -> Sequence[Exchange]:
        """Ask all sites once: before the first round, or in a run without any."""
        is_first = moment == BEFORE and number == 1 if self.study.rounds else moment == END
        return (Exchange(self.role, 0, is_needed=False),) if is_first else ()

    def expected(self, site: str, exchange: Exchange, run: Run) -> Wanted:
        """Return what an answer says; no array is sent."""
        return Wanted({}, self.entry)

    def find_silent_sites(self, replies: Replies) -> dict[str, str]:
        """Return the sites that shared nothing, with why."""
        withheld = {site: one.entry(self.role, Withheld).withheld for site, one in replies.accepted.items()}
        return replies.missing | replies.refused | {site: reason for site, reason in withheld.items() if reason}

    def notes(self, exchange: Exchange, run: Run) -> Sequence[str]:
        """Return what came out in sentences."""
        return self.sentences if exchange.task == self.role else ()

    def outcome(self, run: Run, tests: Mapping[str, SiteScore]) -> Outcome:
        """Return the document."""
        return Outcome(make_files=lambda: {self.file: self.document} if self.document else {})

    def describe(self, said: Mapping[str, Any]) -> Sequence[str]:
        """Return what follows from the records of the sites that answered, in sentences."""
        return ()

    def checked(self, site: str, exchange: Exchange, answer: SiteAnswer, run: Run) -> Self:
        """Keep a site's record."""
        said = answer.entry(self.role, Said).said if exchange.task == self.role else None
        return replace(self, said={**self.said, site: said}) if said else self

    def merged(self, exchange: Exchange, replies: Replies, weights_of: WeightsOf, run: Run) -> Self:
        """Put the records of the sites that answered beside each other, and say what follows."""
        if exchange.task != self.role:
            return self
        known = {site: self.said[site] for site in replies.accepted if site in self.said}
        silent = self.find_silent_sites(replies)
        sentences = (*self.describe(known), *(f"{site} says nothing: {why}" for site, why in silent.items()))
        sites = {site: one.model_dump(mode="json") for site, one in known.items()}
        document = {"sites": sites, "sentences": list(sentences), "not_said": silent}
        return replace(self, said={}, document=document, sentences=sentences)

    def reported(self, reported: Reported, run: Run) -> Reported:
        """Say what came out."""
        return replace(reported, how=" ".join(("none is trained.", *self.sentences)))


def expect_float64(shape: tuple[int, ...], minimum: float | None = 0) -> Expected:
    """Return what to expect of an array of float64."""
    return Expected(shape, minimum=minimum, dtype="float64")


def check_all_sent(site: str, answer: SiteAnswer, wanted: Collection[str], role: str, what: str) -> None:
    """Refuse an answer with a part of what a site may keep back as a whole.

    Args:
        wanted: Names of the arrays.
        role: Of the entry that says whether they are kept back.

    Raises:
        AggregationError: Names the site and what its answer lacks.
    """
    missing = sorted(set(wanted) - answer.arrays.keys())
    if missing and not answer.entry(role, Withheld).withheld:
        raise AggregationError(f"site {site!r} must send all of {what}; it lacks {missing}")


def withhold_few_patients(work: Work, role: str, meta: dict[str, Any]) -> Message | None:
    """Return the answer of a site whose means would come from too few patients; None where they do not."""
    if work.has_enough_patients:
        return None
    return Message(meta=meta | {role: {"withheld": f"fewer than {work.min_patients} patients in training"}})
