"""A study's whole course at the server: rounds, choice of the best one, its test; the network is a function.

The course asks the sites through ``ask``, whatever is between it and them: NVFlare in a federation, nothing at all in
a simulation within one process. So both go the same way and come to the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from silofl.errors import AggregationError
from silofl.federation.ledger import Round
from silofl.federation.message import Message, check_score, check_super_score
from silofl.federation.run_folder import RunFolder
from silofl.federation.server import ServerRounds
from silofl.federation.super_rounds import SuperRounds


@dataclass(frozen=True)
class Answers:
    """What came of one message to each site: answers, reasons of those that could not do the task, and who was late."""

    given: dict[str, Message]
    failed: dict[str, str]
    late: list[str]


@dataclass(frozen=True)
class Course:
    """One study's course.

    Attributes:
        server: The run so far.
        folder: Where it is written down after every round.
        ask: Sends a task to each site of a dictionary and returns what came of it.
        warn: Takes a sentence for the log.
        is_aborted: Says whether the run is being ended from outside.
    """

    server: ServerRounds
    folder: RunFolder
    ask: Callable[[str, Mapping[str, Message]], Answers]
    warn: Callable[[str], None]
    is_aborted: Callable[[], bool] = lambda: False

    def run(self) -> None:
        """Carry out all rounds that are left, the choice of the best one, and its test.

        Raises:
            AggregationError: A round had fewer answers than the study asks for.
        """
        server, study = self.server, self.server.study
        while server.finished_rounds < study.training_rounds and not self.is_aborted():
            self._train_round()
            self.folder.save(server)
        if not self.is_aborted() and not server.has_validated:
            tasks = {site: server.evaluation_task(site, server.finished_rounds) for site in server.models}
            validation, _ = self._scores("validate", tasks, partial(check_score, part="validation"))
            server.note_validation(validation)
            self.folder.save(server)
        if study.recipe.has_selector:
            self._finish_together()
        elif not self.is_aborted():
            tasks = {site: server.evaluation_task(site, server.reported_round()) for site in server.models}
            self.folder.finish(server, *self._scores("test", tasks, partial(check_score, part="test")))

    def _finish_together(self) -> None:
        """Give every site all models, let the selector learn the best ones if it does, tune the threshold, test."""
        server, together = self.server, SuperRounds(self.server)
        while server.finished_rounds < server.study.total_rounds and not self.is_aborted():
            self._assemble(together, has_selector=False)
            self._selector_round()
            self.folder.save(server)
        if self.is_aborted():
            return
        if not server.study.recipe.learns_best_model:
            self._assemble(together)
        tasks = {site: together.task(site) for site in server.models}
        check = partial(check_super_score, num_thresholds=len(together.thresholds))
        self.folder.finish(server, *self._scores("test_super_model", tasks, check), together)

    def _assemble(self, together: SuperRounds, has_selector: bool = True) -> None:
        """Send all models to the sites that do not hold them yet."""
        models = self.server.models
        tasks = {site: together.task(site, has_selector) for site in models if site not in together.holders}
        if tasks:
            together.note_assembled(self.ask("assemble", tasks).given)
            for reason in together.refused.values():
                self.warn(reason)

    def _scores(
        self,
        task: str,
        tasks: Mapping[str, Message],
        check: Callable[[str, dict[str, Any]], dict[str, Any] | None],
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the sites' scores that pass the check, and why others gave none."""
        answers = self.ask(task, tasks)
        scores, missing = {}, answers.failed | dict.fromkeys(answers.late, "no answer in time")
        for site, answer in answers.given.items():
            try:
                scores[site] = check(site, meta=answer.meta)
            except AggregationError as error:
                missing[site] = str(error)
        return {site: score for site, score in scores.items() if score is not None}, missing

    def _new_record(self) -> Round:
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        return Round(self.server.finished_rounds + 1, started_at, sorted(self.server.models))

    def _train_round(self) -> None:
        started, record, server = time.monotonic(), self._new_record(), self.server
        self._share_statistics(record)
        sent = {site: server.train_task(site) for site in record.asked}
        accepted = self._exchange("train", sent, record, server.accept)
        if accepted is None:
            return
        server.finish_round(record, accepted)
        for step in range(2, server.selector_steps + 1):
            self._selector_step(record, step)
        record.seconds = round(time.monotonic() - started, 3)

    def _share_statistics(self, record: Round) -> None:
        """Ask sites for the statistics that are wanted before a round; none that fails keeps the round from running."""
        sent = self.server.statistics_tasks()
        if not sent:
            return
        answers = self.ask("statistics", sent)
        failed = answers.failed | dict.fromkeys(answers.late, "no answer in time")
        self.server.note_statistics(record, answers.given, failed)
        record.add_traffic(sent, answers.given)
        for note in record.notes:
            self.warn(note)

    def _selector_round(self) -> None:
        """Carry out an extra round, in which the selector alone learns."""
        started, record = time.monotonic(), self._new_record()
        accepted = None
        for step in range(1, self.server.study.recipe.selector_steps + 1):
            accepted = self._selector_step(record, step)
        if accepted is None:
            return
        self.server.finish_selector_round(record, accepted)
        record.seconds = round(time.monotonic() - started, 3)

    def _selector_step(self, record: Round, step: int) -> dict[str, Message] | None:
        sent = {site: self.server.selector_task(site, step) for site in record.asked}
        accepted = self._exchange("selector", sent, record, self.server.accept_selector)
        if accepted is not None:
            self.server.step_selector(accepted)
        return accepted

    def _exchange(
        self,
        task: str,
        sent: Mapping[str, Message],
        record: Round,
        accept: Callable[[str, Message, Message], None],
    ) -> dict[str, Message] | None:
        """Send a task to each site, return the answers that fit what was sent, and note all others in the record.

        Returns:
            None where the run is being aborted.

        Raises:
            AggregationError: Fewer sites answered than the study asks for.
        """
        answers = self.ask(task, sent)
        if self.is_aborted():
            return None
        record.late, record.failed = sorted({*record.late, *answers.late}), record.failed | answers.failed
        accepted = {}
        for site in sorted(answers.given):
            try:
                accept(site, sent[site], answers.given[site])
                accepted[site] = answers.given[site]
            except AggregationError as error:
                record.refused[site] = str(error)
                self.warn(str(error))
        wanted = self.server.study.federation.min_sites
        if len(accepted) < wanted:
            reasons = {**record.failed, **record.refused, **dict.fromkeys(record.late, "no answer in time")}
            raise AggregationError(
                f"round {record.round} must have answers of at least {wanted} sites, "
                f"not {len(accepted)}: {_together(reasons)}"
            )
        record.add_traffic(sent, accepted)
        return accepted


def settled_answers(given: Mapping[str, Message], late: list[str]) -> Answers:
    """Return answers in the order of site names, those of sites that could not do the task told apart."""
    settled = dict(sorted(given.items()))
    failed = {site: str(answer.meta["error"]) for site, answer in settled.items() if "error" in answer.meta}
    return Answers({site: answer for site, answer in settled.items() if site not in failed}, failed, sorted(late))


def _together(reasons: Mapping[str, str]) -> str:
    """Return the sites' reasons, each said once."""
    sites = {reason: [site for site in reasons if reasons[site] == reason] for reason in reasons.values()}
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in sites.items())
