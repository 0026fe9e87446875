"""What a study lead asks a running job: its run, its newest rounds, and what its sites work on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from silofl.base.files import read_json
from silofl.base.schema import dump_record
from silofl.federation.ledger import FILE
from silofl.parts.task import Exchange, Message
from silofl.study import Study

# The topic of the command that a running controller answers.
PROGRESS = "silofl.progress"


@dataclass(frozen=True)
class InFlight:
    """A task that the sites of a job work on, as the server sees it.

    Attributes:
        task: Its name.
        round: The round that it belongs to.
        seconds: How long ago it was sent.
        answered: The sites that have carried it out.
        failed: Those that could not.
        waiting: Those whose answer is waited for.
        now: The server's clock, in seconds since 1970, by which it says when each site was last heard.
    """

    task: str
    round: int
    seconds: float
    answered: list[str]
    failed: list[str]
    waiting: list[str]
    now: float

    @classmethod
    def of(cls, exchange: Exchange, seconds: float, given: Mapping[str, Message], waiting: Collection[str]) -> InFlight:
        """Return what a controller knows of an exchange that is not over yet.

        Args:
            exchange: Its task and round.
            seconds: Since it was sent.
            given: Site -> its answer, of those that have answered.
            waiting: The sites that are waited for.
        """
        # A failure is an answer too, with a reason in place of arrays.
        failed = {site for site, message in given.items() if "error" in message.meta}
        return cls(
            exchange.task,
            exchange.round,
            seconds,
            answered=sorted(given.keys() - failed),
            failed=sorted(failed),
            waiting=sorted(set(waiting) - given.keys()),
            now=time.time(),
        )


def answer_progress(
    study: Study, run: str, folder: Path, find_in_flight: Callable[[], InFlight | None]
) -> Callable[[str, object, FLContext], dict[str, Any]]:
    """Return how a controller answers a lead who asks for a job's progress: run, newest rounds, and task in flight.

    Args:
        folder: The run's folder, whose ledger of numbers is all that is read.
        find_in_flight: Returns what the sites work on; None where that is nothing.
    """
    known_before = {"run": run, "study": study.name, "total_rounds": study.total_rounds, "metric": study.metric}
    known_before |= {"ends_early": study.ends_early, "quiet_rounds": study.quiet_rounds}

    def answer(topic: str, data: object, context: FLContext) -> dict[str, Any]:
        number = data.get("rounds", 0) if isinstance(data, dict) else 0
        # The last known round too: its validation comes with the next one.
        start = max(number - 1, 0) if type(number) is int else 0
        ledger = read_json(folder / FILE, list, absent=[])[start:]
        return known_before | {"first": start, "ledger": ledger, "in_flight": dump_record(find_in_flight())}

    return answer
