"""The course of a study on one page: its rounds, the choice of the best one, and its test.

Whatever connects server and sites (NVFlare, one process, a counter of bytes, a test) is a function of type `Network`.
All of them therefore take the same course and give the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from silofl.core.divergence import measure_dissimilarity
from silofl.federation.admission import admit_answers, drop_lonely
from silofl.federation.ledger import Round
from silofl.federation.numbers import describe_unlike_data, find_outlying_ranges
from silofl.federation.outlying_updates import describe_outlier, join_outliers
from silofl.federation.repeats import Repeats, return_to
from silofl.federation.round_line import round_line
from silofl.federation.server import ServerRounds
from silofl.models.precision import narrow_messages
from silofl.parts.answer import SiteAnswer, plain_text
from silofl.parts.checked_cast import checked_cast
from silofl.parts.model import ModelPart
from silofl.parts.part import AFTER, BEFORE, END, INSTEAD, TESTED, UNTESTED, WeightsOf
from silofl.parts.task import TRAIN, VALIDATE, Exchange, Message, Outliers, SiteResults
from silofl.setup.software import Software, read_software
from silofl.training.site_score import SiteScore


@dataclass(frozen=True)
class Answers:
    """The sites' answers to one task, and why others gave none.

    Attributes:
        given: Site -> its answer.
        failed: Site -> why it has none: it could not do the task, or said nothing in time.
        held: Site -> the last round whose state it has, of sites that failed because it is older than it should be.
        seconds: Site -> how long its answer took, where the network says it.
    """

    given: dict[str, Message]
    failed: dict[str, str]
    held: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def after(self, again: Answers, sites: Collection[str]) -> Answers:
        """Return these answers after some sites were asked again."""
        failed = {site: reason for site, reason in self.failed.items() if site not in sites}
        return Answers(self.given | again.given, failed | again.failed)


Network = Callable[[str, Mapping[str, Message]], Answers]


@dataclass(frozen=True)
class Tests:
    """The test score of each site that has one, and why others have none."""

    scores: dict[str, SiteScore]
    missing: dict[str, str]


class _EndedError(Exception):
    """The run is being ended from outside."""


class _GoneBackError(Exception):
    """The run has gone back to an earlier round."""


@dataclass(frozen=True)
class Course:
    """One study's course.

    Attributes:
        server: The run so far.
        ask: The network: sends a task to each site of a dictionary and returns the answers.
        save: Writes the checkpoint; called after every round.
        warn: Takes a sentence for the log.
        is_aborted: Says whether the run is being ended from outside.
        say: Takes a line on each finished round for the log.
        remarks: Gives sentences on the machine that the run's readers must know; each goes into the ledger once.
        before: Returns the run as it was a round before its last one; None where that is not kept.
        repeats: The rounds that are carried out once more.
        begin: Called before each exchange, so that who follows the run sees what it is about.
    """

    server: ServerRounds
    ask: Network
    save: Callable[[], None] = lambda: None
    warn: Callable[[str], None] = lambda sentence: None
    is_aborted: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda line: None
    remarks: Callable[[], Iterable[str]] = tuple
    before: Callable[[], ServerRounds | None] = lambda: None
    repeats: Repeats = field(default_factory=Repeats)
    begin: Callable[[Exchange], None] = lambda exchange: None

    def run(self) -> Tests | None:
        """Carry out all rounds that are left, the choice of the best one, and its test.

        Returns:
            The test; None where the run was ended from outside.

        Raises:
            AggregationError: A round had fewer answers than the study asks for.
        """
        while True:
            try:
                return self._run()
            except _GoneBackError:
                # What comes next follows from the run itself, whatever it was about when it went back.
                continue
            except _EndedError:
                return None

    def _run(self) -> Tests:
        server = self.server
        while not self._is_over():
            if server.finished_rounds == server.study.last_training:
                # A part's rounds are about the best models, which the last validation decides.
                self._validate()
            self.run_round()
            self.save()
            self.say(round_line(server.study, server.ledger))
        self._validate()
        missing: dict[str, str] = {}
        for exchange in server.asks(END, server.finished_rounds):
            site_results, _ = self._exchange(exchange)
            missing |= site_results.missing | site_results.refused
        if server.study.asks_alone:
            return Tests({}, missing)
        # What the parts assemble now belongs to the model that is tested.
        self._exchange_all(UNTESTED)
        number = server.reported.round
        exchange = Exchange(server.test.task, number, is_needed=False, models_round=number)
        _, _, site_results = self._ask_and_admit(exchange)
        self._write_notes(exchange, server.ledger[-1] if server.ledger else None)
        tests = Tests({}, site_results.missing | site_results.refused)
        for site, answer in site_results.accepted.items():
            score = answer.numbers.metrics.test
            if score is None:
                tests.missing[site] = "its answer holds no test"
            else:
                tests.scores[site] = score
        self._exchange_all(TESTED)
        return tests

    def _is_over(self) -> bool:
        """Return whether no round is left, and end the training where it is trained to its end."""
        if self.server.ends_early() and not self.server.has_validated():
            # As a rule the next training brings a round's models to the sites, but the end depends on this validation.
            self._validate()
        if self.server.ends_early():
            # The extra rounds, if there are any, follow the last finished one.
            self.server.study = self.server.study.ended_after(self.server.finished_rounds)
        return self.server.is_over()

    def _exchange_all(self, moment: str) -> None:
        """Carry out what the parts ask for at a moment, until they ask for nothing more."""
        server = self.server
        while exchanges := server.asks(moment, server.finished_rounds):
            for exchange in exchanges:
                self._exchange(exchange, server.ledger[-1])

    def run_round(self) -> None:
        """Carry out the next round: the parts' exchanges before it, the training, and the parts' exchanges after it."""
        started = time.monotonic()
        server = self.server
        number = server.finished_rounds + 1
        record = self._begin_record(number)
        is_training = number <= server.study.last_training
        main = [Exchange(TRAIN, number, models_round=number - 1)] if is_training else server.asks(INSTEAD, number)
        for exchange in server.asks(BEFORE, number):
            self._exchange(exchange, record)
        # Of several exchanges in the training's place the answers to the last one close the round's record.
        site_results, weights_of = [self._exchange(exchange, record) for exchange in main][-1]
        if is_training:
            for exchange in server.asks(AFTER, number):
                self._exchange(exchange, record)
        server.close(record, site_results, weights_of)
        record.seconds = round(time.monotonic() - started, 3)

    def _begin_record(self, number: int) -> Round:
        """Return a round's record with what is known before anybody is asked."""
        server = self.server
        absent = server.find_absent_sites()
        asked = sorted([*server.list_present_sites(), *absent])
        record = Round(number, datetime.now(UTC).isoformat(timespec="seconds"), asked, failed=absent)
        for site, last_round in server.find_departed_sites().items():
            # Only the first round without it says so.
            if server.ledger and site in server.ledger[-1].asked:
                record.notes.append(f"site {site!r} has left the study, after round {last_round}")
        notes = list(self.remarks())
        for part in server.parts.values():
            notes += part.notes(Exchange(BEFORE, number), server)
        self._record_once(notes, record)
        if number in self.repeats.first:
            record.notes.append(self.repeats.reasons[number])
            # Who was absent in the first attempt is not asked again.
            record.failed = dict(self.repeats.first[number].failed)
        return record

    def _exchange(self, exchange: Exchange, record: Round | None = None) -> tuple[SiteResults, WeightsOf]:
        """Send a task to each site, merge the answers that pass the checks, and record the others."""
        server = self.server
        sent, answers, site_results = self._ask_and_admit(exchange, record)
        # The parts merge what the comparison leaves; the record counts everybody who was accepted.
        compared = site_results
        if exchange.is_needed and record:
            record.failed |= answers.failed | site_results.refused
            self._record_once(describe_answers(server.software, site_results.accepted), record)
            for reason in site_results.refused.values():
                self.warn(reason)
            # Before the merge: a round of too few answers must leave no trace in the models.
            record.require(len(site_results.accepted), server.study.federation.min_sites)
            compared = self._compare_parts(exchange, self._drop_outlying_ranges(site_results, record), record)
            # What a part leaves out as unlike the others' may leave too little to mix the rest with.
            compared = replace(compared, accepted=drop_lonely(compared.accepted, server.is_mixed))
        # The merge replaces the parts, and the drift is measured from where the round began.
        started = dict(server.parts)
        weights_of = server.merge(exchange, compared)
        if record and exchange.task == TRAIN and server.study.training.measures_drift:
            shared = checked_cast(started[server.study.recipe.traveling_roles[0]], ModelPart)
            weights = weights_of(shared.role)
            # Where sites listen otherwise than one another, they begin from different models.
            if (weights == weights[0]).all():
                updates = site_results.updates_of(shared.role)
                record.dissimilarity = measure_dissimilarity(updates, weights[0], shared.buffers)
        if record:
            record.add_traffic(sent, {site: answers.given[site] for site in site_results.accepted})
        self._write_notes(exchange, record)
        return site_results, weights_of

    def _ask_and_admit(
        self, exchange: Exchange, record: Round | None = None
    ) -> tuple[dict[str, Message], Answers, SiteResults]:
        """Return what each site is sent, what comes back, and what is accepted of it."""
        if self.is_aborted():
            raise _EndedError
        self.begin(exchange)
        sent, answers = self._ask(exchange, record)
        # An abort during the exchange leaves answers missing, which is no fault of their sites.
        if self.is_aborted():
            raise _EndedError
        accepted, refused, outliers = admit_answers(self.server, exchange, answers.given)
        missing = dict(answers.failed)
        for site in self.server.find_departed_sites():
            if site in (exchange.sites or self.server.sites):
                missing[site] = "it has left the study"
        if not exchange.sites:
            missing |= self.server.find_absent_sites()
        return sent, answers, SiteResults(accepted, refused, missing, outliers)

    def _ask(self, exchange: Exchange, record: Round | None) -> tuple[dict[str, Message], Answers]:
        """Send a task to each site, and once more to those that have lost the state that it begins from."""
        sent = prepare_tasks(self.server, self._list_asked(exchange, record), exchange)
        answers = self.ask(exchange.task, sent)
        lost = self.server.find_lost(exchange, answers.held)
        # They are asked again once: a site that still lacks its state fails in this exchange.
        if lost and not self.is_aborted():
            self._go_back(exchange, lost)
            answers = self._ask_without(exchange, record, answers, lost)
        for site in sorted(answers.given):
            if note := self.server.lost_sentence(site, exchange):
                self.warn(note)
                # An evaluation is about a round that has ended.
                (record or self.server.ledger[-1]).notes.append(note)
                if self.server.is_lost_for_good(site, exchange):
                    self.server.losses.append(note)
        return sent, answers

    def _list_asked(self, exchange: Exchange, record: Round | None) -> list[str]:
        """Return the sites that a task goes to: in a repeated round those whose updates were in it."""
        sites = self.server.list_present_sites()
        # A part may ask some sites only, of which those are left that are present.
        asked = [site for site in exchange.sites or sites if site in sites]
        if record and exchange.is_needed and record.round in self.repeats.first:
            return [site for site in asked if site in self.repeats.first[record.round].answered]
        return asked

    def _go_back(self, exchange: Exchange, lost: Mapping[str, int]) -> None:
        """Go back to the round before the last one where that makes the lost states again."""
        earlier = self.before()
        if earlier is not None and self.repeats.take(self.server, earlier, exchange, lost):
            return_to(self.server, earlier)
            self.warn(self.repeats.reasons[earlier.finished_rounds + 1])
            # The answers at hand are to models that the run has no more.
            raise _GoneBackError

    def _ask_without(
        self, exchange: Exchange, record: Round | None, answers: Answers, lost: Mapping[str, int]
    ) -> Answers:
        """Ask sites once more, to go on without the state that they have lost; none that has lost what is vital."""
        failed = dict(answers.failed)
        older = {}
        for site, held in lost.items():
            reason = self.server.vital_sentence(site, exchange)
            if reason:
                failed[site] = reason
            else:
                older[site] = held
        answers = replace(answers, failed=failed)
        if not older:
            return answers
        # First, because the tasks that are prepared next say which state each site begins from.
        self.server.lost |= older
        again = prepare_tasks(self.server, older, exchange)
        if record:
            record.add_traffic(again, {})
        return answers.after(self.ask(exchange.task, again), older)

    def _drop_outlying_ranges(self, site_results: SiteResults, record: Round) -> SiteResults:
        """Return the results without the ranges of sites whose images nobody else's are like; the ledger says it."""
        data_profiles = {site: answer.data_profile for site, answer in site_results.accepted.items()}
        outlying = find_outlying_ranges(data_profiles, self.server.study.federation.min_sites_for_ratio)
        self._record_once([*outlying.values(), *describe_unlike_data(data_profiles)], record)
        bare = {site: replace(site_results.accepted[site], data_profile=data_profiles[site].bare) for site in outlying}
        return replace(site_results, accepted=site_results.accepted | bare)

    def _compare_parts(self, exchange: Exchange, site_results: SiteResults, record: Round) -> SiteResults:
        """Return the results without what parts leave out as unlike all others'; the ledger says who is unlike."""
        outliers = [site_results.outliers]
        for part in self.server.parts.values():
            compared = part.compared(exchange, site_results.accepted, self.server)
            site_results = replace(site_results, accepted=compared.answers)
            outliers.append(compared.outliers)
            self._record_once(compared.notes, record)
        self._record_outliers(join_outliers(outliers), record)
        return site_results

    def _record_outliers(self, outliers: Outliers, record: Round) -> None:
        """Write who is unlike the others into the record, and in a sentence where nothing has said it before."""
        before = join_outliers(earlier.outliers or {} for earlier in self.server.ledger)
        record.outliers = join_outliers([record.outliers or {}, outliers]) or None
        sentences = []
        for site, numbers in outliers.items():
            for what, number in numbers.items():
                if what not in before.get(site, {}):
                    sentences.append(describe_outlier(site, what, number))
        self._record_once(sentences, record)

    def _record_once(self, notes: Iterable[str], record: Round) -> None:
        """Write what is the same in every round into the first one's record and into the log."""
        recorded = set()
        for earlier in self.server.ledger:
            recorded.update(earlier.notes)
        for note in notes:
            if note not in recorded:
                self.warn(note)
                record.notes.append(note)

    def _write_notes(self, exchange: Exchange, record: Round | None) -> None:
        for part in self.server.parts.values():
            notes = part.notes(exchange, self.server)
            for note in notes:
                self.warn(note)
            if record:
                record.notes += notes

    def _validate(self) -> None:
        """Validate the last trained models, which no next training task brings to the sites (see `Work`)."""
        if self.server.has_validated():
            return
        number = self.server.finished_rounds
        exchange = Exchange(VALIDATE, number, is_needed=False, models_round=number)
        _, answers, site_results = self._ask_and_admit(exchange)
        notes = [*site_results.refused.values()]
        for site, reason in answers.failed.items():
            notes.append(f"site {site!r} did not validate the models of round {number}: {reason}")
        self._record_once(notes, self.server.ledger[-1])
        self.server.take_scores({site: answer.numbers.metrics for site, answer in site_results.accepted.items()})
        self.save()


