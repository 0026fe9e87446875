"""The course of a study on one page: its rounds, the choice of the best one, and its test.

Whatever connects server and sites (NVFlare, one process, a counter of bytes, a test) is a function of type `Network`.
All of them therefore take the same course and give the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from silofl.federation.admission import admitted
from silofl.federation.ledger import Round
from silofl.federation.server import ServerRounds
from silofl.methods.answer import plain_text
from silofl.methods.part import AFTER, BEFORE, END, INSTEAD, TRAIN, VALIDATE, Exchange, Message, Replies
from silofl.training.site_score import SiteScore


@dataclass(frozen=True)
class Answers:
    """The sites' answers to one task, the reasons of those that could not do it, and who was late."""

    given: dict[str, Message]
    failed: dict[str, str]
    late: list[str]


Network = Callable[[str, Mapping[str, Message]], Answers]
WeightsOf = Callable[[str], NDArray[np.float64]]


@dataclass(frozen=True)
class Tests:
    """The test score of each site that has one, and why others have none."""

    scores: dict[str, SiteScore]
    missing: dict[str, str]


class _EndedError(Exception):
    """The run is being ended from outside."""


@dataclass(frozen=True)
class Course:
    """One study's course.

    Attributes:
        server: The run so far.
        ask: The network: sends a task to each site of a dictionary and returns the answers.
        save: Writes the checkpoint; called after every round.
        warn: Takes a sentence for the log.
        is_aborted: Says whether the run is being ended from outside.
    """

    server: ServerRounds
    ask: Network
    save: Callable[[], None] = lambda: None
    warn: Callable[[str], None] = lambda sentence: None
    is_aborted: Callable[[], bool] = lambda: False

    def run(self) -> Tests | None:
        """Carry out all rounds that are left, the choice of the best one, and its test.

        Returns:
            The test; None where the run was ended from outside.

        Raises:
            AggregationError: A round had fewer answers than the study asks for.
        """
        try:
            return self._run()
        except _EndedError:
            return None

    def _run(self) -> Tests:
        server, study = self.server, self.server.study
        while server.finished_rounds < study.total_rounds:
            if server.finished_rounds == study.training_rounds:
                # A part's rounds are about the best models, which the last validation decides.
                self._validate()
            self.run_round()
            self.save()
        self._validate()
        for exchange in server.asks(END, server.finished_rounds):
            self._exchange(exchange)
        number = server.reported_round
        _, _, replies = self._asked(Exchange(server.test_task, number, is_needed=False, models_round=number))
        scores = {site: answer.numbers.metrics.test for site, answer in replies.accepted.items()}
        empty = {site: "its answer holds no test" for site, score in scores.items() if score is None}
        tested = {site: score for site, score in scores.items() if score is not None}
        return Tests(tested, replies.missing | replies.refused | empty)

    def run_round(self) -> None:
        """Carry out the next round: the parts' exchanges before it, the training, and the parts' exchanges after it."""
        started, number, server = time.monotonic(), self.server.finished_rounds + 1, self.server
        record = Round(number, datetime.now(UTC).isoformat(timespec="seconds"), sorted(server.sites))
        is_training = number <= server.study.training_rounds
        training = [Exchange(TRAIN, number, models_round=number - 1)]
        main = training if is_training else server.asks(INSTEAD, number)
        for exchange in server.asks(BEFORE, number):
            self._exchange(exchange, record)
        replies, weights_of = [self._exchange(exchange, record) for exchange in main][-1]
        for exchange in server.asks(AFTER, number) if is_training else ():
            self._exchange(exchange, record)
        server.close(record, replies, weights_of)
        record.seconds = round(time.monotonic() - started, 3)

    def _exchange(self, exchange: Exchange, record: Round | None = None) -> tuple[Replies, WeightsOf]:
        """Send a task to each site, merge the answers that pass the checks, and record the others.

        Raises:
            AggregationError: The exchange is needed, and fewer sites answered than the study asks for.
        """
        server = self.server
        sent, answers, replies = self._asked(exchange)
        if exchange.is_needed and record:
            record.late, record.failed = sorted({*record.late, *answers.late}), record.failed | answers.failed
            record.refused |= replies.refused
            record.withheld |= {s: list(one.withheld) for s, one in replies.accepted.items() if one.withheld}
            for reason in replies.refused.values():
                self.warn(reason)
            record.require(len(replies.accepted), server.study.federation.min_sites)
        weights_of = server.merge(exchange, replies)
        if record:
            record.add_traffic(sent, {site: answers.given[site] for site in replies.accepted})
        if not exchange.is_needed:
            self._write_notes(exchange, record)
        return replies, weights_of

    def _asked(self, exchange: Exchange) -> tuple[dict[str, Message], Answers, Replies]:
        """Return what each site is sent, what comes back, and what is accepted of it.

        Raises:
            _EndedError: The run is being ended from outside.
        """
        if self.is_aborted():
            raise _EndedError
        server = self.server
        sent = {site: server.task(site, exchange) for site in exchange.sites or server.sites}
        answers = self.ask(exchange.task, sent)
        if self.is_aborted():
            raise _EndedError
        accepted, refused = admitted(server, exchange, answers.given)
        return (
            sent,
            answers,
            Replies(accepted, refused, answers.failed | dict.fromkeys(answers.late, "no answer in time")),
        )

    def _write_notes(self, exchange: Exchange, record: Round | None) -> None:
        notes = [note for part in self.server.parts.values() for note in part.notes(exchange)]
        for note in notes:
            self.warn(note)
        if record:
            record.notes += notes

    def _validate(self) -> None:
        """Validate the last trained models, which no next training task brings to the sites (see `Work`)."""
        number = self.server.finished_rounds
        if not self.server.has_validated:
            exchange = Exchange(VALIDATE, number, is_needed=False, models_round=number)
            _, _, replies = self._asked(exchange)
            for reason in replies.refused.values():
                self.warn(reason)
            self.server.ledger[-1].notes += replies.refused.values()
            scores = {site: answer.numbers.metrics.validation for site, answer in replies.accepted.items()}
            self.server.take_validation(scores)
            self.save()


def settled_answers(given: Mapping[str, Message], late: list[str]) -> Answers:
    """Separate answers, in the order of site names, from the failures among them."""
    settled = dict(sorted(given.items()))
    failed = {site: plain_text(one.meta["error"]) for site, one in settled.items() if "error" in one.meta}
    return Answers({site: answer for site, answer in settled.items() if site not in failed}, failed, sorted(late))
