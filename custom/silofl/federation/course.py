"""The course of a study on one page: its rounds, the choice of the best one, and its test.

Whatever connects server and sites (NVFlare, one process, a counter of bytes, a test) is a function of type `Network`.
All of them therefore take the same course and give the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from silofl.errors import AggregationError
from silofl.federation.ledger import Round
from silofl.federation.lost import lost_sentence, take_lost
from silofl.federation.server import ServerRounds
from silofl.methods.part import AFTER, BEFORE, END, INSTEAD, TRAIN, VALIDATE, Exchange, Message, Replies
from silofl.training.site_score import SiteScore


@dataclass(frozen=True)
class Answers:
    """The sites' answers to one task, the reasons of those that could not do it, and who was late.

    Attributes:
        given: Site -> its answer.
        failed: Site -> why it has none.
        late: Sites that said nothing in time.
        held: Site -> the round of the state that it has, of sites that failed because it is older than it should be.
    """

    given: dict[str, Message]
    failed: dict[str, str]
    late: list[str]
    held: Mapping[str, int] = field(default_factory=dict)

    def after(self, again: Answers, sites: Collection[str]) -> Answers:
        """Return these answers after some sites were asked again."""
        failed = {site: reason for site, reason in self.failed.items() if site not in sites}
        return Answers(self.given | again.given, failed | again.failed, sorted([*self.late, *again.late]))


Network = Callable[[str, Mapping[str, Message]], Answers]


@dataclass(frozen=True)
class Tests:
    """The test score of each site that has one, why others have none, and what sites lacked of their own models."""

    scores: dict[str, SiteScore]
    missing: dict[str, str]
    lacking: tuple[str, ...] = ()


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
        server, study = self.server, self.server.study
        while server.finished_rounds < study.total_rounds and not self.is_aborted():
            if server.finished_rounds == study.training_rounds:
                # A part's rounds are about the best models, which the last validation decides.
                self._validate()
            self.run_round()
            self.save()
        if self.is_aborted():
            return None
        self._validate()
        for exchange in server.asks(END, server.finished_rounds):
            self._exchange(exchange)
        number = server.reported_round
        return self._evaluate(Exchange(server.test_task, number, is_needed=False, models_round=number))

    def run_round(self) -> None:
        """Carry out the next round: the parts' exchanges before it, the training, and the parts' exchanges after it."""
        started, number, server = time.monotonic(), self.server.finished_rounds + 1, self.server
        record = Round(number, datetime.now(UTC).isoformat(timespec="seconds"), sorted(server.sites))
        is_training = number <= server.study.training_rounds
        training = [Exchange(TRAIN, number, models_round=number - 1)]
        main = training if is_training else server.asks(INSTEAD, number)
        for exchange in server.asks(BEFORE, number):
            self._exchange(exchange, record)
        replies = [self._exchange(exchange, record) for exchange in main]
        for exchange in server.asks(AFTER, number) if is_training else ():
            self._exchange(exchange, record)
        if self.is_aborted():
            return
        server.close(record, replies[-1])
        record.seconds = round(time.monotonic() - started, 3)

    def _exchange(self, exchange: Exchange, record: Round | None = None) -> Replies:
        """Send a task to each site, merge the answers that pass the checks, and record the others.

        Raises:
            AggregationError: The exchange is needed, and fewer sites answered than the study asks for.
        """
        server = self.server
        sent, answers, _ = self._ask(exchange, exchange.sites or server.sites, record)
        if self.is_aborted():
            return Replies({})
        accepted, refused, withheld = {}, {}, {}
        # By name and not by arrival, here and in the mixing: float sums depend on their order.
        for site in sorted(answers.given):
            try:
                withheld[site] = server.check(site, exchange, answers.given[site])
                accepted[site] = answers.given[site]
            except AggregationError as error:
                refused[site] = str(error)
        replies = Replies(accepted, refused, answers.failed | dict.fromkeys(answers.late, "no answer in time"))
        if exchange.is_needed and record:
            record.late, record.failed = sorted({*record.late, *answers.late}), record.failed | answers.failed
            record.refused |= refused
            record.withheld |= {site: names for site, names in withheld.items() if names}
            for reason in refused.values():
                self.warn(reason)
            record.require(len(accepted), server.study.federation.min_sites)
        server.merge(exchange, replies)
        if record:
            record.add_traffic(sent, accepted)
        if not exchange.is_needed:
            self._write_notes(exchange, record)
        return replies

    def _ask(
        self, exchange: Exchange, sites: Iterable[str], record: Round | None = None
    ) -> tuple[dict[str, Message], Answers, list[str]]:
        """Send a task to each site, and once more to those that have lost the state that it begins from.

        Returns:
            The tasks that were sent first, all answers, and what sites have lost for good.
        """
        server = self.server
        sent = {site: server.task(site, exchange) for site in sites}
        answers = self.ask(exchange.task, sent)
        lost = take_lost(server, exchange, answers.held)
        if lost and not self.is_aborted():
            again = {site: server.task(site, exchange) for site in lost}
            if record:
                record.add_traffic(again, {})
            answers = answers.after(self.ask(exchange.task, again), lost)
        notes = [note for site in sorted(answers.given) if (note := lost_sentence(server, site, exchange))]
        for note in notes:
            self.warn(note)
        # An evaluation is about a round that has ended.
        if notes:
            (record or server.ledger[-1]).notes += notes
        return sent, answers, notes

    def _write_notes(self, exchange: Exchange, record: Round | None) -> None:
        notes = [note for part in self.server.parts.values() for note in part.notes(exchange)]
        for note in notes:
            self.warn(note)
        if record:
            record.notes += notes

    def _validate(self) -> None:
        """Validate the last trained models, which no next training task brings to the sites (see `Work`)."""
        number = self.server.finished_rounds
        if not self.is_aborted() and not self.server.has_validated:
            tests = self._evaluate(Exchange(VALIDATE, number, is_needed=False, models_round=number))
            self.server.take_validation(tests.scores)
            self.save()

    def _evaluate(self, exchange: Exchange) -> Tests:
        """Return the sites' scores of the models of a finished round."""
        server = self.server
        _, answers, lacking = self._ask(exchange, server.sites)
        scores, missing = {}, answers.failed | dict.fromkeys(answers.late, "no answer in time")
        for site, answer in answers.given.items():
            try:
                scores[site] = server.score(site, exchange, answer)
            except AggregationError as error:
                missing[site] = str(error)
        scores = {site: score for site, score in scores.items() if score is not None}
        return Tests(scores, missing, tuple(lacking))


def settled_answers(given: Mapping[str, Message], late: list[str]) -> Answers:
    """Separate answers, in the order of site names, from the failures among them."""
    settled = dict(sorted(given.items()))
    failed = {site: str(answer.meta["error"]) for site, answer in settled.items() if "error" in answer.meta}
    held = {site: settled[site].meta.get("held") for site in failed}
    held = {site: number for site, number in held.items() if type(number) is int and number >= 0}
    return Answers({site: answer for site, answer in settled.items() if site not in failed}, failed, sorted(late), held)