def prepare_tasks(server: ServerRounds, sites: Iterable[str], exchange: Exchange) -> dict[str, Message]:
    """Return each site's task as it travels."""
    tasks = {site: server.task(site, exchange) for site in sites}
    # All at once, because models that sites share are narrowed once.
    arrays = narrow_messages({site: task.arrays for site, task in tasks.items()}, server.study)
    return {site: replace(task, arrays=arrays[site]) for site, task in tasks.items()}


def describe_answers(software: Mapping[str, Software], answers: Mapping[str, SiteAnswer]) -> Iterator[str]:
    """Yield what the ledger says of sites' software and of what their answers lack.

    Args:
        software: Site -> what it runs.
        answers: Site -> its accepted answer.
    """
    for site, of_site in sorted(software.items()):
        if differences := read_software().differences(of_site):
            yield f"site {site!r} runs other software than the server: {', '.join(differences)}"
    for site, answer in answers.items():
        if names := answer.withheld:
            shown = ", ".join([*names[:3], "..."] if len(names) > 3 else names)
            yield f"site {site!r} keeps back {len(names)} arrays by its policy: {shown}"
        if reasons := answer.numbers.unreadable:
            counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
            yield f"site {site!r} leaves out cases that cannot be read: {counts}"


def separate_failures(given: Mapping[str, Message], late: Iterable[str] = ()) -> Answers:
    """Separate answers, in the order of site names, from the failures among them and the sites that were late."""
    answers, failed, held = {}, {}, {}
    for site, message in sorted(given.items()):
        if "error" not in message.meta:
            answers[site] = message
            continue
        failed[site] = plain_text(message.meta["error"])
        number = message.meta.get("held")
        # A bool is an int too, and a site may send anything.
        if type(number) is int and number >= 0:
            held[site] = number
    return Answers(answers, failed | dict.fromkeys(sorted(late), "no answer in time"), held)
