"""What a site may keep back of an answer as a whole, where it is asked for means over its images."""

from collections.abc import Collection
from typing import Any

from silofl.base.errors import AggregationError
from silofl.base.settings import Section
from silofl.parts.answer import SiteAnswer, Text
from silofl.parts.task import ArraySpec, Message
from silofl.parts.work import Work


class Withheld(Section):
    """What an answer says beside arrays that a site may keep back, all of them or none.

    Attributes:
        withheld: Why the site shares nothing; empty where it does, or where nothing was asked.
    """

    withheld: Text = ""


def expect_float64(shape: tuple[int, ...], minimum: float | None = 0) -> ArraySpec:
    """Return what to expect of an array of float64."""
    return ArraySpec(shape, minimum=minimum, dtype="float64")


def check_all_sent(site: str, answer: SiteAnswer, wanted: Collection[str], role: str, what: str) -> None:
    """Refuse an answer with a part of what a site may keep back as a whole.

    Args:
        wanted: Names of the arrays.
        role: Of the entry that says whether they are kept back.

    Raises:
        AggregationError: Names the site and what its answer lacks.
    """
    missing = sorted(set(wanted) - answer.arrays.keys())
    # A part of the arrays would be compared with others' whole ones.
    if missing and not answer.metadata(role, Withheld).withheld:
        raise AggregationError(f"site {site!r} sent only a part of {what}; it lacks {missing}")


def suppress_few_patients(work: Work, role: str, meta: dict[str, Any]) -> Message | None:
    """Return the answer of a site whose means would come from too few patients; None where they do not."""
    if work.has_enough_patients:
        return None
    return Message(meta=meta | {role: {"withheld": f"fewer than {work.min_patients} patients in training"}})
